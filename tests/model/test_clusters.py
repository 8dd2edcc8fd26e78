"""What layers learn for `cluster`: running means by hand, once a pass, in training only; saved, shipped, and refused without a layer."""

import subprocess
import sys

import pytest
import torch

from hf_semfocus import SemFocusConfig, SemFocusModel, parse_mask, register_attention
from hf_semfocus.analysis.capture import capture_scores
from hf_semfocus.attention import reference_attention, sparse_attention
from hf_semfocus.model.mask_clusters import Centroids, nearest_centroid
from tests.integrations.any_models import bert


def tiny(mask="cluster:3;decay=0.5", seed=0, **fields):
    torch.manual_seed(seed)
    sizes = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2}
    return SemFocusModel(SemFocusConfig(mask=mask, **{**sizes, "num_attention_heads": 2, **fields}))


def batch(seed=0, rows=3, length=7):
    return torch.randint(1, 16, (rows, length), generator=torch.Generator().manual_seed(seed))


def centroids(model):
    return {name: tensor.clone() for name, tensor in model.named_buffers() if "centroids" in name}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# the running means


def by_hand(start=((1.0, 0.0), (0.0, 1.0)), decay=0.75):
    state = Centroids(heads=1, clusters=len(start), head_dim=2, decay=decay)
    for buffer in (state.centroids, state.next_centroids):
        buffer.copy_(torch.tensor([start]))
    return state


def test_a_step_by_hand():
    state = by_hand()
    query = torch.tensor([[[[10.0, 0.0], [0.6, 0.8]]]])  # the first centroid's; the second's
    key = torch.tensor([[[[3.0, 4.0], [0.8, 0.6]]]])  # the second's; the first's
    read = state.read()
    state.learn(read, query, key, None)
    assert torch.equal(state.centroids, torch.eye(2)[None])
    learnt = torch.tensor([[[0.75 + 0.25 * 0.9, 0.25 * 0.3], [0.25 * 0.6, 0.75 + 0.25 * 0.8]]])
    assert torch.allclose(state.next_centroids, learnt)
    assert torch.equal(read, torch.eye(2)[None])
    assert torch.allclose(state.eval().read(), torch.eye(2)[None])  # evaluation moves nothing on
    assert torch.allclose(state.train().read(), learnt)
    assert torch.allclose(state.eval().read(), learnt)


def test_padding_and_what_has_no_direction_are_not_counted():
    state = by_hand()
    key = torch.tensor([[[[2.0, 0.1], [0.0, 1.0], [torch.nan, 1.0], [torch.inf, 1.0], [0.0, 0.0]]]])
    state.learn(state.read(), key, key, torch.tensor([[True, False, True, True, True]]))
    unit = torch.tensor([2.0, 0.1]) / 4.01**0.5
    assert torch.allclose(state.next_centroids[0, 0], 0.75 * torch.tensor([1.0, 0.0]) + 0.25 * unit)
    before = state.next_centroids.clone()
    state.learn(state.read(), key, key, torch.zeros(1, 5, dtype=torch.bool))
    assert torch.equal(state.read(), before)


def test_the_first_empty_centroid_moves_to_the_farthest_vector():
    state = by_hand(start=((1.0, 0.0), (-1.0, -0.1), (-1.0, 0.0)))
    key = torch.tensor([[[[9.0, 0.0], [9.0, 2.0], [3.0, 4.0]]]])
    state.learn(state.read(), key, key[:, :, :2], None)
    assert torch.allclose(state.next_centroids[0, 1:], torch.tensor([[0.6, 0.8], [-1.0, 0.0]]))


def test_nearest_is_by_distance_and_the_first_of_equals():
    mu = torch.tensor([[[0.2, 0.0], [1.0, 1.0], [0.2, 0.0], [-1.0, 0.0]]])
    x = torch.tensor([[[[1.0, 0.0], [0.8, 0.6], [0.0, -1.0], [-1.0, 0.0]]]])
    distances = torch.cdist(x[0, 0], mu[0])
    assert nearest_centroid(x, mu)[0, 0].tolist() == [min(range(4), key=row.__getitem__) for row in distances.tolist()]


def test_query_heads_that_share_a_key_head_share_its_centroids():
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 4, 5, 3, generator=generator), torch.randn(2, 2, 5, 3, generator=generator)
    mask, grouped = parse_mask("cluster:3"), Centroids(2, 3, 3, 0.5)
    keep = mask(torch.zeros(2, 4, 5, 5), None, query, key, state=grouped.read())
    grouped.learn(grouped.read(), query, key, None)
    for g in range(2):
        alone = Centroids(1, 3, 3, 0.5)
        for buffer in (alone.centroids, alone.next_centroids):
            buffer.copy_(grouped.centroids[[g]])
        part = query[:, 2 * g : 2 * g + 2]
        one = mask(torch.zeros(2, 2, 5, 5), None, part, key[:, [g]], state=alone.read())
        assert torch.equal(keep[:, 2 * g : 2 * g + 2], one)
        alone.learn(alone.read(), part, key[:, [g]], None)
        assert torch.allclose(alone.next_centroids[0], grouped.next_centroids[g], atol=1e-6)


def test_centroids_find_groups_of_directions():
    generator = torch.Generator().manual_seed(0)
    groups = torch.eye(4)[:3]
    state = Centroids(1, 3, 4, 0.9)
    for _ in range(150):
        member = torch.randint(0, 3, (1, 1, 60), generator=generator)
        points = groups[member] + 0.05 * torch.randn(1, 1, 60, 4, generator=generator)
        state.learn(state.read(), points, points, None)
    used = nearest_centroid(groups[None, None], state.read())[0, 0]
    assert sorted(used.tolist()) == [0, 1, 2]
    assert ((state.read()[0, used] * groups).sum(-1) > 0.97).all()


# in a model


def test_training_moves_them_once_a_pass_and_evaluation_does_not():
    model = tiny().train()
    start = centroids(model)
    model(batch())
    first = centroids(model)
    assert all(torch.equal(first[name], start[name]) == ("next" not in name) for name in start)
    model.eval()(batch(1))
    assert same(centroids(model), first)
    model.train()(batch(1))
    second = centroids(model)
    for name in start:
        if "next" not in name:
            assert torch.equal(second[name], first[name.replace("centroids", "next_centroids")])


def test_padding_does_not_teach():
    learnt = []
    for filler in (3, 9):
        model = tiny(num_hidden_layers=1).train()
        ids, mask = batch(), torch.ones(3, 7, dtype=torch.long)
        mask[0, 5:], mask[2, :2] = 0, 0
        model(torch.where(mask.bool(), ids, filler), attention_mask=mask)
        learnt.append(centroids(model))
    assert same(*learnt)


@pytest.mark.parametrize("kind", [None, {"use_reentrant": True}, {"use_reentrant": False}])
def test_repeated_passes_learn_nothing_twice_and_see_what_they_saw(kind):
    """Two passes before one backward, which repeats both where layers are checkpointed; and a step after it."""
    found = []
    for checkpointing in (None, kind):
        model = tiny().train()
        if checkpointing is not None:
            model.gradient_checkpointing_enable(checkpointing)
        for _ in range(2):
            model.zero_grad()
            loss = sum(model(batch(seed)).last_hidden_state.sin().sum() for seed in (1, 2))
            loss.backward()
        found.append((centroids(model), [parameter.grad for parameter in model.parameters()]))
    assert same(found[0][0], found[1][0])
    assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(found[0][1], found[1][1], strict=True))
    assert any(grad.abs().sum() > 0 for grad in found[0][1])


def test_training_twice_gives_bitwise_the_same():
    runs = []
    for _ in range(2):
        model = tiny().train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for seed in range(3):
            optimizer.zero_grad()
            model(batch(seed)).last_hidden_state.square().sum().backward()
            optimizer.step()
        runs.append(model.state_dict())
    assert same(*runs)


def test_initial_weights_are_those_of_any_other_mask():
    ours, full = tiny().state_dict(), tiny(mask="full").state_dict()
    assert all(torch.equal(ours[name], full[name]) for name in full)


@pytest.mark.parametrize("implementation", ["semfocus", "eager"])
def test_every_layer_keeps_what_its_centroids_say(implementation):
    model = tiny().train()
    for seed in range(3):
        model(batch(seed))
    model.set_attn_implementation(implementation)
    model.eval()
    attentions = model(batch(), output_attentions=True).attentions
    for layer, weights, seen in zip(
        model.encoder.layers, attentions, capture_scores(model, {"input_ids": batch()}), strict=True
    ):
        assert torch.equal(weights > 0, seen.keep)
        assert 0 < seen.keep.sum() < seen.keep.numel()
        assert layer.attention.mask_state.decay == 0.5


def test_autocast_trains_with_clusters_in_full_precision():
    model = tiny().train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(batch()).last_hidden_state.float().square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)
    for name, tensor in centroids(model).items():
        assert tensor.dtype == torch.float32
        # A number that was rounded to bf16 has no bits beyond its eighth.
        assert "next" not in name or not torch.equal(tensor, tensor.bfloat16().float())


def test_compiled_training_learns_the_same():
    torch._dynamo.reset()
    plain, other = tiny().train(), tiny().train()
    compiled = torch.compile(other, backend="aot_eager")
    for seed in range(2):
        plain(batch(seed))
        compiled(batch(seed))
    for (name, one), two in zip(centroids(plain).items(), centroids(other).values(), strict=True):
        assert torch.allclose(one, two, atol=1e-6), name


# checkpoints


def trained(mask):
    model = tiny(mask).train()
    for seed in range(2):
        model(batch(seed))
    return model.eval()


@pytest.mark.parametrize("mask", ["cluster:3", "sink:1+cluster:3+cluster:2"])
def test_centroids_are_saved_and_training_goes_on_as_it_would_have(mask, tmp_path):
    model = trained(mask)
    model.save_pretrained(tmp_path)
    loaded, info = SemFocusModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert same(centroids(loaded), centroids(model))
    assert torch.equal(loaded.eval()(batch(5))[0], model(batch(5))[0])
    for one in (model, loaded):
        one.train()(batch(6))
    assert same(centroids(loaded), centroids(model))


def test_a_checkpoint_without_centroids_gets_those_that_training_starts_from(tmp_path):
    tiny("topk:2").save_pretrained(tmp_path)
    loaded = SemFocusModel.from_pretrained(tmp_path, mask="cluster:3")
    assert same(centroids(loaded), centroids(tiny("cluster:3")))


def test_low_precision_models_keep_them_in_fp32(tmp_path):
    trained("cluster:3").save_pretrained(tmp_path)
    loaded = SemFocusModel.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert loaded._keep_in_fp32_modules_strict == {"mask_state"}
    assert not SemFocusModel(SemFocusConfig(mask="topk:3"))._keep_in_fp32_modules_strict
    assert {tensor.dtype for tensor in centroids(loaded).values()} == {torch.float32}
    assert loaded(batch())[0].dtype == torch.bfloat16


# two processes

TWO = """
import sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from tests.model.test_clusters import batch, centroids, tiny
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
model = tiny().train()
wrapped = DistributedDataParallel(model)
for step in range(3):
    wrapped(batch(10 * step + rank)).last_hidden_state.square().sum().backward()
torch.save(centroids(model.eval()), f"{folder}/{rank}.pt")
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_evaluate_with_the_same_centroids(tmp_path):
    running = [subprocess.Popen([sys.executable, "-c", TWO, str(rank), str(tmp_path)]) for rank in range(2)]
    assert [process.wait(timeout=100) for process in running] == [0, 0]
    one, two = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    alone = tiny().train()
    for step in range(3):
        alone(batch(10 * step))
    for name, tensor in one.items():
        if "next" not in name:
            assert torch.equal(tensor, two[name])
            assert torch.allclose(tensor, centroids(alone)[name], atol=1e-6)  # the first process's share


# no layer


def test_without_a_layer_it_says_what_is_missing():
    tensors = [torch.randn(1, 2, 4, 3) for _ in range(3)]
    for attend in (sparse_attention, reference_attention):
        for mask in ("cluster:3", "topk:2+cluster:3"):
            with pytest.raises(ValueError, match=r"'cluster:3;decay=0\.999' needs an attention layer"):
                attend(*tensors, mask)
    with pytest.raises(ValueError, match=r"centroids for 1 key heads of size 5.*\(1, 2, 4, 3\)"):
        sparse_attention(*tensors, "cluster:3", mask_state=parse_mask("cluster:3").make_state(5, 1).read())
    with pytest.raises(ValueError, match="looks at queries and keys"):
        parse_mask("cluster:3")(torch.zeros(1, 1, 2, 2))


def test_other_models_are_told_the_same():
    model = bert()
    model.set_attn_implementation(register_attention("cluster:3"))
    with pytest.raises(ValueError, match="needs an attention layer that learns its centroids"):
        model(batch())
