"""SemFocus models: the block's equations, padding, outputs, losses, initialisation; test_common_*.py has every class."""

import copy
import math

import pytest
import torch
from torch import nn

from hf_semfocus import (
    SemFocusConfig,
    SemFocusForSequenceClassification,
    SemFocusForTokenClassification,
    SemFocusModel,
    parse_mask,
)
from hf_semfocus.model.sparse_normalizers import NORMALIZERS

from .contract import CLASSES
from .test_masks import SPECS

FORMS = [
    {"attention_form": "multihead", "norm_position": "post", "num_attention_heads": 2},
    {"attention_form": "multihead", "norm_position": "pre", "position_embedding_type": "sinusoidal"},
    {"attention_form": "bilinear", "norm_position": "post", "position_embedding_type": "none"},
    {"attention_form": "bilinear", "norm_position": "pre", "num_attention_heads": 3, "hidden_act": "mish"},
    {"attention_form": "multihead", "num_attention_heads": 2, "normalizer": "sparsemax", "qk_norm": True},
    {"attention_form": "bilinear", "norm_position": "pre", "normalizer": "entmax15"},
    {"attention_form": "bilinear", "num_attention_heads": 2, "qk_norm": True, "qk_norm_scale": 0.3},
]
form_ids = ["-".join(map(str, form.values())) for form in FORMS]
all_forms = pytest.mark.parametrize("form", FORMS, ids=form_ids)
#: Every mask in two forms, every form with nine masks: a form knows nothing of what its mask is.
some_pairs = pytest.mark.parametrize(
    ("spec", "form"), [(spec, FORMS[(i + j) % len(FORMS)]) for i, spec in enumerate(SPECS) for j in (0, 3)]
)
#: Every mask, every class with eight masks.
mask_and_class = pytest.mark.parametrize(("spec", "cls"), list(zip(SPECS, CLASSES * 8, strict=True)))
SOME_SPECS = ["full", "banded:5", "block:3", "topk:3", "topk:3+sink:1", "random:3;seed=0"]


def small(cls=SemFocusModel, *, seed=0, **fields):
    torch.manual_seed(seed)
    base = {"vocab_size": 11, "hidden_size": 12, "intermediate_size": 10, "num_hidden_layers": 2, "num_labels": 3}
    return cls(SemFocusConfig(**base | fields)).eval()


def draw_ids(*shape, seed=0):
    return torch.randint(1, 11, shape, generator=torch.Generator().manual_seed(seed))


# the block's equations


def norm(x, layer):
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
    return (x - mean) / (variance + layer.eps).sqrt() * layer.weight + layer.bias


def masked_rows(scores, spec):
    keep = parse_mask(spec)(scores)
    weights = scores.exp() * keep
    return weights / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize("spec", ["full", "topk:3", "banded:3"])
@pytest.mark.parametrize("post", [True, False])
def test_bilinear_block_is_the_papers_equation(spec, post):
    heads = 2
    model = small(
        mask=spec, attention_form="bilinear", num_attention_heads=heads, num_hidden_layers=1, vocab_size=11,
        norm_position="post" if post else "pre", attention_gain=0.3,
    ).double()  # fmt: skip
    layer = model.encoder.layers[0]
    assert all(parameter.dim() == 2 for parameter in layer.attention.parameters())  # matrices only, no biases
    assert [name for name, _ in layer.mlp.named_parameters()] == ["expand.weight", "contract.weight"]
    ids = draw_ids(1, 7)
    x = (model.embeddings.tokens(ids) + model.embeddings.positions.weight[:7])[0]
    attended_to = x if post else norm(x, layer.attention_norm)
    attended = 0
    for h in range(heads):
        w = layer.attention.score_matrix.weight[12 * h : 12 * (h + 1)].T
        v = layer.attention.value.weight[12 * h : 12 * (h + 1)].T
        scores = attended_to @ w @ attended_to.T
        attended = attended + masked_rows(scores[None, None], spec)[0, 0] @ (attended_to @ v)
    x = x + attended
    p, r = layer.mlp.expand.weight.T, layer.mlp.contract.weight.T
    if post:
        x = norm(x, layer.attention_norm)
        x = norm(x + torch.relu(x @ p) @ r, layer.mlp_norm)
    else:
        x = x + torch.relu(norm(x, layer.mlp_norm) @ p) @ r
        x = norm(x, model.encoder.final_norm)
    assert torch.allclose(model(ids).last_hidden_state[0], x, atol=1e-10)


def test_multihead_block_is_ordinary_attention_with_a_mask():
    model = small(mask="topk:2", num_attention_heads=3, num_hidden_layers=1, hidden_act="gelu").double()
    layer = model.encoder.layers[0]
    attention = layer.attention
    ids = draw_ids(1, 6)
    x = (model.embeddings.tokens(ids) + model.embeddings.positions.weight[:6])[0]
    heads = []
    for h in range(3):
        q, k, v = (part(x)[:, 4 * h : 4 * h + 4] for part in (attention.query, attention.key, attention.value))
        heads.append(masked_rows((q @ k.T / 2)[None, None], "topk:2")[0, 0] @ v)
    x = norm(x + attention.output(torch.cat(heads, -1)), layer.attention_norm)
    x = norm(x + layer.mlp.contract(nn.functional.gelu(layer.mlp.expand(x))), layer.mlp_norm)
    assert torch.allclose(model(ids).last_hidden_state[0], x, atol=1e-10)


@all_forms
def test_scores_are_what_the_layer_attends_by(form):
    model = small(mask="topk:3", **form)
    inputs = []
    attention = model.encoder.layers[1].attention
    attention.register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
    weights = model(draw_ids(2, 7), output_attentions=True).attentions[1]
    scores = attention.scores(inputs[0])
    heads = form.get("num_attention_heads", 1)
    assert scores.shape == (2, heads, 7, 7)
    assert scores.dtype == torch.float32
    keep = attention.mask_strategy(scores)
    if model.config.normalizer == "softmax":
        expected = torch.softmax(scores.masked_fill(~keep, -torch.inf), -1)
    else:
        expected = NORMALIZERS[model.config.normalizer](scores, keep)
    assert torch.allclose(weights, expected, atol=1e-6)
    assert model.bfloat16().encoder.layers[1].attention.scores(inputs[0].bfloat16()).dtype == torch.float32


def test_attention_scale_multiplies_the_scores():
    for form, default in (("multihead", 0.5), ("bilinear", 1.0)):
        plain = small(attention_form=form, num_attention_heads=3)
        scaled = small(attention_form=form, num_attention_heads=3, attention_scale=0.2)
        states = torch.randn(1, 4, 12)
        one, other = (model.encoder.layers[0].attention.scores(states) for model in (plain, scaled))
        assert torch.allclose(other, one * 0.2 / default, atol=1e-6)


def test_biases_follow_the_configuration():
    def names(**fields):
        return {name for name, _ in small(**fields).encoder.layers[0].named_parameters() if "bias" in name}

    norms = {"attention_norm.bias", "mlp_norm.bias"}
    projections = {f"attention.{name}.bias" for name in ("query", "key", "value", "output")}
    mlp = {"mlp.expand.bias", "mlp.contract.bias"}
    assert names() == norms | projections | mlp
    assert names(attention_bias=False) == norms | mlp
    assert names(mlp_bias=False) == norms | projections
    assert names(attention_form="bilinear") == norms
    assert names(attention_form="bilinear", mlp_bias=True) == norms | mlp


@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_dropout_falls_on_what_attention_and_mlp_add(norm_position):
    model = small(norm_position=norm_position, hidden_dropout=0.5, classifier_dropout=0.5).train()
    layer, seen = model.encoder.layers[0], []
    for part in (layer.attention, layer.mlp):
        part.register_forward_hook(lambda module, args, out: seen.append(out[0] if isinstance(out, tuple) else out))
    layer.dropout.register_forward_hook(lambda module, args, out: seen.append((args[0], out)))
    model(draw_ids(2, 5))
    attended, (dropped_attended, out), moved, (dropped_moved, _) = seen
    assert dropped_attended is attended
    assert dropped_moved is moved
    assert 0.2 < (out == 0).float().mean() < 0.8
    head = small(SemFocusForSequenceClassification, classifier_dropout=1.0).train()
    assert torch.equal(head(draw_ids(2, 5)).logits, head.classifier.bias.expand(2, 3))


@some_pairs
def test_eager_is_the_reference_for_outputs_and_gradients(spec, form):
    model = small(mask=spec, **form).double()
    ids, mask = draw_ids(3, 7), torch.tensor([[1] * 7, [0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0, 0]])
    results = []
    for implementation in ("semfocus", "eager", "semfocus"):
        model.set_attn_implementation(implementation)
        assert model.config._attn_implementation == implementation
        model.zero_grad()
        states = model(ids, mask).last_hidden_state
        states.sin().sum().backward()
        results.append([states, *(parameter.grad.clone() for parameter in model.parameters())])
    for one, eager, again in zip(*results, strict=True):
        assert torch.allclose(one, eager, atol=1e-9)
        assert torch.equal(one, again)


# padding and masks


@some_pairs
def test_padding_changes_nothing(spec, form):
    texts = [draw_ids(n, seed=n) for n in (1, 4, 7)]
    for side, pooling in (("left", "last"), ("right", "mean"), ("left", "mean"), ("left", "cls"), ("right", "last")):
        model = small(SemFocusForSequenceClassification, mask=spec, pooling=pooling, **form).double()
        ids = torch.full((3, 9), 5)
        mask = torch.zeros(3, 9, dtype=torch.long)
        for i, text in enumerate(texts):
            place = slice(9 - len(text), 9) if side == "left" else slice(0, len(text))
            ids[i, place], mask[i, place] = text, 1
        alone = torch.cat([model(text[None]).logits for text in texts])
        for padding in (mask, mask.bool(), mask.float(), mask[:, None, None].bool().expand(3, 1, 9, 9)):
            assert torch.allclose(model(ids, padding).logits, alone, atol=1e-10), (side, pooling)
        additive = torch.zeros(3, 1, 9, 9).masked_fill(mask[:, None, None] == 0, torch.finfo(torch.float32).min)
        assert torch.allclose(model(ids, additive).logits, alone, atol=1e-10), (side, pooling)


@pytest.mark.parametrize("spec", SPECS)
def test_masks_absent_and_all_ones_mean_the_same(spec):
    model = small(mask=spec).double()
    ids = draw_ids(2, 6)
    plain = model(ids).last_hidden_state
    for mask in (torch.ones(2, 6), torch.ones(2, 6, dtype=torch.bool), torch.zeros(2, 1, 6, 6)):
        assert torch.allclose(model(ids, mask).last_hidden_state, plain, atol=1e-12)


@pytest.mark.parametrize("spec", SOME_SPECS)
@pytest.mark.parametrize("implementation", ["semfocus", "eager"])
def test_a_causal_mask_makes_each_state_a_function_of_its_prefix(spec, implementation):
    model = small(mask=spec, attn_implementation=implementation).double()
    ids = draw_ids(1, 6)
    causal = torch.ones(1, 1, 6, 6, dtype=torch.bool).tril()
    additive = torch.zeros(1, 1, 6, 6, dtype=torch.float64).masked_fill(~causal, -math.inf)
    states = model(ids, causal).last_hidden_state
    assert torch.allclose(model(ids, additive).last_hidden_state, states, atol=1e-12)
    prefix = model(ids[:, :4], causal[..., :4, :4]).last_hidden_state
    assert torch.allclose(states[:, :4], prefix, atol=1e-12)


@pytest.mark.parametrize("spec", ["full", "topk:3", "banded:3", "sink:1"])
def test_without_a_mask_the_encoder_sees_both_ways(spec):
    model = small(mask=spec)
    ids = draw_ids(1, 5)
    changed = ids.clone()
    changed[0, 1] = ids[0, 1] % 10 + 1
    before, after = model(ids).last_hidden_state, model(changed).last_hidden_state
    if spec != "sink:1":
        assert not torch.allclose(before[0, 0], after[0, 0])
    assert not torch.allclose(before[0, 1], after[0, 1])


@pytest.mark.parametrize("implementation", ["semfocus", "eager"])
def test_a_finite_additive_bias_is_applied(implementation):
    model = small(mask="full", attn_implementation=implementation, num_hidden_layers=1)
    ids = draw_ids(1, 5)
    bias = torch.zeros(1, 1, 5, 5)
    bias[..., 2] = 3.0
    plain, biased = (model(ids, mask, output_attentions=True).attentions[0] for mask in (None, bias))
    expected = plain * bias.exp()
    assert torch.allclose(biased, expected / expected.sum(-1, keepdim=True), atol=1e-6)


@mask_and_class
def test_a_text_of_padding_only_stays_finite(spec, cls):
    model = small(cls, mask=spec).train()
    ids, mask = draw_ids(2, 5), torch.tensor([[1] * 5, [0] * 5])
    output = model(ids, mask)[0]
    assert output.isfinite().all()
    output.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("kind", ["learned", "sinusoidal", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_too_long_inputs_are_refused(kind, dtype):
    model = small(position_embedding_type=kind, max_position_embeddings=6).to(dtype)
    model(draw_ids(1, 6))
    for arguments in ({"input_ids": draw_ids(1, 7)}, {"inputs_embeds": torch.zeros(1, 7, 12, dtype=dtype)}):
        with pytest.raises(ValueError, match=r"7 tokens.*max_position_embeddings=6"):
            model(**arguments)


def test_other_input_errors():
    model = small()
    for arguments in ({"input_ids": draw_ids(1, 0)}, {"inputs_embeds": torch.zeros(2, 0, 12)}):
        with pytest.raises(ValueError, match="the input has 0 tokens; allowed: at least 1"):
            model(**arguments)
    for arguments in ({}, {"input_ids": draw_ids(1, 3), "inputs_embeds": torch.zeros(1, 3, 12)}):
        with pytest.raises(ValueError, match="exactly one"):
            model(**arguments)
    with pytest.raises(ValueError, match="attention_mask must have shape"):
        model(draw_ids(1, 3), torch.ones(1, 4))
    for arguments, words in (
        ({"input_ids": draw_ids(3)}, r"input_ids must have shape \(batch, length\), got \(3,\)"),
        ({"input_ids": draw_ids(1, 1, 3)}, r"got \(1, 1, 3\)"),
        ({"input_ids": draw_ids(1, 3).float()}, r"input_ids must be int64 or int32, got torch\.float32"),
        ({"inputs_embeds": torch.zeros(3, 12)}, r"inputs_embeds must have shape \(batch, length, 12\), got \(3, 12\)"),
        ({"inputs_embeds": torch.zeros(1, 3, 10)}, r"got \(1, 3, 10\)"),
    ):
        with pytest.raises(ValueError, match=words):
            model(**arguments)


@pytest.mark.parametrize("cls", CLASSES)
def test_arguments_that_would_be_ignored_are_refused(cls):
    model, ids = small(cls), draw_ids(2, 5)
    for name, words in {
        "position_ids": "does not support position_ids: positions are counted from the first valid token",
        "head_mask": "does not support head_mask",
        "past_key_values": "keeps no cache",
        "cache": "keeps no cache",
        "encoder_hidden_states": "no cross-attention",
        "cu_seq_lens_q": "no packed texts",
        "atention_mask": "no argument 'atention_mask'; did you mean 'attention_mask'",
        "output_attention": "did you mean 'output_attentions'",
    }.items():
        with pytest.raises(ValueError, match=words):
            model(ids, **{name: torch.ones(2, 5)})
    # What says nothing, or nothing to us, is passed over as in Transformers' own encoders.
    plain = model(ids)[0]
    assert torch.equal(model(ids, position_ids=None, token_type_ids=torch.ones_like(ids), use_cache=False)[0], plain)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_masks_that_hold_no_number_are_refused(number):
    model, ids = small(SemFocusForSequenceClassification), draw_ids(2, 5)
    word = "NaN" if math.isnan(number) else r"\+inf"
    for mask in (torch.ones(2, 5), torch.zeros(2, 1, 5, 5), torch.zeros(1, 1, 5, 5, dtype=torch.bfloat16)):
        mask[0, ..., 3] = number
        with pytest.raises(ValueError, match=f"attention_mask holds {word}; allowed: finite numbers"):
            model(ids, mask)


@pytest.mark.parametrize("implementation", ["semfocus", "eager"])
@pytest.mark.parametrize(
    ("spec", "cls"), list(zip(["full", "topk:3", "banded:3+sink:1", "block:3"], CLASSES, strict=True))
)
def test_a_two_dimensional_additive_mask_is_padding_and_its_finite_numbers_are_biases(spec, cls, implementation):
    model, ids = small(cls, mask=spec, num_hidden_layers=1, num_attention_heads=2), draw_ids(2, 6)
    model.set_attn_implementation(implementation)
    padding = torch.tensor([[1, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1]])
    expected = model(ids, padding)[0]
    for forbidden in (-math.inf, torch.finfo(torch.float32).min, torch.finfo(torch.float16).min):
        additive = torch.zeros(2, 6).masked_fill(padding == 0, forbidden)
        assert torch.allclose(model(ids, additive)[0], expected, atol=1e-6)
    # A bias of a key is one of every query's score for it, as a four-dimensional mask writes it out.
    bias = torch.tensor([0.0, -0.7, -2.0, 0.0, -math.inf, -math.inf]).expand(2, 6)
    biased = model(ids, bias)[0]
    assert torch.allclose(biased, model(ids, bias[:, None, None].expand(2, 1, 6, 6))[0], atol=1e-6)
    assert not torch.allclose(biased, model(ids, torch.zeros(2, 6).masked_fill(bias < -9, -math.inf))[0], atol=1e-3)


# pooling


def test_pooling_reads_what_it_says():
    ids, mask = draw_ids(2, 5), torch.tensor([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1]])
    for pooling, read in {
        "mean": lambda states, valid: states[valid].mean(0),
        "cls": lambda states, valid: states[valid][0],
        "last": lambda states, valid: states[valid][-1],
    }.items():
        model = small(SemFocusForSequenceClassification, pooling=pooling)
        states = model.model(ids, mask).last_hidden_state
        rows = torch.stack([read(states[i], mask[i].bool()) for i in range(2)])
        assert torch.allclose(model(ids, mask).logits, model.classifier(rows), atol=1e-6)


# outputs


@pytest.mark.parametrize("fields", [{}, {"normalizer": "sparsemax", "qk_norm": True}], ids=["softmax", "sparsemax"])
@pytest.mark.parametrize("implementation", ["semfocus", "eager"])
@mask_and_class
def test_asking_for_weights_and_states_changes_nothing_else(spec, cls, implementation, fields):
    model = small(cls, mask=spec, num_attention_heads=2, attention_dropout=0.2, hidden_dropout=0.1, **fields)
    model.set_attn_implementation(implementation)
    ids, mask = draw_ids(2, 6), torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])
    for attention_mask in (None, mask):
        for training in (False, True):
            model.train(training)
            before = copy.deepcopy(model.state_dict())  # a pass in training mode may teach a mask
            torch.manual_seed(4)
            plain = model(ids, attention_mask)
            model.load_state_dict(before)
            torch.manual_seed(4)
            rich = model(ids, attention_mask, output_attentions=True, output_hidden_states=True)
            assert torch.equal(plain[0], rich[0])
            assert set(rich) - set(plain) == {"attentions", "hidden_states"}
            assert len(rich.hidden_states) == 3
            assert len(rich.attentions) == 2
            valid = torch.ones(2, 1, 1, 6, dtype=torch.bool) if attention_mask is None else mask[:, None, None].bool()
            keep = parse_mask(spec)
            bounded = keep.structure(6) is not None
            most = max(keep(torch.randn(2, 2, 6, 6), valid).sum(-1).max().item(), 1) if bounded else 6
            for weights in rich.attentions:
                assert weights.shape == (2, 2, 6, 6)
                assert not weights[~valid.expand_as(weights)].any()
                if "+" not in spec:
                    assert ((weights > 0).sum(-1) <= most).all()
                rows = weights.sum(-1)
                assert (torch.isclose(rows, torch.ones(()), atol=1e-6) | (rows == 0)).all()


def test_hidden_states_are_the_embeddings_then_each_layers_output():
    model = small(norm_position="pre")
    ids = draw_ids(1, 4)
    output = model(ids, output_hidden_states=True)
    assert torch.equal(output.hidden_states[0], model.embeddings(model.embeddings.tokens(ids), None))
    assert torch.equal(output.hidden_states[1], model.encoder.layers[0](output.hidden_states[0]))
    assert torch.equal(output.hidden_states[-1], output.last_hidden_state)


@pytest.mark.parametrize("cls", CLASSES)
def test_outputs_can_be_asked_for_in_the_configuration(cls, tmp_path):
    model = small(cls, output_attentions=True, output_hidden_states=True)
    assert model.config._attn_implementation == "semfocus"
    output = model(draw_ids(1, 4))
    assert len(output.attentions) == 2
    assert len(output.hidden_states) == 3
    assert model(draw_ids(1, 4), output_attentions=False).attentions is None
    model.save_pretrained(tmp_path)
    assert len(cls.from_pretrained(tmp_path)(draw_ids(1, 4)).attentions) == 2
    assert torch.equal(small(cls, return_dict=False)(draw_ids(1, 4))[0], output[0])
    model.config.output_attentions = False
    assert model(draw_ids(1, 4)).attentions is None


# losses


@pytest.mark.parametrize(
    ("cls", "fields", "labels"),
    [
        (SemFocusForSequenceClassification, {}, torch.tensor([0, 2, 1, 1])),
        (SemFocusForSequenceClassification, {"problem_type": "regression"}, torch.randn(4, 3)),
        (SemFocusForSequenceClassification, {"problem_type": "multi_label_classification"}, torch.ones(4, 3)),
        (SemFocusForTokenClassification, {}, torch.arange(20).reshape(4, 5) % 3),
    ],
)
def test_accumulated_losses_add_up_to_the_loss_of_the_whole(cls, fields, labels):
    """Trainer gives every part the number of labels of the whole batch and adds the losses."""
    model = small(cls, **fields)
    ids = draw_ids(4, 5)
    whole = model(ids, labels=labels).loss
    parts = [
        model(ids[part], labels=labels[part], num_items_in_batch=torch.tensor(labels.numel())).loss
        for part in (slice(0, 1), slice(1, 4))
    ]
    assert torch.allclose(sum(parts), whole)


# initialisation


def test_initial_weights_follow_the_configuration():
    scales = {"embedding_std": 0.5, "position_std": 0.2, "attention_gain": 3.0, "weight_gain": 0.5}
    model = small(SemFocusForSequenceClassification, hidden_size=128, vocab_size=400, **scales)
    bound = 128**-0.5
    attention, mlp = model.model.encoder.layers[0].attention, model.model.encoder.layers[0].mlp

    def is_uniform(weight, limit):
        assert weight.abs().max() <= limit
        assert weight.abs().max() > 0.95 * limit
        assert math.isclose(weight.std().item(), limit / 3**0.5, rel_tol=0.05)

    for linear, gain in (
        (attention.query, 3.0), (attention.key, 3.0), (attention.value, 0.5), (attention.output, 0.5), (mlp.expand, 0.5),
    ):  # fmt: skip
        is_uniform(linear.weight, gain * bound)
        assert linear.bias.abs().max() <= bound
        assert linear.bias.std() > 0
    assert model.classifier.weight.abs().max() <= 0.5 * bound
    is_uniform(mlp.contract.weight, 0.5 * 10**-0.5)
    assert math.isclose(model.model.embeddings.tokens.weight[1:].std().item(), 0.5, rel_tol=0.05)
    assert not model.model.embeddings.tokens.weight[0].any()
    assert math.isclose(model.model.embeddings.positions.weight.std().item(), 0.2, rel_tol=0.05)
    bilinear = small(attention_form="bilinear", hidden_size=128, num_attention_heads=2, **scales).encoder.layers[0]
    is_uniform(bilinear.attention.score_matrix.weight, 3.0 * bound)
    is_uniform(bilinear.attention.value.weight, 0.5 * bound)
    plain = small(embedding_std=0.7, hidden_size=128, vocab_size=400)
    assert math.isclose(plain.embeddings.positions.weight.std().item(), 0.7, rel_tol=0.05)


def test_sinusoidal_positions_are_the_published_ones():
    table = small(position_embedding_type="sinusoidal", position_std=2.0).embeddings.positions.table
    assert table.shape == (1024, 12)
    for position in (0, 1, 17):
        for i in range(6):
            angle = position / 10000 ** (2 * i / 12)
            assert math.isclose(table[position, 2 * i].item(), 2 * math.sin(angle), abs_tol=1e-5)
            assert math.isclose(table[position, 2 * i + 1].item(), 2 * math.cos(angle), abs_tol=1e-5)
    odd = small(position_embedding_type="sinusoidal", hidden_size=7)
    assert odd(draw_ids(1, 3)).last_hidden_state.shape == (1, 3, 7)


@pytest.mark.parametrize("cls", CLASSES)
@all_forms
def test_the_mask_does_not_change_the_initial_weights_and_the_seed_does(cls, form):
    first, same, other = (
        small(cls, mask=mask, seed=seed, **form) for mask, seed in (("full", 1), ("topk:3", 1), ("full", 2))
    )
    pairs = zip(first.parameters(), same.parameters(), strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)
    assert not torch.equal(first.get_input_embeddings().weight, other.get_input_embeddings().weight)


# training


@pytest.mark.parametrize("cls", CLASSES)
@all_forms
def test_every_parameter_gets_a_gradient(cls, form):
    model = small(cls, mask="topk:3+sink:1", max_position_embeddings=7, **form).train()
    weight = torch.randn(model(draw_ids(4, 7))[0].shape)
    (model(draw_ids(4, 7))[0] * weight).sum().backward()
    for name, parameter in model.named_parameters():
        # Softmax does not see a shift of all scores of a query, so a key bias has no gradient but rounding.
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0 or name.endswith("key.bias"), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("spec", SOME_SPECS)
def test_low_precision_models_are_close_to_full_precision(dtype, spec):
    model = small(mask=spec, num_hidden_layers=1).to(dtype).double()  # weights that the low precision holds exactly
    ids = draw_ids(2, 6)
    exact = model(ids).last_hidden_state
    low = model.to(dtype)(ids).last_hidden_state
    assert low.dtype == dtype
    # Projections are rounded before they are compared, so a key may be exchanged for one of nearly the same score.
    assert (low.double() - exact).abs().median() < 0.02


@pytest.mark.parametrize("spec", SOME_SPECS)
def test_deterministic_mode_gives_bitwise_equal_results_twice(spec):
    model = small(SemFocusForSequenceClassification, mask=spec).train()
    ids, mask = draw_ids(3, 6), torch.tensor([[1] * 6, [1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1]])
    torch.use_deterministic_algorithms(True)
    try:
        runs = []
        for _ in range(2):
            model.zero_grad()
            loss = model(ids, mask, labels=torch.tensor([0, 1, 2])).loss
            loss.backward()
            runs.append([loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))


@pytest.mark.parametrize("spec", ["full", "banded:5", "block:5", "topk:3"])
def test_compiles_to_one_graph_at_two_lengths(spec):
    torch._dynamo.reset()
    model = small(mask=spec, num_hidden_layers=1).train()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for length in (7, 12):
        ids, mask = draw_ids(2, length), torch.ones(2, length, dtype=torch.long)
        mask[0, :2] = 0
        results = []
        for call in (model, compiled):
            model.zero_grad()
            states = call(ids, mask).last_hidden_state
            states.sin().sum().backward()
            results.append([states.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
        assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(*results, strict=True))
