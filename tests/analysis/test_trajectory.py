"""The loss's change along a path: steps whose length is known, and weights that are left as they were."""

import math

import pytest
import torch

from hf_semfocus.analysis import snapshot, trajectory

from .test_capture import make_batch, make_model
from .test_lipschitz import Loss


def test_a_step_by_hand():
    model = Loss(lambda theta, x: theta @ x, 2, 1)
    batch = {"x": torch.tensor([1.0, 2.0, 3.0]).double()}
    start = snapshot(model, batch)
    with torch.no_grad():
        model.a += torch.tensor([3.0, 0.0])
        model.b += 4.0
        model.frozen += 100.0
    # The loss rises by 3·1 + 4·3, over a way of length 5; what is not trained is no part of θ.
    found = trajectory(start, model, model(**batch).loss.item())
    assert found == {"step_norm": pytest.approx(5.0), "trajectory_ratio": pytest.approx(3.0)}
    assert trajectory(start, model, start.loss - 10)["trajectory_ratio"] == pytest.approx(2.0)


def test_a_model_that_has_not_moved_has_no_ratio():
    model = Loss(lambda theta, x: theta.sum(), 2, 3)
    assert trajectory(snapshot(model, {"x": None}), model, 7.0) == {"step_norm": 0.0}


def test_a_snapshot_is_a_copy_with_the_loss_of_evaluation():
    model = make_model("topk:3", hidden_dropout=0.5).train()
    batch = make_batch() | {"labels": torch.tensor([0, 1, 0, 1])}
    before, state = [value.detach().clone() for value in model.parameters()], torch.get_rng_state()
    start = snapshot(model, batch)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(2)
    assert all(map(torch.equal, start.parameters, before))
    size = math.sqrt(sum(value.double().pow(2).sum() for value in before))
    assert trajectory(start, model, start.loss + 1)["step_norm"] == pytest.approx(size)
    model.load_state_dict(dict(zip(dict(model.named_parameters()), before, strict=True)), strict=False)
    with torch.no_grad():
        assert start.loss == pytest.approx(model.eval()(**batch).loss.item(), rel=1e-6)
    assert snapshot(model, batch, loss=3.0).loss == 3.0
