"""The paths of sparse attention against the reference: long inputs, chunks, ties, memory, the choice of a path."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_semfocus import MaskStrategy, SemFocusConfig, SemFocusModel, parameter, parse_mask, register_mask_strategy
from hf_semfocus.attention import choose_path, reference_attention, sparse_attention
from hf_semfocus.model import attention_lists, attention_sparse, mask_positions, mask_registry, topk
from hf_semfocus.model.mask_structure import Structure

from .test_attention import long_path, qkv
from .test_masks import KINDS, draw_valid, state_of

TILES = ["banded:1", "banded:7", "block:5", "block:40", "global:2", "sink:2", "strided:9", "banded:5+global:1"]
TILES += ["block:3+sink:2+strided:7", "banded:3+block:5", "block:4+block:6"]
LISTS = ["topk:1", "topk:5", "topk:40", "topk:5+sink:1", "topk:4+banded:3", "topk:3+global:2", "topk:2+topk:6"]
LISTS += ["random:3", "random:3;seed=1+banded:3", "topk:2+random:4", "random:2+random:2;seed=4+sink:1"]
SPECS = [*TILES, *LISTS, "full"]


def results(attend, tensors, spec, valid, **kwargs):
    """Output, weights and the three gradients."""
    output, weights = attend(*tensors, spec, valid, return_weights=True, **kwargs)
    return [output, weights, *torch.autograd.grad(output.sin().sum(), tensors)]


def equal(ours, reference, tolerance):
    return all(
        torch.allclose(one, other, atol=tolerance, rtol=tolerance) for one, other in zip(ours, reference, strict=True)
    )


# against the reference


@settings(max_examples=10, deadline=None)
@given(
    heads=st.sampled_from([(1, 1), (4, 2), (2, 1)]), queries=st.integers(1, 300), keys=st.integers(1, 300),
    same=st.booleans(), kind=st.sampled_from([*KINDS, "any"]), seed=st.integers(0, 2**31),
)  # fmt: skip
@pytest.mark.parametrize("spec", SPECS)
def test_long_paths_equal_the_reference(spec, heads, queries, keys, same, kind, seed):
    queries = keys if same else queries
    tensors = [tensor.requires_grad_() for tensor in qkv(2, heads[0], queries, keys, 4, groups=heads[1], seed=seed)]
    generator = torch.Generator().manual_seed(seed)
    if kind == "any":
        valid = torch.rand(2, heads[0], queries, keys, generator=generator) < 0.6
    else:
        valid = draw_valid(kind, 2, queries, keys, generator)
    reference = results(reference_attention, tensors, spec, valid)
    assert equal(results(sparse_attention, tensors, spec, valid, path=long_path(spec, keys)), reference, 1e-10)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_lower_precision_is_the_reference_up_to_its_rounding(spec, dtype, tolerance):
    # Whole numbers: no two scores are closer than rounding without being equal, so both must select the same keys.
    generator = torch.Generator().manual_seed(0)
    draws = (torch.randint(-3, 4, (2, 2, 70, 8), generator=generator) for _ in range(3))
    tensors = [draw.to(dtype).requires_grad_() for draw in draws]
    valid = draw_valid("right", 2, 70, 70, generator)
    ours = results(sparse_attention, tensors, spec, valid, path=long_path(spec, 70))
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    reference = results(reference_attention, exact, spec, valid)
    assert equal([tensor.double() for tensor in ours], reference, tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_where_rounding_decides_the_selection_is_valid(dtype):
    query, key, value = qkv(2, 2, 200, 200, 16, dtype=dtype)
    _, weights = sparse_attention(query, key, value, "topk:7", path="lists", return_weights=True)
    scores = query.double() @ key.double().transpose(-1, -2) / 4
    kept = weights > 0
    assert (kept.sum(-1) == 7).all()
    lowest = scores.masked_fill(~kept, math.inf).amin(-1)
    assert (lowest >= scores.masked_fill(kept, -math.inf).amax(-1) - 1e-4).all()


@pytest.mark.parametrize("spec", ["topk:5+sink:1", "topk:3", "banded:5+global:1", "random:3"])
def test_parts_of_queries_and_examples_make_no_difference(spec, monkeypatch):
    tensors = [tensor.requires_grad_() for tensor in qkv(3, 2, 37, 37, groups=1)]
    valid = draw_valid("left", 3, 37, 37, torch.Generator().manual_seed(1))
    whole = results(sparse_attention, tensors, spec, valid, path=long_path(spec, 37))
    monkeypatch.setattr(attention_lists, "FEWEST_QUERIES", 4)
    monkeypatch.setattr(mask_positions, "CHUNK_HASHES", 200)
    for size in (1, 500, 3000):
        monkeypatch.setitem(attention_lists.CHUNK_SCORES, "cpu", size)
        assert equal(results(sparse_attention, tensors, spec, valid, path=long_path(spec, 37)), whole, 1e-12)


@pytest.mark.parametrize(
    "spec",
    ["topk:4", "banded:3", "random:2+sink:1", "topp:0.6", "lsh:2;rounds=2", "topp:0.3+lsh:3", "sink:1+cluster:2"],
)
def test_the_chunked_path_equals_the_reference(spec, monkeypatch):
    monkeypatch.setitem(attention_sparse.CHUNK_SCORES, "cpu", 20)
    tensors = [tensor.requires_grad_() for tensor in qkv(2, 2, 23, 31)]
    for kind in KINDS:
        valid = draw_valid(kind, 2, 23, 31, torch.Generator().manual_seed(1))
        state = {"mask_state": state_of(spec, 2, 3)}
        output = sparse_attention(*tensors, spec, valid, path="chunked", **state)
        ours = [output, *torch.autograd.grad(output.sin().sum(), tensors)]
        reference = results(reference_attention, tensors, spec, valid, **state)
        assert equal(ours, [reference[0], *reference[2:]], 1e-12)


def test_scales_of_every_sign():
    query, key, value = qkv(1, 1, 30, 30)
    for scale in (-0.7, 0.0, 0.3):
        for spec in ("topk:4+sink:1", "banded:3"):
            ours = sparse_attention(query, key, value, spec, scale=scale, path=long_path(spec, 30))
            assert torch.allclose(ours, reference_attention(query, key, value, spec, scale=scale), atol=1e-12)


# the selection


def k_largest(row, k):
    """By the definition, of a list without NaN; −inf is nothing."""
    order = sorted(range(len(row)), key=lambda j: (-row[j], j))
    return {j for j in order[:k] if row[j] != -math.inf}


@settings(max_examples=100, deadline=None)
@given(
    keys=st.integers(1, 400), k=st.integers(1, 40), size=st.sampled_from([1, 2, 4, 8, 16]),
    distinct=st.sampled_from([1, 2, 5, 1000]), valid=st.floats(0, 1), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_exactly_k_are_selected_and_ties_go_to_the_lowest_index(keys, k, size, distinct, valid, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, distinct, (6, keys), generator=generator).float()
    scores[torch.rand(6, keys, generator=generator) > valid] = -math.inf
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topk, "group_size", lambda keys, k: size if keys // size > k else 1)
        values, indices = topk.select_topk(scores, k)
    assert values.shape == indices.shape == (6, min(k, keys))
    for row, value, index in zip(scores.tolist(), values.tolist(), indices.tolist(), strict=True):
        assert [row[j] for j in index] == value
        finite = [j for j in index if row[j] != -math.inf]
        assert len(finite) == len(set(finite))
        assert set(finite) == k_largest(row, k)


@pytest.mark.parametrize("keys", [50, 4096])
def test_a_row_with_nan_selects_one(keys):
    scores = torch.randn(3, keys)
    scores[1, keys // 2] = math.nan
    values, indices = topk.select_topk(scores, 5)
    assert values[1].isnan().any()
    assert keys // 2 in indices[1].tolist()
    assert not values[[0, 2]].isnan().any()


def test_equal_keys_are_tied_on_every_path():
    value = qkv(1, 1, 50, 50)[2]
    query, key = value.round(), torch.ones_like(value)
    first = value[:, :, :4].mean(2, keepdim=True).expand(-1, -1, 50, -1)
    for path in ("masked", "lists", "chunked"):
        assert torch.allclose(sparse_attention(query, key, value, "topk:4", path=path), first)


# structure


@pytest.mark.parametrize("spec", [spec for spec in TILES + LISTS if not parse_mask(spec).input_dependent])
@pytest.mark.parametrize("keys", [1, 7, 30])
def test_no_key_is_kept_outside_the_structure(spec, keys):
    structure = parse_mask(spec).structure(keys)
    kept = parse_mask(spec).on_positions(keys)
    drawn = [parse_mask(f"random:{r};seed={seed}").on_positions(keys) for r, seed in structure.random]
    for p in range(keys):
        for j in range(keys):
            near = structure.window is not None and abs(p - j) <= structure.window
            if structure.block is not None and p // structure.block != j // structure.block:
                near = False
            inside = near or p < structure.rows or any(j in columns for columns in structure.columns)
            assert inside or not kept[p, j] or any(mask[p, j] for mask in drawn)


def test_blocks_bound_a_union_only_if_nothing_reaches_across_them():
    block, band = Structure(window=3, block=4), Structure(window=1)
    assert (block | band).block is None
    assert (band | block).block is None
    assert (block | block).block == 4
    assert (block | Structure(columns=(range(2),))).block == 4
    assert (Structure(rows=2) | block).block == 4


def test_a_range_of_columns_may_end_far_behind_the_last_key():
    assert parse_mask("sink:10000000000").structure(3).column_positions(3) == [0, 1, 2]
    query, key, value = qkv(1, 1, 140, 140)
    ours = sparse_attention(query, key, value, "topk:2+sink:10000000000+strided:1000001")
    assert torch.allclose(ours, reference_attention(query, key, value, "full"), atol=1e-12)


def test_a_users_structure_makes_its_pattern_cheap():
    class Skip(MaskStrategy):
        """Keys at an even distance of at most w."""

        w: int = parameter(minimum=0)

        def pattern(self, query_positions, key_positions):
            distance = (query_positions - key_positions).abs()
            return (distance % 2 == 0) & (distance <= self.w)

        def structure(self, keys):
            return Structure(window=self.w)

    register_mask_strategy("skip_for_test")(Skip)
    try:
        tensors = [tensor.requires_grad_() for tensor in qkv(2, 2, 90, 90)]
        for spec in ("skip_for_test:4", "skip_for_test:4+sink:1", "skip_for_test:4+topk:2"):
            reference = results(reference_attention, tensors, spec, None)
            assert equal(results(sparse_attention, tensors, spec, None, path=long_path(spec, 90)), reference, 1e-10)
        assert choose_path(parse_mask("skip_for_test:4"), 1, 1, 2048, 2048) == "tiles"
    finally:
        del mask_registry._REGISTRY["skip_for_test"]


# the choice of a path


@pytest.mark.parametrize(
    ("spec", "batch", "length", "path"),
    [
        ("full", 100, 40, "dense"), ("topk:5", 100, 40, "masked"), ("banded:5", 100, 40, "masked"),
        ("topk:5", 16, 600, "lists"), ("topk:5+banded:3", 4, 2048, "lists"), ("random:5", 4, 2048, "lists"),
        ("banded:5", 4, 2048, "tiles"), ("block:5+global:1", 4, 2048, "tiles"), ("strided:64", 4, 2048, "tiles"),
        ("topk:1500", 1, 2048, "masked"), ("topk:1500", 16, 2048, "chunked"), ("topk:50", 4, 40, "masked"),
        ("topp:0.9", 4, 40, "masked"), ("lsh:4+topk:2", 16, 2048, "chunked"),
    ],
)  # fmt: skip
def test_paths_by_shape(spec, batch, length, path):
    assert choose_path(parse_mask(spec), batch, 1, length, length) == path


@pytest.mark.parametrize("spec", ["banded:5", "topk:5", "topk:5+sink:1", "full"])
def test_the_path_chosen_gives_the_references_result(spec):
    for length in (1, 2, 63, 64, 127, 128, 200):
        tensors = [tensor.requires_grad_() for tensor in qkv(1, 2, length, length)]
        assert equal(
            results(sparse_attention, tensors, spec, None), results(reference_attention, tensors, spec, None), 1e-10
        )


def test_a_strategy_that_looks_at_other_queries_is_never_cut():
    class Popular(MaskStrategy):
        """The keys with the largest scores over all queries."""

        k: int = parameter(minimum=1)

        def keep(self, scores, valid, context):
            total = scores.masked_fill(~valid, 0).sum(-2, keepdim=True)
            return (total >= total.topk(min(self.k, total.shape[-1])).values[..., -1:]) & valid

    mask = Popular(k=3)
    assert choose_path(mask, 64, 8, 2048, 2048) == "masked"
    tensors = [tensor.requires_grad_() for tensor in qkv(1, 1, 20, 20)]
    assert equal(
        results(sparse_attention, tensors, mask, None), results(reference_attention, tensors, mask, None), 1e-12
    )


def test_positions_of_a_callers_own_are_honoured():
    query, key, value = qkv(2, 1, 150, 150)
    default = torch.arange(150)
    reversed_ = default.flip(0)
    plain = sparse_attention(query, key, value, "banded:5", path="tiles")
    assert torch.equal(plain, sparse_attention(query, key, value, "banded:5", None, None, 0.0, default, default))
    ours = sparse_attention(query, key, value, "banded:5", None, None, 0.0, default, reversed_)
    assert torch.allclose(
        ours, reference_attention(query, key, value, "banded:5", None, None, 0.0, default, reversed_)
    )
    assert not torch.allclose(ours, plain)
    with pytest.raises(ValueError, match="cannot take the path 'tiles'"):
        sparse_attention(query, key, value, "banded:5", None, None, 0.0, default, reversed_, path="tiles")
    # Far from the start of the text nothing is one of the first ones, which attend to all and are attended by all.
    far = [tensor[:, :, :4] for tensor in (query, key, value)]
    positions = {"query_positions": default[50:54], "key_positions": default[50:54]}
    ours, reference = (attend(*far, "global:4", **positions) for attend in (sparse_attention, reference_attention))
    assert torch.allclose(ours, reference)


@pytest.mark.parametrize(
    ("spec", "path"), [("topk:3", "tiles"), ("banded:3", "lists"), ("full", "tiles"), ("topk:3", "dense")]
)
def test_a_path_that_a_mask_cannot_take_is_refused(spec, path):
    with pytest.raises(ValueError, match=f"'{spec}' cannot take the path '{path}'"):
        sparse_attention(*qkv(), spec, path=path)


# errors


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"groups": 2, "heads": 3}, r"multiple.*\(2, 3, 5, 3\).*\(2, 2, 5, 3\)"),
        ({"spec": "topk:0"}, "topk.*k, an integer >= 1; got 0"),
        ({"path": "fast"}, "path 'fast'.*dense, masked, chunked, tiles, lists"),
        ({"valid": torch.ones(3, 3, dtype=torch.bool)}, r"valid \(3, 3\) does not broadcast to scores \(2, 2, 5, 5\)"),
        ({"valid": torch.ones(5)}, "valid must be boolean"),
        ({"dropout": 1.5}, "dropout.*1.5"),
        ({"dropout": -1}, "dropout must be a probability from 0 to 1, got -1"),
        ({"spec": "full", "dropout": 2}, "dropout must be a probability"),
        ({"dim": 0}, "head dim must be at least 1"),
        ({"scale": "x"}, "scale.*'x'"),
        ({"scale": math.nan}, "scale.*nan"),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(change, words):
    sizes = {name: change.pop(name) for name in ("groups", "heads", "dim") if name in change}
    with pytest.raises(ValueError, match=words):
        sparse_attention(*qkv(**sizes), change.pop("spec", "topk:2"), **change)


# cost


def saved_bytes(spec, length, path):
    """Bytes that the forward pass keeps for the backward pass, besides the inputs."""
    tensors = [tensor.requires_grad_() for tensor in qkv(1, 1, length, length, 8, dtype=torch.float32)]
    inputs = {tensor.untyped_storage().data_ptr() for tensor in tensors}
    kept = {}

    def pack(tensor):
        if tensor.untyped_storage().data_ptr() not in inputs:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = sparse_attention(*tensors, spec, path=path)
        output.sum()
    return sum(kept.values())


@pytest.mark.parametrize("spec", ["topk:5", "topk:5+sink:1", "banded:5", "block:5", "random:5", "banded:5+global:1"])
def test_what_is_saved_grows_with_the_length_and_not_with_its_square(spec):
    path = long_path(spec, 512)
    short, long = saved_bytes(spec, 512, path), saved_bytes(spec, 2048, path)
    assert 0 < long < 4.5 * short
    assert long < 2048 * 2048  # one byte a pair
    assert saved_bytes("topk:5", 2048, "masked") >= 4 * 2048 * 2048


# inside a model


@pytest.mark.parametrize("spec", ["topk:5", "topk:5+sink:1", "banded:5", "block:5", "banded:5+global:1", "random:4"])
def test_a_model_trains_on_long_inputs_as_with_the_reference(spec):
    gradients = []
    for implementation in ("semfocus", "eager"):
        torch.manual_seed(0)
        config = SemFocusConfig(mask=spec, hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
        model = SemFocusModel(config).double()
        model.set_attn_implementation(implementation)
        ids = torch.randint(1, 32, (2, 160), generator=torch.Generator().manual_seed(0))
        mask = torch.ones_like(ids)
        mask[0, :23] = 0
        states = model(ids, attention_mask=mask, output_attentions=True)
        mass = states.attentions[0].sum(-1).transpose(1, 2)[mask.bool()]
        assert torch.allclose(mass, torch.ones((), dtype=torch.double))
        states.last_hidden_state[mask.bool()].sin().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.allclose(one, other, atol=1e-9) for one, other in zip(*gradients, strict=True))


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_gives_the_same_gradients(reentrant):
    config = SemFocusConfig(hidden_size=16, num_hidden_layers=2, attention_dropout=0.3)
    ids = torch.randint(1, 32, (2, 150), generator=torch.Generator().manual_seed(0))
    gradients = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = SemFocusModel(config).train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        torch.manual_seed(1)
        model(ids).last_hidden_state.sin().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(*gradients, strict=True))


@pytest.mark.parametrize("spec", ["topk:5", "banded:5"])
def test_compiled_attention_equals_the_reference_at_two_lengths(spec):
    torch._dynamo.reset()
    compiled = torch.compile(lambda q, k, v: sparse_attention(q, k, v, spec), backend="aot_eager", fullgraph=True)
    for length in (140, 150):
        tensors = [tensor.requires_grad_() for tensor in qkv(1, 1, length, length)]
        output = compiled(*tensors)
        reference = reference_attention(*tensors, spec)
        assert torch.allclose(output, reference, atol=1e-10)
        ours = torch.autograd.grad(output.sin().sum(), tensors)
        assert equal(ours, torch.autograd.grad(reference.sin().sum(), tensors), 1e-10)


def test_autocast_does_not_round_the_selection():
    tensors = qkv(1, 2, 200, 200, 16, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for spec in ("topk:3", "banded:3"):
            assert torch.equal(sparse_attention(*tensors, spec), sparse_attention(*tensors, spec))
            reference = reference_attention(*tensors, spec)
            assert torch.allclose(sparse_attention(*tensors, spec), reference, atol=1e-5)


@pytest.mark.parametrize("spec", ["full", "banded:5", "topk:5", "topk:5+sink:1", "banded:5+global:1", "random:5"])
def test_shapes_without_numbers_at_lengths_of_every_path(spec):
    with torch.device("meta"):
        q, k, v = (torch.ones(2, 1, 300, 8, requires_grad=True) for _ in range(3))
        valid = torch.ones(2, 1, 1, 300, dtype=torch.bool)
        for positions in (None, torch.arange(300)):
            output = sparse_attention(q, k, v, spec, valid, query_positions=positions, key_positions=positions)
            assert output.is_meta
            assert output.shape == v.shape
        output.sum().backward()
