"""The reference attention against loops over definitions; the training path against the reference."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_semfocus import MaskStrategy, attention, parse_mask
from hf_semfocus.model.attention_interface import (
    eager_attention_forward,
    expand_attention_mask,
    semfocus_attention_forward,
    semfocus_mask,
    split_attention_mask,
)

from . import oracle
from .test_masks import KINDS, SPECS, centroids_of, draw_valid, state_of

LOW_PRECISION = [torch.float16, torch.bfloat16]


def draw(shape, generator=None, dtype=torch.float64):
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def qkv(batch=2, heads=2, queries=5, keys=5, dim=3, dtype=torch.float64, groups=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    groups = groups or heads
    sizes = ((batch, heads, queries, dim), (batch, groups, keys, dim), (batch, groups, keys, dim))
    return [draw(size, generator, dtype) for size in sizes]


def layer_state(spec, key):
    """What a layer with these keys gives to the strategy."""
    return state_of(spec, key.shape[1], key.shape[-1])


def reference_attention(query, key, value, spec, *args, **kwargs):
    """The reference, as a layer calls it."""
    state = layer_state(spec, key)
    return attention.reference_attention(query, key, value, spec, *args, mask_state=state, **kwargs)


def masked(query, key, value, spec, *args, **kwargs):
    state = layer_state(spec, key)
    return attention.sparse_attention(query, key, value, spec, *args, path="masked", mask_state=state, **kwargs)


def sparse(query, key, value, spec, *args, **kwargs):
    """The path that long inputs take."""
    path, state = long_path(spec, key.shape[2]), layer_state(spec, key)
    return attention.sparse_attention(query, key, value, spec, *args, path=path, mask_state=state, **kwargs)


def long_path(spec, keys):
    known = parse_mask(spec).structure(keys)
    if known is None:
        return "chunked"
    return "dense" if known.rows >= keys else "lists" if known.selected or known.random else "tiles"


PATHS = {"reference": reference_attention, "masked": masked, "sparse": sparse}
all_paths = pytest.mark.parametrize("attend", PATHS.values(), ids=PATHS)


# against the definitions


@settings(max_examples=8, deadline=None)
@given(
    heads=st.sampled_from([(1, 1), (4, 2), (2, 2)]), queries=st.integers(1, 6), keys=st.integers(1, 6),
    kind=st.sampled_from(KINDS), seed=st.integers(0, 2**31),
)  # fmt: skip
@pytest.mark.parametrize("spec", SPECS)
def test_all_paths_equal_the_definition(spec, heads, queries, keys, kind, seed):
    query, key, value = qkv(2, heads[0], queries, keys, 3, groups=heads[1], seed=seed)
    valid = draw_valid(kind, 2, queries, keys, torch.Generator().manual_seed(seed))
    full = valid.expand(2, heads[0], queries, keys)
    output, weights = reference_attention(query, key, value, spec, valid, scale=0.7, return_weights=True)
    for b in range(2):
        places, key_places = oracle.positions(queries, full[b].flatten(0, 1).tolist())
        for h in range(heads[0]):
            g = h * heads[1] // heads[0]
            for i in range(queries):
                scores = [0.7 * math.fsum((query[b, h, i] * key[b, g, j]).tolist()) for j in range(keys)]
                kept = oracle.kept_by(
                    spec, scores, full[b, h, i].tolist(), places[i], key_places,
                    query[b, h, i].tolist(), key[b, g].tolist(), centroids_of(spec, layer_state(spec, key), g),
                )  # fmt: skip
                row, out = oracle.attend(scores, kept, value[b, g].tolist())
                assert torch.allclose(weights[b, h, i], torch.tensor(row, dtype=torch.float64), atol=1e-12)
                assert torch.allclose(output[b, h, i], torch.tensor(out, dtype=torch.float64), atol=1e-12)
    kept = parse_mask(spec)(scores_of(query, key, 0.7), valid, query, key, state=layer_state(spec, key))
    assert torch.equal(weights == 0, ~kept)
    for attend in (masked, sparse):
        assert torch.allclose(attend(query, key, value, spec, valid, scale=0.7), output, atol=1e-12)


def scores_of(query, key, scale):
    return query @ key.repeat_interleave(query.shape[1] // key.shape[1], 1).transpose(-1, -2) * scale


@all_paths
@pytest.mark.parametrize("keys", [1, 4, 7])
def test_topk_with_enough_keys_and_full_equal_dense_attention(attend, keys):
    query, key, value = qkv(queries=4, keys=keys)
    dense = F.scaled_dot_product_attention(query, key, value)
    for spec in ("full", f"topk:{keys}", "topk:99"):
        assert torch.allclose(attend(query, key, value, spec), dense, atol=1e-12)


@all_paths
@pytest.mark.parametrize("spec", ["topk:2", "topk:3+sink:1", "full", "topp:0.5", "lsh:2"])
def test_grouped_query_attention_equals_repeated_heads(attend, spec):
    query, key, value = qkv(heads=6, groups=2)
    repeated = [tensor[:, [0, 0, 0, 1, 1, 1]] for tensor in (key, value)]
    assert torch.allclose(attend(query, key, value, spec), attend(query, *repeated, spec), atol=1e-12)


@all_paths
def test_causal_validity_equals_each_prefix_alone(attend):
    query, key, value = qkv(queries=6, keys=6)
    causal = torch.ones(6, 6, dtype=torch.bool).tril()[None, None]
    for spec in ("topk:2", "banded:3", "full", "topk:2+sink:1", "topp:0.6", "lsh:2", "cluster:2"):
        whole = attend(query, key, value, spec, causal)
        for n in range(1, 7):
            last = attend(query[:, :, n - 1 : n], key[:, :, :n], value[:, :, :n], spec)
            assert torch.allclose(whole[:, :, n - 1 : n], last, atol=1e-12), (spec, n)


# gradients


@settings(max_examples=6, deadline=None)
@given(kind=st.sampled_from(KINDS), seed=st.integers(0, 2**31), groups=st.sampled_from([1, 2]))
@pytest.mark.parametrize("spec", SPECS)
def test_gradients_of_all_paths_agree(spec, kind, seed, groups):
    tensors = [tensor.requires_grad_() for tensor in qkv(2, 2, 4, 6, groups=groups, seed=seed)]
    valid = draw_valid(kind, 2, 4, 6, torch.Generator().manual_seed(seed))
    grads = []
    for attend in PATHS.values():
        output = attend(*tensors, spec, valid)
        grads.append(torch.autograd.grad(output.sin().sum(), tensors))
    for reference, *others in zip(*grads, strict=True):
        assert reference.isfinite().all()
        assert all(torch.allclose(reference, other, atol=1e-12) for other in others)


def separated(seed):
    """Inputs whose scores lie further apart than a finite difference moves them."""
    for attempt in range(100):
        tensors = qkv(1, 2, 4, 4, 2, seed=seed + 1000 * attempt)
        ordered = scores_of(*tensors[:2], 2**-0.5).sort(-1).values
        if ordered.diff(dim=-1).min() > 1e-3:
            return [tensor.requires_grad_() for tensor in tensors]
    raise AssertionError("no separated inputs")


@all_paths
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_gradients_equal_finite_differences(attend, spec, dropout):
    valid = torch.tensor([[True, True, False, True], [True] * 4, [False] * 4, [False, True, True, True]])[None, None]

    def function(*tensors):
        torch.manual_seed(3)  # the same weights are dropped every time
        return attend(*tensors, spec, valid, dropout=dropout)

    assert torch.autograd.gradcheck(function, separated(0), atol=1e-7)


@all_paths
def test_a_query_with_no_key_gives_zero_and_finite_zero_gradients(attend):
    tensors = [tensor.requires_grad_() for tensor in qkv()]
    valid = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    valid[0, :, 2] = False
    valid[1] = False
    for spec in SPECS:
        output = attend(*tensors, spec, valid)
        assert not output[0, :, 2].any()
        assert not output[1].any()
        grads = torch.autograd.grad(output.square().sum() + output.sum(), tensors)
        assert all(grad.isfinite().all() for grad in grads)
        assert not grads[0][0, :, 2].any()
        assert not any(grad[1].any() for grad in grads)


def test_no_gradient_flows_through_masked_scores():
    query, key, value = (tensor.requires_grad_() for tensor in qkv(1, 1, 1, 4))
    for attend in PATHS.values():
        keep = parse_mask("topk:2")(scores_of(query, key, 1.0))[0, 0, 0]
        grad_key, grad_value = torch.autograd.grad(attend(query, key, value, "topk:2").sum(), (key, value))
        assert not grad_key[0, 0, ~keep].any()
        assert not grad_value[0, 0, ~keep].any()
        assert grad_value[0, 0, keep].all()


def test_second_derivatives_exist_in_the_reference_and_are_refused_by_the_training_path():
    tensors = [tensor.requires_grad_() for tensor in qkv()]
    first = torch.autograd.grad(reference_attention(*tensors, "topk:2").sin().sum(), tensors, create_graph=True)
    assert torch.autograd.grad(sum(grad.square().sum() for grad in first), tensors)[0].abs().sum() > 0
    first = torch.autograd.grad(masked(*tensors, "topk:2").sin().sum(), tensors, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        sum(grad.square().sum() for grad in first).backward()


# precision


@all_paths
@pytest.mark.parametrize("dtype", LOW_PRECISION)
@pytest.mark.parametrize("spec", ["full", "topk:2", "banded:3", "random:2"])
def test_extreme_scores_stay_finite(attend, dtype, spec):
    query, key, value = qkv(1, 1, 4, 4, 2, dtype)
    # Scores of about ±30000, with gaps that only the lowest bits show.
    query = torch.full_like(query, 1.0)
    key = torch.tensor([[15000.0, 15000.0], [-15000.0, -15000.0], [15000.0, 14992.0], [0.0, 0.0]], dtype=dtype)
    key = key[None, None].contiguous()
    tensors = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
    for valid in (None, torch.tensor([True, True, True, False])):
        output = attend(*tensors, spec, valid, scale=1.0)
        assert output.dtype == dtype
        assert output.isfinite().all()
        assert all(grad.isfinite().all() for grad in torch.autograd.grad(output.sum(), tensors))


@all_paths
@pytest.mark.parametrize("dtype", LOW_PRECISION)
def test_selection_sees_scores_that_were_not_rounded(attend, dtype):
    # In bf16 and fp16 the scores 1000 and 1000.1 round to one number, and a rounded tie would go to key 0.
    query = torch.tensor([[[[1.0, 0.125]]]], dtype=dtype)
    key = torch.tensor([[[[1000.0, 0.0], [1000.0, 0.5]]]], dtype=dtype)
    value = torch.tensor([[[[1.0, 0.0], [0.0, 1.0]]]], dtype=dtype)
    assert attend(query, key, value, "topk:1", scale=1.0)[0, 0, 0].tolist() == [0.0, 1.0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        precise = [tensor.float() for tensor in (query, key, value)]
        assert attend(*precise, "topk:1", scale=1.0)[0, 0, 0].tolist() == [0.0, 1.0]


@all_paths
@pytest.mark.parametrize(
    ("spec", "dtype"), [(spec, [*LOW_PRECISION, torch.float32][i % 3]) for i, spec in enumerate(SPECS)]
)
def test_low_precision_is_fp64_up_to_its_own_rounding(attend, spec, dtype):
    low = qkv(dtype=dtype)
    exact = reference_attention(*[tensor.double() for tensor in low], spec)
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 2e-6}[dtype]
    assert torch.allclose(attend(*low, spec).double(), exact, atol=tolerance, rtol=tolerance)


@all_paths
def test_nan_and_infinity_stay_in_their_own_row(attend):
    for bad in (float("nan"), float("inf")):
        query, key, value = qkv(1, 1, 4, 4)
        clean = {spec: attend(query, key, value, spec) for spec in SPECS}
        query[0, 0, 2] = bad
        for spec in SPECS:
            output = attend(query, key, value, spec)
            assert torch.equal(output[0, 0, [0, 1, 3]], clean[spec][0, 0, [0, 1, 3]]), spec
        assert attend(query, key, value, "topk:2")[0, 0, 2].isnan().all()


@all_paths
def test_the_same_inputs_give_bitwise_the_same_results_in_deterministic_mode(attend):
    tensors = [tensor.requires_grad_() for tensor in qkv(dtype=torch.float32)]
    torch.use_deterministic_algorithms(True)
    try:
        for spec in SPECS:
            runs = []
            for _ in range(2):
                output = attend(*tensors, spec)
                runs.append([output, *torch.autograd.grad(output.sin().sum(), tensors)])
            assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))
    finally:
        torch.use_deterministic_algorithms(False)


# weights, dropout, bias, a mask known beforehand


@pytest.mark.parametrize("spec", SPECS)
def test_weights_come_beside_the_output_and_do_not_change_it(spec):
    query, key, value = qkv(dtype=torch.float32)
    output, weights = masked(query, key, value, spec, return_weights=True)
    assert torch.equal(masked(query, key, value, spec), output)
    reference = reference_attention(query, key, value, spec, return_weights=True)
    assert torch.allclose(weights, reference[1], atol=1e-6)
    assert torch.allclose(weights.sum(-1)[reference[1].any(-1)], torch.ones(()), atol=1e-6)


@all_paths
@pytest.mark.parametrize("spec", ["full", "topk:3", "banded:3"])
def test_dropout_keeps_the_mean_and_drops_its_share(attend, spec):
    query, key, _ = qkv(64, 4, 6, 6, dtype=torch.float32)
    value = torch.eye(6).expand(64, 4, 6, 6).contiguous()
    weights = attend(query, key, value, spec)
    torch.manual_seed(0)
    dropped = attend(query, key, value, spec, dropout=0.25)
    kept = weights > 0
    share = (dropped[kept] == 0).float().mean().item()
    assert abs(share - 0.25) < 0.02
    assert torch.allclose(dropped[kept & (dropped > 0)], weights[kept & (dropped > 0)] / 0.75, atol=1e-6)


def test_a_bias_takes_part_in_selection_and_softmax_and_has_a_gradient():
    query, key, value = qkv(1, 2, 3, 4)
    bias = torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    output, weights = reference_attention(query, key, value, "topk:2", bias=bias, return_weights=True)
    scores = scores_of(query, key, 3**-0.5) + bias
    keep = parse_mask("topk:2")(scores)
    by_hand = torch.softmax(scores.masked_fill(~keep, -torch.inf), -1)
    assert torch.allclose(weights, by_hand)
    assert torch.allclose(output, by_hand @ value)
    (grad,) = torch.autograd.grad(output.sin().sum(), bias)
    assert grad[keep].abs().sum() > 0
    assert not grad[~keep].any()


def test_a_mask_known_beforehand_is_used():
    query, key, value = qkv()
    keep = parse_mask("banded:3").on_positions(5)[None, None]
    assert torch.equal(masked(query, key, value, "full", keep=keep), masked(query, key, value, "banded:3"))


# errors


@all_paths
@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (((2, 3, 4, 5), (2, 2, 4, 5), (2, 2, 4, 5)), r"multiple.*\(2, 3, 4, 5\).*\(2, 2, 4, 5\)"),
        (((2, 2, 4, 5), (2, 2, 4, 6), (2, 2, 4, 6)), "head dim"),
        (((2, 2, 4, 5), (2, 2, 3, 5), (2, 2, 4, 5)), "key and value"),
        (((2, 2, 4, 5), (1, 2, 4, 5), (1, 2, 4, 5)), "batch sizes"),
        (((2, 4, 5), (2, 4, 5), (2, 4, 5)), "four dimensions"),
    ],
)
def test_shapes_that_do_not_fit_are_named(attend, shapes, words):
    with pytest.raises(ValueError, match=words):
        attend(*[torch.zeros(shape) for shape in shapes], "full")


@all_paths
def test_dtypes_may_not_be_mixed(attend):
    query, key, value = qkv(dtype=torch.float32)
    with pytest.raises(ValueError, match=r"float32.*bfloat16"):
        attend(query, key, value.bfloat16(), "topk:2")
    with pytest.raises(ValueError, match="topkk"):
        attend(query, key, value, "topkk:2")


# the functions that Transformers sees


class Host(torch.nn.Module):
    """An attention module as the interface functions see it."""

    def __init__(self, spec):
        super().__init__()
        self.mask_strategy = parse_mask(spec)


INTERFACES = [semfocus_attention_forward, eager_attention_forward]


@pytest.mark.parametrize("forward", INTERFACES)
@pytest.mark.parametrize("spec", SPECS)
def test_boolean_and_additive_masks_mean_the_same(forward, spec):
    query, key, value = qkv(dtype=torch.float32)
    state = layer_state(spec, key)
    causal = torch.ones(5, 5, dtype=torch.bool).tril()[None, None].repeat(2, 1, 1, 1)
    causal[1, ..., 0] = False
    output, weights = forward(Host(spec), query, key, value, causal, mask_state=state, output_attentions=True)
    expected = reference_attention(query, key, value, spec, causal).transpose(1, 2)
    assert torch.allclose(output, expected, atol=1e-6)
    assert not weights[~causal.expand_as(weights)].any()
    for lowest in (*(torch.finfo(dtype).min for dtype in [*LOW_PRECISION, torch.float32]), -math.inf):
        additive = torch.zeros(2, 1, 5, 5).masked_fill(~causal, lowest)
        other, other_weights = forward(
            Host(spec), query, key, value, additive, mask_state=state, output_attentions=True
        )
        assert torch.allclose(other, output, atol=1e-6)
        assert torch.equal(other_weights == 0, weights == 0)


@pytest.mark.parametrize("forward", INTERFACES)
def test_a_finite_bias_is_applied(forward):
    query, key, value = qkv(dtype=torch.float32)
    bias = torch.randn(1, 2, 5, 5)
    forbidden = bias.clone()
    forbidden[..., 0] = -math.inf
    output, _ = forward(Host("topk:2"), query, key, value, forbidden)
    valid = torch.ones(5, dtype=torch.bool)
    valid[0] = False
    expected = reference_attention(query, key, value, "topk:2", valid, bias=bias.masked_fill(~valid, 0))
    assert torch.allclose(output.transpose(1, 2), expected, atol=1e-6)
    assert not torch.allclose(output, forward(Host("topk:2"), query, key, value, valid[None, None, None])[0])


@pytest.mark.parametrize("forward", INTERFACES)
@pytest.mark.parametrize(
    "argument", [{"softcap": 5.0}, {"s_aux": torch.zeros(2)}, {"sliding_window": 4}, {"is_causal": True}]
)
def test_what_is_not_supported_is_refused(forward, argument):
    with pytest.raises(ValueError, match=next(iter(argument))):
        forward(Host("full"), *qkv(), None, **argument)


def test_a_module_without_a_strategy_is_refused():
    with pytest.raises(ValueError, match="Linear has no mask_strategy"):
        semfocus_attention_forward(torch.nn.Linear(1, 1), *qkv(), None)


def test_every_name_is_in_both_registries():
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    assert "semfocus" in ALL_ATTENTION_FUNCTIONS.valid_keys()
    assert "semfocus" in ALL_MASK_ATTENTION_FUNCTIONS.valid_keys()


def test_the_mask_builder_never_answers_none():
    mask = semfocus_mask(batch_size=2, q_length=3, kv_length=3, allow_is_causal_skip=True)
    assert torch.equal(mask, torch.ones(3, 3, dtype=torch.bool).tril().expand(2, 1, 3, 3))


@pytest.mark.parametrize(
    ("mask", "valid"),
    [
        (torch.tensor([[1, 1, 0]]), [True, True, False]),
        (torch.tensor([[True, True, False]]), [True, True, False]),
        (torch.tensor([[1.0, 1.0, 0.0]]), [True, True, False]),
        (torch.tensor([[0.0, 0.0, -math.inf]]), [True, True, False]),
        (torch.tensor([[0.0, 0.0, torch.finfo(torch.float32).min]]), [True, True, False]),
        (torch.tensor([[0.0, 0.0, 0.0]]), [True, True, True]),
        (torch.zeros(1, 3, dtype=torch.long), [False, False, False]),
    ],
)
def test_two_dimensional_masks(mask, valid):
    got, bias = split_attention_mask(expand_attention_mask(mask, 1, 3))
    assert got.flatten().tolist() == valid
    assert bias is None or not bias.any()


@pytest.mark.parametrize("shape", [(2, 4), (3, 3), (2, 3, 3), (2, 1, 3, 4), (2, 1, 2, 3), (3, 1, 3, 3)])
def test_masks_of_other_shapes_are_refused(shape):
    with pytest.raises(ValueError, match=r"attention_mask must have shape \(2, 3\)"):
        expand_attention_mask(torch.ones(shape), 2, 3)


def test_strategies_are_shared_not_copied():
    mask = parse_mask("topk:2")
    assert isinstance(mask, MaskStrategy)
    assert torch.equal(reference_attention(*qkv(), mask), reference_attention(*qkv(), "topk:2"))
