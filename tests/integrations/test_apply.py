"""`apply_attention` and what users pass to models: every mask, outputs, modes, and models that do not take part."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel

from hf_semfocus import apply_attention, register_attention
from hf_semfocus.integrations.register import attention_modules
from tests.integrations.any_models import (
    BOTH,
    DECODERS,
    ENCODERS,
    LEFT,
    SIZES,
    bart,
    bert,
    by_hand,
    clip,
    distilbert,
    gemma2,
    gpt_oss,
    llama,
    llama4,
    made,
    make,
    mistral,
    modernbert,
    padded_batch,
    t5,
    vit,
)

LOWEST = torch.finfo(torch.float64).min


def bare_attention(mask, register=register_attention, **arguments):
    """The registered function on 1 text of 6 tokens and 2 heads; values are the unit vectors, so outputs are weights."""
    LEFT[6] = [0]
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 2, 6, 4, generator=generator, dtype=torch.float64)
    value = torch.eye(6, dtype=torch.float64).expand(1, 2, 6, 6)
    module = arguments.pop("module", torch.nn.Module().eval())
    given = {"attention_mask": None, "is_causal": False} | arguments
    output, _ = ALL_ATTENTION_FUNCTIONS[register(mask)](module, query, key, value, **given)
    return output.transpose(1, 2)


def test_both_registries_get_the_name():
    name = register_attention("topk:7+sink:2")
    assert name == "semfocus:topk:7+sink:2"
    assert name in ALL_ATTENTION_FUNCTIONS.valid_keys()
    assert name in ALL_MASK_ATTENTION_FUNCTIONS.valid_keys()
    assert register_attention("topk:7+sink:2") == name


@pytest.mark.parametrize("mask", ["topk:0", "topk:5.5", "nothing", ""])
def test_malformed_masks_register_nothing(mask):
    before = set(ALL_ATTENTION_FUNCTIONS.valid_keys())
    with pytest.raises(ValueError, match="mask"):
        register_attention(mask)
    assert set(ALL_ATTENTION_FUNCTIONS.valid_keys()) == before


def test_names_that_transformers_takes_for_its_kernels_are_refused():
    from hf_semfocus import MaskStrategy, parameter, register_mask_strategy
    from hf_semfocus.model.mask_registry import _REGISTRY

    @register_mask_strategy("flashy")
    class Flashy(MaskStrategy):
        w: int = parameter(minimum=1)

        def pattern(self, query_positions, key_positions):
            return query_positions - key_positions < self.w

    try:
        with pytest.raises(ValueError, match="reserves 'flash'"):
            register_attention("flashy:3")
    finally:
        del _REGISTRY["flashy"]


@pytest.mark.parametrize("mask", ["topk:4", "topk:3+sink:1", "block:4"])
@pytest.mark.parametrize("build", [bert, llama, mistral])
@torch.no_grad()
def test_every_form_of_a_mask_means_the_same(build, mask):
    model = make(build)
    ids, real = padded_batch()
    causal = torch.ones(9, 9, dtype=torch.bool)
    if build is not bert:
        causal = causal.tril()
    if build is mistral:
        causal = causal.triu(-4)
    allowed = (real[:, None, None, :] == 1) & causal
    model.set_attn_implementation(register_attention(mask))
    expected = model(input_ids=ids, attention_mask=real).logits
    additive = torch.zeros(allowed.shape, dtype=torch.float64)
    forms = {
        "bool": real.bool(),
        "float": real.double(),
        "4-D bool": allowed,
        "4-D lowest": additive.masked_fill(~allowed, LOWEST),
        "4-D lowest of fp16": additive.masked_fill(~allowed, torch.finfo(torch.float16).min),
        "4-D infinite": additive.masked_fill(~allowed, -torch.inf),
    }
    for form, given in forms.items():
        made = model(input_ids=ids, attention_mask=given).logits
        torch.testing.assert_close(made[real.bool()], expected[real.bool()], atol=1e-10, rtol=1e-10, msg=form)
    whole, _ = padded_batch(left=(0,), right=(0,))
    none = model(input_ids=whole).logits
    assert none.equal(model(input_ids=whole, attention_mask=torch.ones_like(whole)).logits)
    with pytest.raises(ValueError, match=r"must be boolean or additive floating point, got torch\.int64"):
        model(input_ids=ids, attention_mask=allowed.long())


@torch.no_grad()
def test_without_a_mask_encoders_look_both_ways_and_decoders_back():
    ids, _ = padded_batch(left=(0,), right=(0,))
    changed = ids.clone()
    changed[0, 5] = ids[0, 5] % 30 + 5
    for build, before_changes in ((bert, True), (llama, False)):
        model = make(build)
        model.set_attn_implementation(register_attention("topk:8"))
        differs = (model(input_ids=ids).logits != model(input_ids=changed).logits).any(dim=-1)[0]
        assert differs[:5].any().item() is before_changes
        assert differs[5:].all()


@pytest.mark.parametrize("build", [*ENCODERS, *DECODERS, *BOTH, vit])
@torch.no_grad()
def test_attention_weights_on_request(build):
    mask, most = ("topk:2+sink:1", 3) if build in BOTH else ("topk:2+banded:3", 5)
    model = make(build)
    ids, real = padded_batch()
    inputs = {"input_ids": ids, "attention_mask": real}
    if build in BOTH:
        inputs["decoder_input_ids"] = padded_batch(6, (0, 0, 0), (0, 0, 0))[0]
    if build is vit:
        inputs = {"pixel_values": torch.rand(2, 1, 8, 8, dtype=torch.float64)}
        LEFT[5] = [0, 0]
    model.set_attn_implementation(register_attention(mask))
    plain = model(**inputs).logits
    observed = model(**inputs, output_attentions=True)
    assert plain.equal(observed.logits)
    model.set_attn_implementation(by_hand(mask))
    expected = model(**inputs, output_attentions=True)
    names = [name for name in observed if name.endswith("attentions") and observed[name]]
    assert names == (
        ["decoder_attentions", "cross_attentions", "encoder_attentions"] if build in BOTH else ["attentions"]
    )
    for name in names:
        for weights, by_definition in zip(observed[name], expected[name] or [None] * 9, strict=False):
            total, kept = weights.sum(dim=-1), (weights > 0).sum(dim=-1)
            assert kept.max() <= most
            if build is gpt_oss:  # the rest is the sink's
                assert (total < 1).all()
            else:
                assert torch.isclose(total, (kept > 0).double()).all()
            if by_definition is not None:
                torch.testing.assert_close(weights, by_definition, atol=1e-9, rtol=1e-9)
    assert len(observed[names[0]]) == len(attention_modules(model)) // (3 if build in BOTH else 1)


def test_dropout_in_training_drops_weights_and_scales_the_others():
    training = torch.nn.Module().train()
    weights = bare_attention("topk:3")
    torch.manual_seed(0)
    dropped = bare_attention("topk:3", dropout=0.25, module=training)
    stay = torch.isclose(dropped, weights / 0.75)
    assert (stay | (dropped == 0)).all()
    kept = weights > 0
    assert 0 < (dropped[kept] == 0).sum() < kept.sum()
    assert bare_attention("topk:3", dropout=0.25).equal(weights), "a module that does not train drops nothing"


def test_a_model_trains_with_attention_dropout():
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    model = BertForMaskedLM(BertConfig(**SIZES, attention_probs_dropout_prob=0.5, hidden_dropout_prob=0.0)).train()
    model.set_attn_implementation(register_attention("topk:3"))
    ids, real = padded_batch()
    losses = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        losses.append(model(input_ids=ids, attention_mask=real, labels=ids).loss)
    assert losses[0] == losses[1] != losses[2]
    losses[0].backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("build", [bert, modernbert, llama, mistral, gemma2, gpt_oss])
@pytest.mark.parametrize("mask", ["topk:2", "topk:2+banded:3", "block:4"])
def test_a_row_of_padding_alone_harms_nobody(build, mask):
    model = make(build)
    model.set_attn_implementation(register_attention(mask))
    ids, real = padded_batch(left=(0, 9), right=(0, 0))
    logits = model(input_ids=ids, attention_mask=real).logits
    assert logits.isfinite().all()
    torch.testing.assert_close(logits[:1], model(input_ids=ids[:1], attention_mask=real[:1]).logits)
    logits.square().mean().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("build", [bert, llama, gemma2, gpt_oss, t5])
@torch.no_grad()
def test_low_precision(build, dtype):
    model = make(build, dtype)
    ids, real = padded_batch()
    inputs = {"input_ids": ids, "attention_mask": real}
    if build is t5:
        inputs["decoder_input_ids"] = padded_batch(6, (0, 0, 0), (0, 0, 0))[0]
    model.set_attn_implementation(register_attention("topk:3+sink:1"))
    made = model(**inputs).logits
    assert made.dtype == dtype
    model.set_attn_implementation(by_hand("topk:3+sink:1"))
    expected = model(**inputs).logits.double()
    keep = real.bool() if build is not t5 else torch.ones(3, 6, dtype=torch.bool)
    error = (made.double() - expected)[keep].abs()
    # One rounding of an output can be the choice of another key later on; nearly all are the same.
    assert (error < 8 * torch.finfo(dtype).eps * expected.abs().max()).double().mean() > 0.95


@pytest.mark.parametrize("build", [bert, modernbert, llama, gemma2])
def test_training_under_autocast(build):
    model = make(build, torch.float32).train()
    model.set_attn_implementation(register_attention("topk:3+banded:3"))
    ids, real = padded_batch()
    losses = []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(6):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=ids, attention_mask=real, labels=ids.masked_fill(real == 0, -100)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


@torch.no_grad()
def test_a_compiled_encoder_is_one_graph():
    from transformers import BertConfig, BertModel

    model = make(lambda: BertModel(BertConfig(**{**SIZES, "num_hidden_layers": 1})), torch.float32)
    model.set_attn_implementation(register_attention("topk:2+banded:3"))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    ids, real = padded_batch()
    made, expected = (call(input_ids=ids, attention_mask=real).last_hidden_state for call in (compiled, model))
    torch.testing.assert_close(made[real.bool()], expected[real.bool()], atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_a_compiled_step_knows_where_a_window_s_keys_are():
    """What a compiler sees of a sliding window are its keys alone; the mask carries their positions along."""
    from transformers import DynamicCache

    model = make(mistral)
    model.set_attn_implementation(register_attention("block:4"))
    ids, real = padded_batch(12, (0, 3), (0, 0))
    steps = []
    for call in (model, torch.compile(model, backend="aot_eager", fullgraph=True)):
        cache = DynamicCache(config=model.config)
        model(input_ids=ids[:, :11], attention_mask=real[:, :11], cache=cache)
        steps.append(call(input_ids=ids[:, 11:], attention_mask=real, cache=cache).logits)
    torch.testing.assert_close(*steps)


def test_a_causal_module_without_a_mask_looks_back():
    causal = torch.nn.Module().eval()
    causal.is_causal = True
    later = torch.ones(6, 6, dtype=torch.bool).triu(1)
    for arguments in ({"is_causal": True}, {"is_causal": None, "module": causal}):
        weights = bare_attention("topk:6", **arguments)
        assert (weights[..., later] == 0).all()
        assert (weights[..., ~later] > 0).all()
        # The last query sees all, so its selection is that of a query without causality.
        assert bare_attention("topk:3", **arguments)[..., -1, :].equal(bare_attention("topk:3")[..., -1, :])
    assert (bare_attention("topk:6") > 0).all()


def packed(build, mask, **inputs):
    model = make(build)
    model.set_attn_implementation(register_attention(mask))
    return model(**inputs, use_cache=False).logits


@pytest.mark.parametrize("mask", ["topk:2", "topk:2+sink:1", "block:4", "strided:3", "banded:3"])
@pytest.mark.parametrize("build", [llama, mistral, gemma2, llama4])
@torch.no_grad()
def test_texts_packed_in_a_row_keep_to_themselves(build, mask):
    ids, _ = padded_batch(11, (0,), (0,))
    positions = torch.cat([torch.arange(6), torch.arange(5)])[None]
    made = packed(build, mask, input_ids=ids, position_ids=positions)
    apart = [packed(build, mask, input_ids=part) for part in (ids[:, :6], ids[:, 6:])]
    torch.testing.assert_close(made, torch.cat(apart, dim=1), atol=1e-9, rtol=1e-9)


def test_packing_that_only_kernels_understand_is_refused():
    with pytest.raises(ValueError, match="position_ids, not by cu_seq_lens_q"):
        bare_attention("topk:3", cu_seq_lens_q=torch.tensor([0, 2, 6]))


def test_softcap_sinks_and_biases_are_applied():
    generator = torch.Generator().manual_seed(1)
    bias = torch.randn(1, 2, 6, 6, generator=generator, dtype=torch.float64)
    soft = torch.randn(1, 1, 6, 6, generator=generator, dtype=torch.float64).masked_fill(torch.eye(6) == 1, LOWEST)
    extras = [
        {"softcap": 0.5},
        {"s_aux": torch.tensor([0.5, -1.0])},
        {"position_bias": bias},
        {"attention_mask": soft},
        {
            "attention_mask": soft,
            "position_bias": bias,
            "softcap": 0.5,
            "s_aux": torch.tensor([0.5, -1.0]),
            "scaling": 2.0,
        },
    ]
    plain = bare_attention("topk:3+sink:1")
    for extra in extras:
        made = bare_attention("topk:3+sink:1", **extra)
        assert (made - plain).abs().max() > 1e-3
        torch.testing.assert_close(made, bare_attention("topk:3+sink:1", by_hand, **extra), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(
    ("build", "change"),
    [
        (
            gemma2,
            lambda model: [setattr(layer.self_attn, "attn_logit_softcapping", 0.05) for layer in model.model.layers],
        ),
        (gpt_oss, lambda model: [layer.self_attn.sinks.data.add_(2.0) for layer in model.model.layers]),
        (mistral, lambda model: setattr(model.config, "sliding_window", 3)),
        (t5, lambda model: model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight.data.mul_(-3)),
    ],
    ids=["softcap", "sinks", "window", "bias"],
)
@torch.no_grad()
def test_what_a_model_adds_to_attention_is_not_ignored(build, change):
    model = make(build)
    ids, real = padded_batch()
    inputs = {"input_ids": ids, "attention_mask": real}
    if build is t5:
        inputs["decoder_input_ids"] = padded_batch(6, (0, 0, 0), (0, 0, 0))[0]
    ours, theirs = register_attention("topk:3+sink:1"), by_hand("topk:3+sink:1")
    made = []
    for _ in range(2):
        model.set_attn_implementation(ours)
        made.append(model(**inputs).logits)
        model.set_attn_implementation(theirs)
        keep = real.bool() if build is not t5 else torch.ones(3, 6, dtype=torch.bool)
        torch.testing.assert_close(made[-1][keep], model(**inputs).logits[keep], atol=1e-10, rtol=1e-10)
        change(model)
    assert (made[0] - made[1])[keep].abs().max() > 1e-4


@pytest.mark.parametrize("name", ["sinks", "indices", "block_indices"])
def test_what_is_not_implemented_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} .* is not supported"):
        bare_attention("topk:3", **{name: torch.zeros(1)})
    bare_attention("topk:3", **{name: None})


def test_sinks_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="one attention-sink score for each of 2 heads"):
        bare_attention("topk:3", s_aux=torch.zeros(3))


def test_a_window_without_a_mask_is_refused():
    with pytest.raises(ValueError, match="a sliding window needs a mask"):
        bare_attention("topk:3", sliding_window=4)


@pytest.mark.parametrize("build", BOTH)
@pytest.mark.parametrize("mask", ["banded:3", "topk:2+block:4"])
def test_cross_attention_has_no_positions_of_queries(build, mask):
    model = make(build)
    model.set_attn_implementation(register_attention(mask))
    ids, _ = padded_batch()
    # As many queries as keys: nothing but the module tells that they are of two texts.
    with pytest.raises(
        ValueError, match="queries and keys are not of one text; allowed there: masks that do not, such as topk, "
    ):
        model(input_ids=ids, decoder_input_ids=ids)


@torch.no_grad()
def test_a_mask_that_does_not_say_where_queries_are_is_refused_where_it_matters():
    from transformers import StaticCache

    model = make(llama)
    ids, _ = padded_batch(9, (0,), (0,))
    # A static cache of 12 places, and a mask of the user's own for them.
    allowed = torch.ones(9, 12, dtype=torch.bool).tril()[None, None]
    for mask in ("topk:3", "topk:2+sink:1", "block:4"):
        model.set_attn_implementation(register_attention(mask))
        inputs = {"input_ids": ids, "attention_mask": allowed, "cache": StaticCache(model.config, max_cache_len=12)}
        if mask == "topk:3":
            torch.testing.assert_close(model(**inputs).logits, model(input_ids=ids).logits)
        else:
            with pytest.raises(ValueError, match="give the model a two-dimensional attention_mask"):
                model(**inputs)


def test_apply_attention_sets_probes_and_leaves_the_model_as_it_was():
    model = make(bert)
    model.train()
    model.bert.encoder.layer[1].eval()
    modes = [module.training for module in model.modules()]
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    state = torch.random.get_rng_state()
    assert apply_attention(model, "topk:4") is model
    assert model.config._attn_implementation == "semfocus:topk:4"
    assert modes == [module.training for module in model.modules()]
    assert all(value.equal(weights[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.random.get_rng_state().equal(state)
    apply_attention(model, "banded:3")
    assert model.config._attn_implementation == "semfocus:banded:3"


@pytest.mark.parametrize("build", [*ENCODERS, *DECODERS, *BOTH, vit])
def test_apply_attention_takes_models_of_the_interface(build):
    model = apply_attention(make(build, torch.float32), "topk:4")
    assert model.config._attn_implementation == "semfocus:topk:4"


def test_a_vision_model_is_the_mask_by_hand():
    model = make(vit)
    pixels = torch.rand(2, 1, 8, 8, dtype=torch.float64)
    LEFT[5] = [0, 0]
    for mask in ("topk:2", "banded:3", "topk:1+sink:1"):
        apply_attention(model, mask)
        made = model(pixel_values=pixels).logits
        model.set_attn_implementation(by_hand(mask))
        torch.testing.assert_close(made, model(pixel_values=pixels).logits, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("longformer", {**SIZES, "attention_window": 4}),
        ("funnel", {"vocab_size": 40, "block_sizes": [1, 1], "d_model": 16, "n_head": 4, "d_head": 4, "d_inner": 16}),
        ("deberta-v2", {key: SIZES[key] for key in SIZES if key != "eos_token_id"}),
    ],
)
def test_models_that_never_call_the_interface_are_refused(kind, sizes):
    model = made(AutoModelForMaskedLM, kind, **sizes)
    before = model.config._attn_implementation
    with pytest.raises(ValueError, match=f"{type(model).__name__} does not let its attention be set"):
        apply_attention(model, "topk:4")
    assert model.config._attn_implementation == before
    # As `attn_implementation=` when they are made, they take any name in silence.
    model.config._attn_implementation = register_attention("topk:4")
    with pytest.raises(ValueError, match=f"{type(model).__name__} accepts .* and does not use it.*: [a-z]+[.]"):
        apply_attention(model, "topk:4")


def own(hidden_states):
    scores = hidden_states @ hidden_states.transpose(-1, -2)
    return (scores / 2).softmax(dim=-1).float() @ hidden_states


def sinks(hidden_states):
    scores = torch.einsum("bqd,bkd->bqk", hidden_states, hidden_states)
    weights = torch.cat([scores, torch.zeros_like(scores[..., :1])], dim=-1).softmax(dim=-1)
    return torch.einsum("bqk,bkd->bqd", weights[..., :-1], hidden_states)


def fused(hidden_states):
    return torch.nn.functional.scaled_dot_product_attention(hidden_states, hidden_states, hidden_states)


class Mixer(torch.nn.Module):
    """Neither its name nor its class says what it does."""

    def __init__(self, mix):
        super().__init__()
        self.mix = mix

    def forward(self, hidden_states, **kwargs):
        return self.mix(hidden_states), None


class LinearAttentionLayer(Mixer):
    """A product of activations, and a softmax, but no product with the softmax of a product."""


@pytest.mark.parametrize("mix", [lambda x: (x @ x.transpose(-1, -2)) @ x, lambda x: x.softmax(dim=-1) * x])
def test_layers_without_softmax_attention_are_not_asked_for_it(mix):
    model = make(llama, torch.float32)
    model.model.layers[1].self_attn = LinearAttentionLayer(mix)
    assert apply_attention(model, "topk:4").config._attn_implementation == "semfocus:topk:4"


@pytest.mark.parametrize("mix", [own, sinks, fused])
def test_one_layer_that_computes_its_own_attention_is_named(mix):
    model = make(llama, torch.float32)
    model.model.layers[1].self_attn = Mixer(mix)
    with pytest.raises(ValueError, match=r"attention layers that did not call it: model\.layers\.1\.self_attn; "):
        apply_attention(model, "topk:4")
    assert model.config._attn_implementation == "sdpa"


def test_a_model_without_attention_is_refused():
    from transformers import BertConfig

    class Bag(PreTrainedModel):
        config_class = BertConfig

        def __init__(self, config):
            super().__init__(config)
            self.embedding = torch.nn.Embedding(config.vocab_size, 4)
            self.post_init()

        def forward(self, input_ids):
            return self.embedding(input_ids).mean(dim=1)

    with pytest.raises(ValueError, match="Bag"):
        apply_attention(Bag(BertConfig(**SIZES)), "topk:4")


def test_what_is_no_model_of_transformers_is_refused():
    for other in (torch.nn.Linear(2, 2), None, "bert"):
        with pytest.raises(ValueError, match=f"takes a model of Transformers, got {type(other).__name__}$"):
            apply_attention(other, "topk:4")
    model = make(llama, torch.float32)
    with pytest.raises(ValueError, match=r"got DataParallel; it holds one as \.module$"):
        apply_attention(torch.nn.DataParallel(model), "topk:4")
    assert model.config._attn_implementation == "sdpa"


def test_a_model_without_weights_is_told_what_to_do():
    with torch.device("meta"):
        model = apply_attention(llama(), "full")  # where no number is looked at, it is proven all the same
    model.register_forward_pre_hook(lambda *_: model.lm_head.weight.sum().item())
    with pytest.raises(ValueError, match=r"failed \(.*\); it has no weights \(meta device\): load them first$"):
        apply_attention(model, "topk:4")
    assert model.config._attn_implementation == "semfocus:full"


def test_weights_on_the_disk_are_no_obstacle(tmp_path):
    make(llama, torch.float32).save_pretrained(tmp_path / "model")
    places = {"model.embed_tokens": "cpu", "model.norm": "cpu", "lm_head": "cpu", "model.rotary_emb": "cpu"}
    places |= {"model.layers.0": "disk", "model.layers.1": "cpu"}
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", device_map=places, offload_folder=tmp_path / "disk"
    )
    ids, _ = padded_batch()
    expected = apply_attention(make(llama, torch.float32), "topk:4")(input_ids=ids).logits
    assert apply_attention(model, "topk:4")(input_ids=ids).logits.equal(expected)


def test_a_model_wrapped_by_peft_is_taken():
    from peft import LoraConfig, get_peft_model

    ids, _ = padded_batch()
    expected = apply_attention(make(llama, torch.float32), "topk:4")(input_ids=ids).logits
    wrapped = get_peft_model(make(llama, torch.float32), LoraConfig(target_modules=["q_proj", "v_proj"]))
    assert apply_attention(wrapped, "topk:4") is wrapped
    torch.testing.assert_close(wrapped(input_ids=ids).logits, expected)


def test_the_probe_is_the_user_s_where_the_default_does_not_reach_all_layers():
    from transformers import BertConfig, BertLMHeadModel

    model = BertLMHeadModel(BertConfig(**SIZES, is_decoder=True, add_cross_attention=True))
    with pytest.raises(ValueError, match=r"layer\.0\.crossattention.*probe="):
        apply_attention(model, "topk:4")
    assert model.config._attn_implementation == "sdpa"
    ids, _ = padded_batch()
    apply_attention(model, "topk:4", probe={"input_ids": ids, "encoder_hidden_states": torch.zeros(3, 5, 16)})
    assert model.config._attn_implementation == "semfocus:topk:4"


def test_inputs_that_do_not_fit_are_told_from_attention_that_is_not_used():
    model = make(distilbert, torch.float32)
    with pytest.raises(ValueError, match=r"the forward pass that looks whether DistilBertForMaskedLM uses .* failed"):
        apply_attention(model, "topk:4", probe={"pixel_values": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"^mask 'banded:3' counts positions of queries.*their unions$"):
        apply_attention(make(bart, torch.float32), "banded:3")
    with pytest.raises(ValueError, match=r"^mask 'cluster:2.*use it as the mask of a SemFocus model$"):
        apply_attention(model, "cluster:2")


def test_models_of_several_parts():
    model = make(clip, torch.float32)
    probe = {"input_ids": torch.ones(1, 4, dtype=torch.long), "pixel_values": torch.zeros(1, 3, 8, 8)}
    configs = [model.config, model.config.text_config, model.config.vision_config]
    before = [config._attn_implementation for config in configs]
    with pytest.raises(ValueError, match="inputs that the model takes are given as"):
        apply_attention(model, "topk:2")
    assert [config._attn_implementation for config in configs] == before
    apply_attention(model, "topk:2", probe=probe)
    assert {config._attn_implementation for config in configs} == {"semfocus:topk:2"}
