"""Normalizers and QK-norm inside attention and models: exact on every path, saved with every head."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hf_semfocus import SemFocusModel, parse_mask
from hf_semfocus.analysis import capture_scores
from hf_semfocus.attention import choose_path, reference_attention, sparse_attention
from hf_semfocus.model import attention_sparse
from hf_semfocus.model.modeling_semfocus import QKNorm
from hf_semfocus.model.sparse_normalizers import NORMALIZERS

from .contract import HEADS, batch, gradients, labelled, loss_of, make, same_tensors
from .test_attention import qkv, separated
from .test_masks import KINDS, SPECS, draw_valid, state_of

SHARP = {"normalizer": "sparsemax", "qk_norm": True, "qk_norm_scale": 2.0}
OTHERS = [name for name in NORMALIZERS if name != "softmax"]
others = pytest.mark.parametrize("normalizer", OTHERS)


def results(attend, tensors, *arguments, **options):
    output, weights = attend(*tensors, *arguments, return_weights=True, **options)
    return [output, weights, *torch.autograd.grad(output.sin().sum(), tensors)]


@others
@pytest.mark.parametrize("spec", SPECS)
def test_every_path_equals_the_reference_and_weights_are_the_normalizers(spec, normalizer, monkeypatch):
    monkeypatch.setitem(attention_sparse.CHUNK_SCORES, "cpu", 4)
    tensors = [tensor.requires_grad_() for tensor in qkv(2, 4, 6, 9, groups=2)]
    state = state_of(spec, 2, 3)
    for kind in KINDS:
        valid = draw_valid(kind, 2, 6, 9, torch.Generator().manual_seed(1))
        options = {"scale": 2.0, "mask_state": state, "normalizer": normalizer}
        reference = results(reference_attention, tensors, spec, valid, **options)
        for path in (None, "masked", "chunked"):
            ours = results(sparse_attention, tensors, spec, valid, path=path, **options)
            torch.testing.assert_close(ours, reference, rtol=0, atol=1e-12)
        keys = tensors[1].repeat_interleave(2, 1)
        scores = 2 * tensors[0] @ keys.transpose(-1, -2)
        keep = parse_mask(spec)(scores, valid, *tensors[:2], state=state)
        torch.testing.assert_close(reference[1], NORMALIZERS[normalizer](scores, keep))
        sums = reference[1].sum(-1)
        torch.testing.assert_close(sums, keep.any(-1).double())


@others
@pytest.mark.parametrize("attend", [reference_attention, sparse_attention])
@pytest.mark.parametrize("spec", ["full", "topk:3", "banded:3", "topp:0.6+sink:1"])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_gradients_are_those_of_finite_differences(attend, normalizer, spec, dropout):
    valid = torch.tensor([[True, True, False, True], [True] * 4, [False] * 4, [False, True, True, True]])[None, None]

    def function(*tensors):
        torch.manual_seed(3)  # the same weights are dropped every time
        return attend(*tensors, spec, valid, dropout=dropout, normalizer=normalizer)

    assert torch.autograd.gradcheck(function, separated(0), atol=1e-7)


def test_paths_of_softmax_alone_are_neither_chosen_nor_taken():
    for spec, length in (("full", 40), ("topk:5", 600), ("banded:5", 2048)):
        paths = {choose_path(parse_mask(spec), 1, 1, length, length, normalizer=name) for name in NORMALIZERS}
        assert len(paths) == 2
        assert choose_path(parse_mask(spec), 1, 1, length, length, normalizer="sparsemax") == "masked"
    assert choose_path(parse_mask("full"), 100, 1, 600, 600, normalizer="entmax15") == "chunked"
    for path in ("dense", "tiles", "lists"):
        with pytest.raises(ValueError, match=f"normalizer 'sparsemax' cannot take the path '{path}'"):
            sparse_attention(*qkv(), "full", path=path, normalizer="sparsemax")
    for attend in (reference_attention, sparse_attention):
        with pytest.raises(ValueError, match="unknown normalizer 'entmax'; allowed: softmax, entmax15, sparsemax"):
            attend(*qkv(), "full", normalizer="entmax")


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_a_layer_attends_by_torchs_norm_of_queries_and_keys(normalizer):
    """The layer's equation written with `nn.RMSNorm`, and the scores that `capture_scores` sees."""
    model = make(SemFocusModel, "topk:3", **SHARP | {"normalizer": normalizer}).double()
    layer = model.encoder.layers[0].attention
    assert isinstance(layer.qk_norm, QKNorm)
    with torch.no_grad():
        layer.qk_norm.query_weight.copy_(torch.arange(1.0, 9) / 4)
    states = torch.randn(2, 5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    split = (
        F.rms_norm(linear(states).unflatten(-1, (2, 8)).transpose(1, 2), (8,), weight, 1e-6)
        for linear, weight in ((layer.query, layer.qk_norm.query_weight), (layer.key, layer.qk_norm.key_weight))
    )
    query, key = split
    scores = query @ key.transpose(-1, -2) / 8**0.5
    weights = NORMALIZERS[normalizer](scores, parse_mask("topk:3")(scores))
    torch.testing.assert_close(layer(states, output_attentions=True)[1], weights)
    torch.testing.assert_close(layer.scores(states), scores)
    inputs = batch((5, 5))
    seen = capture_scores(model, inputs)
    real = model(**inputs, output_attentions=True).attentions
    for captured, attention in zip(seen, real, strict=True):
        torch.testing.assert_close(NORMALIZERS[normalizer](captured.scores, captured.keep), attention)


def test_qk_norm_starts_at_its_scale_and_draws_nothing():
    plain, normed = make(SemFocusModel), make(SemFocusModel, qk_norm=True, qk_norm_scale=4.0)
    state = normed.state_dict()
    added = {name: tensor for name, tensor in state.items() if "qk_norm" in name}
    assert len(added) == 4
    assert all((tensor == 2).all() for tensor in added.values())
    assert same_tensors({name: state[name] for name in state if name not in added}, plain.state_dict())
    with torch.device("meta"):
        empty = SemFocusModel(normed.config)
    empty.to_empty(device="cpu")
    empty.initialize_weights()
    assert (empty.encoder.layers[1].attention.qk_norm.key_weight == 2).all()


@pytest.mark.parametrize("implementation", ["semfocus", "eager"])
@pytest.mark.parametrize("fields", [{"qk_norm": True, "normalizer": "entmax15"}, SHARP], ids=["entmax15", "sparsemax"])
def test_gradients_of_a_models_parameters_are_those_of_finite_differences(fields, implementation):
    model = make(SemFocusModel, "topk:3", num_hidden_layers=1, hidden_act="gelu", **fields).double()
    model.set_attn_implementation(implementation)
    attention, inputs = model.encoder.layers[0].attention, batch((5, 3))
    names = ("qk_norm.query_weight", "qk_norm.key_weight", "key.bias")
    owners = [(attention.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in names]

    def loss(*values):
        for (owner, name), value in zip(owners, values, strict=True):
            delattr(owner, name)
            setattr(owner, name, value)
        return loss_of(model, inputs)

    start = [getattr(owner, name).detach().clone().requires_grad_() for owner, name in owners]
    for owner, name in owners:
        owner._parameters.pop(name)
        setattr(owner, name, nn.Parameter(torch.zeros(())))
    assert torch.autograd.gradcheck(loss, start)


def test_it_compiles_to_one_graph_at_two_lengths():
    torch._dynamo.reset()
    model = make(HEADS[0], num_hidden_layers=1, **SHARP).train()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for lengths in ((9, 6, 1), (12, 4)):
        inputs = labelled(HEADS[0], batch(lengths))
        loss, grads = gradients(model, inputs)
        model.zero_grad()
        same = loss_of(compiled, inputs)
        same.backward()
        torch.testing.assert_close(same, loss)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad, grads[name], rtol=0, atol=1e-5, msg=name)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_autocast_and_low_precision(normalizer):
    tensors = [tensor.float() for tensor in qkv(1, 2, 20, 20, 16)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = sparse_attention(*tensors, "topk:5", normalizer=normalizer)
        torch.testing.assert_close(ours, reference_attention(*tensors, "topk:5", normalizer=normalizer))
    half = make(SemFocusModel, **SHARP | {"normalizer": normalizer}).to(torch.bfloat16)
    loss, grads = gradients(half, batch())
    assert loss.isfinite()
    assert all(grad.isfinite().all() for grad in grads.values() if grad is not None)
