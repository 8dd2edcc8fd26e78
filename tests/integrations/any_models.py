"""Tiny models of Transformers, and an attention function that applies a mask by hand.

The function is written from the definitions: scores by einsum in fp64, the keys that a query keeps by loops over Python
numbers, positions from what the test says about padding. Nothing in it calls the package.
"""

import math

import torch
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from tests.model.oracle import follows

MASKS = ["topk:4", "topk:3+sink:1", "banded:5", "topk:2+banded:3", "block:4", "strided:3"]
# What cross-attention can have: queries there have no positions among the keys.
CROSS_MASKS = ["topk:4", "topk:3+sink:1", "topp:0.6+sink:1"]
VOCABULARY = 40
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
GROUPED = {**SIZES, "num_key_value_heads": 2, "head_dim": 4}


def bert():
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(**SIZES))


def modernbert():
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    # Layers 0 and 2 see all, layer 1 sees two tokens on each side.
    sizes = {**SIZES, "num_hidden_layers": 3, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    return ModernBertForMaskedLM(ModernBertConfig(**sizes, global_attn_every_n_layers=2, local_attention=4))


def distilbert():
    from transformers import DistilBertConfig, DistilBertForMaskedLM

    return DistilBertForMaskedLM(
        DistilBertConfig(dim=16, n_layers=2, n_heads=4, hidden_dim=24, vocab_size=VOCABULARY, attention_dropout=0.0)
    )


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**GROUPED))


def qwen2():
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(Qwen2Config(**GROUPED))


def mistral():
    from transformers import MistralConfig, MistralForCausalLM

    return MistralForCausalLM(MistralConfig(**GROUPED, sliding_window=5))


def gpt_neox():
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    return GPTNeoXForCausalLM(GPTNeoXConfig(**SIZES))


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": VOCABULARY}
    return GPT2LMHeadModel(
        GPT2Config(**sizes, bos_token_id=1, eos_token_id=None, pad_token_id=0, scale_attn_by_inverse_layer_idx=True)
    )


def gemma2():
    from transformers import Gemma2Config, Gemma2ForCausalLM

    # Layer 0 has a window, layer 1 sees all.
    return Gemma2ForCausalLM(Gemma2Config(**GROUPED, sliding_window=5, attn_logit_softcapping=0.2))


def gpt_oss():
    from transformers import GptOssConfig, GptOssForCausalLM

    sizes = {**GROUPED, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 5}
    types = ["sliding_attention", "full_attention"]
    # Grouped matrix products of the experts exist up to fp32.
    model = GptOssForCausalLM(GptOssConfig(**sizes, layer_types=types, experts_implementation="eager"))
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.sinks)
    return model


def llama4():
    from transformers import Llama4ForCausalLM, Llama4TextConfig

    # Layer 0 sees chunks of six tokens, layer 1 sees all.
    types = {"layer_types": ["chunked_attention", "full_attention"], "no_rope_layers": [1, 0]}
    sizes = {"intermediate_size_mlp": 24, "num_local_experts": 2, "attention_chunk_size": 6}
    return Llama4ForCausalLM(Llama4TextConfig(**GROUPED, **types, **sizes))


def t5():
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4, "vocab_size": VOCABULARY}
    return T5ForConditionalGeneration(
        T5Config(**sizes, dropout_rate=0.0, pad_token_id=0, eos_token_id=None, decoder_start_token_id=0)
    )


def bart():
    from transformers import BartConfig, BartForConditionalGeneration

    sides = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (
        ("layers", 1), ("attention_heads", 4), ("ffn_dim", 24),
    )}  # fmt: skip
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    return BartForConditionalGeneration(
        BartConfig(d_model=16, vocab_size=VOCABULARY, max_position_embeddings=64, **sides, **tokens)
    )


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


def kept_by(spec, scores, valid, query, keys):
    """Indices of the keys that the query at position `query` keeps, of keys at positions `keys`."""
    candidates = [j for j in range(len(keys)) if valid[j]]
    kept = set()
    for part in spec.split("+"):
        name, _, value = part.partition(":")
        if name == "topk":
            kept |= set(sorted(candidates, key=lambda j: (-scores[j], j))[: int(value)])
        elif name == "topp":
            ordered = sorted(candidates, key=lambda j: (-scores[j], j))
            masses = [math.exp(scores[j] - scores[ordered[0]]) for j in ordered]
            kept |= {j for i, j in enumerate(ordered) if sum(masses[:i]) < float(value) * sum(masses)}
        else:
            kept |= {j for j in candidates if follows(name, int(value or 0), query, keys[j])}
    return list(kept)


def by_hand(spec):
    """A name for ``attn_implementation=``: the mask `spec`, applied by hand, to texts padded as `LEFT` says."""
    name = f"by-hand-{spec}"
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
                    kept[b, h, i, kept_by(spec, numbers[b][h][i], row, place, places)] = True
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


def vit():
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {
        key: SIZES[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    }
    return ViTForImageClassification(ViTConfig(**sizes, image_size=8, patch_size=4, num_channels=1))


def clip():
    from transformers import CLIPConfig, CLIPModel

    sizes = {
        key: SIZES[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    }
    text = {**sizes, "vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    return CLIPModel(
        CLIPConfig(text_config=text, vision_config={**sizes, "image_size": 8, "patch_size": 4}, projection_dim=8)
    )
