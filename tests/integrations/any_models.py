"""Tiny models of Transformers, and an attention function that applies a mask by hand.

The function is written from the definitions: scores by einsum in fp64, the keys that a query keeps by loops over Python
numbers, positions from what the test says about padding. Nothing in it calls the package.
"""

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
)
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from tests.model.oracle import kept_by

MASKS = ["topk:4", "topk:3+sink:1", "banded:5", "topk:2+banded:3", "block:4", "strided:3"]
# What cross-attention can have: queries there have no positions among the keys.
CROSS_MASKS = ["topk:4", "topk:3+sink:1", "topp:0.6+sink:1"]
VOCABULARY = 40
LAYERS = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
TOKENS = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
SIZES = {**LAYERS, **TOKENS, "max_position_embeddings": 64}
GROUPED = {**SIZES, "num_key_value_heads": 2, "head_dim": 4}


def made(auto, kind, **sizes):
    return auto.from_config(AutoConfig.for_model(kind, **sizes))


def bert():
    return made(AutoModelForMaskedLM, "bert", **SIZES)


def modernbert():
    # Layers 0 and 2 see all, layer 1 sees two tokens on each side.
    sizes = {**SIZES, "num_hidden_layers": 3, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    return made(AutoModelForMaskedLM, "modernbert", **sizes, global_attn_every_n_layers=2, local_attention=4)


def distilbert():
    sizes = {"dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 24, "vocab_size": VOCABULARY}
    return made(AutoModelForMaskedLM, "distilbert", **sizes, attention_dropout=0.0)


def llama():
    return made(AutoModelForCausalLM, "llama", **GROUPED)


def qwen2():
    return made(AutoModelForCausalLM, "qwen2", **GROUPED)


def mistral():
    return made(AutoModelForCausalLM, "mistral", **GROUPED, sliding_window=5)


def gpt_neox():
    return made(AutoModelForCausalLM, "gpt_neox", **SIZES)


def gpt2():
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": VOCABULARY}
    tokens = {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
    return made(AutoModelForCausalLM, "gpt2", **sizes, **tokens, scale_attn_by_inverse_layer_idx=True)


def gemma2():
    # Layer 0 has a window, layer 1 sees all.
    return made(AutoModelForCausalLM, "gemma2", **GROUPED, sliding_window=5, attn_logit_softcapping=0.2)


def gpt_oss():
    sizes = {**GROUPED, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 5}
    types = ["sliding_attention", "full_attention"]
    # Grouped matrix products of the experts exist up to fp32.
    model = made(AutoModelForCausalLM, "gpt_oss", **sizes, layer_types=types, experts_implementation="eager")
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.sinks)
    return model


def llama4():
    # Layer 0 sees chunks of six tokens, layer 1 sees all.
    types = {"layer_types": ["chunked_attention", "full_attention"], "no_rope_layers": [1, 0]}
    sizes = {"intermediate_size_mlp": 24, "num_local_experts": 2, "attention_chunk_size": 6}
    return made(AutoModelForCausalLM, "llama4_text", **GROUPED, **types, **sizes)


def t5():
    sizes = {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4, "vocab_size": VOCABULARY}
    tokens = {"pad_token_id": 0, "eos_token_id": None, "decoder_start_token_id": 0}
    return made(AutoModelForSeq2SeqLM, "t5", **sizes, **tokens, dropout_rate=0.0)


def bart():
    sizes = {"d_model": 16, "vocab_size": VOCABULARY, "max_position_embeddings": 64}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": 1, f"{side}_attention_heads": 4, f"{side}_ffn_dim": 24}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    return made(AutoModelForSeq2SeqLM, "bart", **sizes, **tokens)


def vit():
    pictures = {"image_size": 8, "patch_size": 4, "num_channels": 1}
    return made(AutoModelForImageClassification, "vit", **LAYERS, **pictures)


def clip():
    text = {**LAYERS, "vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    vision = {**LAYERS, "image_size": 8, "patch_size": 4}
    return made(AutoModel, "clip", text_config=text, vision_config=vision, projection_dim=8)


ENCODERS = [bert, modernbert, distilbert]
DECODERS = [llama, qwen2, mistral, gpt_neox, gpt2, gemma2, gpt_oss, llama4]
BOTH = [t5, bart]


def make(build, dtype=torch.float64):
    """A model with spread-out weights: at Transformers' usual initialisation attention is nearly uniform."""
    torch.manual_seed(0)
    model = build().to(dtype).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "embed" not in name and "wte" not in name and "shared" not in name:
                parameter.mul_(8)
    return model


#: Number of padding tokens in front of each text of a batch, by the length of the texts.
LEFT: dict[int, list[int]] = {}


def by_hand(spec):
    """A name for ``attn_implementation=``: the mask `spec`, applied by hand, to texts padded as `LEFT` says."""
    name, parts = f"by-hand-{spec}", [None] * len(spec.split("+"))
    if name in ALL_ATTENTION_FUNCTIONS.valid_keys():
        return name

    def attention(
        module, query, key, value, attention_mask, scaling=None, softcap=None, s_aux=None, position_bias=None,
        dropout=0.0, **kwargs
    ):  # fmt: skip
        assert dropout == 0.0
        batch, heads, queries, width = query.shape
        keys, group = key.shape[2], heads // key.shape[1]
        key = torch.stack([key[:, head // group] for head in range(heads)], dim=1)
        value = torch.stack([value[:, head // group] for head in range(heads)], dim=1)
        scores = torch.einsum("bhqt,bhkt->bhqk", query.double(), key.double())
        scores = scores * (width**-0.5 if scaling is None else scaling)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        valid = torch.ones(batch, 1, queries, keys, dtype=torch.bool)
        if attention_mask is not None and attention_mask.dtype == torch.bool:
            valid = attention_mask.expand(batch, -1, queries, keys)
        elif attention_mask is not None:
            valid = (attention_mask > -1e4).expand(batch, -1, queries, keys)
            scores = scores + attention_mask.double().where(valid, torch.zeros((), dtype=torch.float64))
        if position_bias is not None:
            scores = scores + position_bias.double()
        numbers, allowed = scores.tolist(), valid.tolist()
        kept = torch.zeros(scores.shape, dtype=torch.bool)
        for b in range(batch):
            places = [j - LEFT[keys][b] for j in range(keys)]
            for h in range(heads):
                for i in range(queries):
                    row = allowed[b][h % len(allowed[b])][i]
                    place = i - LEFT[queries][b]
                    kept[b, h, i, list(kept_by(spec, numbers[b][h][i], row, place, places, [], [], parts))] = True
        # exp, never of more than 0; a query that keeps nothing has weights of 0
        top = scores.masked_fill(~kept, -1e300).amax(dim=-1, keepdim=True).clamp_min(-1e30)
        if s_aux is not None:
            sinks = s_aux.double().view(1, heads, 1, 1)
            top = torch.maximum(top, sinks).detach()
        mass = (scores - top).where(kept, torch.zeros(())).exp() * kept
        total = mass.sum(dim=-1, keepdim=True)
        if s_aux is not None:
            total = total + (sinks - top).exp()
        weights = mass / total.where(total > 0, torch.ones(()))
        output = torch.einsum("bhqk,bhkt->bqht", weights, value.double())
        return output.to(query.dtype), weights.to(query.dtype)

    def mask(**kwargs):
        return sdpa_mask(**(kwargs | {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}))

    ALL_ATTENTION_FUNCTIONS.register(name, attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, mask)
    return name


def padded_batch(length=9, left=(0, 3, 0), right=(0, 0, 2), seed=1):
    """Token ids and two-dimensional mask ``(len(left), length)``; `LEFT` is told."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCABULARY, (len(left), length), generator=generator)
    real = torch.ones_like(ids)
    for row, (front, back) in enumerate(zip(left, right, strict=True)):
        real[row, :front] = 0
        real[row, length - back :] = 0
    LEFT[length] = list(left)
    return ids.masked_fill(real == 0, 0), real


def text_positions(real):
    """Position ids as `generate` counts them: 0 for the first token that is not padding."""
    return (real.cumsum(dim=-1) - 1).clamp_min(0)
