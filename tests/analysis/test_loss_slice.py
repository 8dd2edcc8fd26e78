"""Slices of the loss: a loss whose slopes are known, a model's own losses, and nothing left changed."""

import copy
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hf_semfocus.analysis import LossSlice, loss_slice

from .test_capture import make_batch, make_model


class Linear(torch.nn.Module):
    """loss = c · θ: its slope is the same everywhere."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.first = torch.nn.Parameter(torch.randn(4, 3, generator=generator, dtype=torch.float64))
        self.second = torch.nn.Parameter(5 * torch.randn(7, generator=generator, dtype=torch.float64))
        self.fixed = torch.nn.Parameter(torch.ones(2, dtype=torch.float64), requires_grad=False)

    def forward(self, labels):
        return SimpleNamespace(loss=2 * self.first.sum() - self.second.sum() + self.fixed.sum())


def test_a_linear_loss_has_one_slope_a_direction():
    model = Linear()
    drawn = torch.Generator().manual_seed(0)
    slopes = []
    for _ in range(2):
        slope = 0.0
        for value, factor in ((model.first, 2), (model.second, -1)):
            part = torch.randn(value.shape, generator=drawn).numpy().astype(np.float64)
            part *= np.linalg.norm(value.detach().numpy()) / np.linalg.norm(part)
            assert np.linalg.norm(part) == pytest.approx(value.norm().item())
            slope += factor * part.sum()
        slopes.append(slope)
    found = loss_slice(model, [{"labels": torch.zeros(1)}], torch.Generator().manual_seed(0), size=5)
    middle = model(None).loss.item()
    for row, first in enumerate((-1, -0.5, 0, 0.5, 1)):
        for column, second in enumerate((-1, -0.5, 0, 0.5, 1)):
            assert found.losses[row, column].item() == pytest.approx(
                middle + first * slopes[0] + second * slopes[1], abs=1e-5
            )
    expected = sorted(map(abs, slopes))
    assert found.slopes(1.0).tolist() == pytest.approx([expected[0]] * 20 + [expected[1]] * 20, rel=1e-4)
    assert len(found.slopes(0.5)) == 12
    assert len(found.slopes(0.4)) == 0
    summary = found.slope_percentiles()
    assert summary["half_widths"] == [0.5, 0.7, 1.0]
    assert summary["slopes"][0] == pytest.approx([sum(expected) / 2, *[expected[1]] * 3], rel=1e-4)


def test_percentiles_by_hand_and_losses_that_are_not_finite():
    losses = torch.tensor([[0.0, 1.0, 3.0], [0.0, 0.0, math.inf], [4.0, 0.0, 0.0]], dtype=torch.float64)
    found = LossSlice(torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64), losses)
    # rows: 1, 2 | 0, ∞ | 4, 0; columns: 0, 4 | 1, 0 | ∞, ∞
    assert found.slopes(1.0).tolist() == [0, 0, 0, 0, 1, 1, 2, 4, 4]
    assert found.slope_percentiles()["slopes"] == [[1, 2, 4, 4]]


def test_the_losses_are_those_of_a_model_whose_weights_were_moved():
    model = make_model("topk:3", hidden_dropout=0.3).train()
    inputs = make_batch(rows=5, padded=False)
    inputs["labels"] = torch.tensor([0, 1, 1, 0, 1])
    parts = [{name: value[rows] for name, value in inputs.items()} for rows in (slice(0, 2), slice(2, 5))]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = loss_slice(model, parts, torch.Generator().manual_seed(1), size=3)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    generator = torch.Generator().manual_seed(1)
    directions = []
    for _ in range(2):
        drawn = [torch.randn(value.shape, generator=generator) for value in model.parameters()]
        directions.append(
            [part * (value.norm() / part.norm()) for part, value in zip(drawn, model.parameters(), strict=True)]
        )
    for row, column in ((1, 1), (0, 2), (2, 1)):
        moved = copy.deepcopy(model).eval()
        with torch.no_grad():
            for value, first, second in zip(moved.parameters(), *directions, strict=True):
                value += (row - 1) * first + (column - 1) * second
            assert found.losses[row, column].item() == pytest.approx(moved(**inputs).loss.item(), rel=1e-4)
    again = loss_slice(model, parts, torch.Generator().manual_seed(1), size=3)
    assert torch.equal(again.losses, found.losses)


def test_bad_sizes():
    model = make_model()
    with pytest.raises(ValueError, match="1 points a side"):
        loss_slice(model, [make_batch()], torch.Generator(), size=1)
    with pytest.raises(ValueError, match="0 batches"):
        loss_slice(model, [], torch.Generator())
