"""Lipschitz estimates: losses whose gradients are known, and a model that is as it was afterwards."""

import math
from types import SimpleNamespace

import pytest
import torch

from hf_semfocus.analysis import lipschitz

from .test_capture import make_batch, make_model


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


class Loss(torch.nn.Module):
    """A loss of two parameter tensors, θ = (a, b); a third is not trained."""

    def __init__(self, loss, *sizes):
        super().__init__()
        for name, size, seed in zip("ab", sizes, (1, 2), strict=True):
            self.register_parameter(name, torch.nn.Parameter(torch.randn(size, generator=seeded(seed)).double()))
        self.frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
        self.loss = loss

    def forward(self, x):
        return SimpleNamespace(loss=self.loss(torch.cat([self.a, self.b]), x))


def test_a_linear_loss_by_hand():
    model = Loss(lambda theta, x: theta @ x, 2, 3)
    slopes = [torch.tensor([3.0, 0, 4, 0, 0]).double(), torch.tensor([0, 0, 0, 0, 2.0]).double()]
    found = lipschitz(model, [{"x": slope} for slope in slopes], seeded(), directions=5)
    assert found.gradient_norms.tolist() == pytest.approx([5.0, 2.0])
    assert found.ratios.shape == (3, 5, 2)
    theta = torch.cat([model.a, model.b]).detach()
    assert found.losses.tolist() == pytest.approx([(theta @ slope).item() for slope in slopes])
    assert found.parameter_norm == pytest.approx(theta.norm().item())
    generator = seeded()
    for number in range(5):
        drawn = torch.cat([torch.randn(size, generator=generator, dtype=torch.float64) for size in (2, 3)])
        unit = drawn / drawn.norm()
        for radius in range(3):
            assert found.ratios[radius, number].tolist() == pytest.approx([abs(unit @ s).item() for s in slopes])


def test_a_quadratic_loss_by_hand():
    model = Loss(lambda theta, x: theta.pow(2).sum() / 2, 40, 60)
    radii = (0.01, 0.5, 2.0)
    found = lipschitz(model, [{"x": None}], seeded(3), radii=radii, directions=2)
    theta = torch.cat([model.a, model.b]).detach()
    assert found.gradient_norms.item() == pytest.approx(theta.norm().item())
    generator = seeded(3)
    for number in range(2):
        drawn = torch.cat([torch.randn(size, generator=generator, dtype=torch.float64) for size in (40, 60)])
        cosine = (drawn @ theta / drawn.norm() / theta.norm()).item()
        # (‖θ + r‖θ‖u‖² − ‖θ‖²) / 2 = ‖θ‖² (r cos + r²/2), over r‖θ‖
        expected = [theta.norm().item() * abs(cosine + radius / 2) for radius in radii]
        assert found.ratios[:, number, 0].tolist() == pytest.approx(expected)


def test_small_steps_of_a_model_follow_its_gradient():
    model = make_model("topk:3").double()
    batch = make_batch() | {"labels": torch.tensor([0, 1, 0, 1])}
    found = lipschitz(model, [batch], seeded(), radii=[1e-6], directions=4)
    gradients = torch.autograd.grad(model.eval()(**batch).loss, list(model.parameters()))
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    assert found.gradient_norms.item() == pytest.approx(flat.norm().item())
    generator = seeded()
    for number in range(4):
        drawn = torch.cat(
            [torch.randn(g.shape, generator=generator, dtype=torch.float64).flatten() for g in gradients]
        )
        assert found.ratios[0, number, 0].item() == pytest.approx(abs(drawn @ flat / drawn.norm()).item(), rel=1e-3)


def test_the_model_is_restored_bit_for_bit_and_the_result_repeats():
    model = make_model("topk:3", hidden_dropout=0.5).train()
    model.model.encoder.layers[1].eval()
    modes = [module.training for module in model.modules()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batches = [
        make_batch() | {"labels": torch.tensor([0, 1, 0, 1])},
        {"input_ids": torch.ones(1, 4).long(), "labels": torch.tensor([1])},
    ]
    state, told = torch.get_rng_state(), []
    first = lipschitz(model, batches, seeded(), progress=told.append)
    assert torch.equal(torch.get_rng_state(), state)
    assert told[-1] == 1
    assert told == sorted(told)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    again = lipschitz(model, batches, seeded())
    assert torch.equal(first.ratios, again.ratios)
    assert torch.equal(first.gradient_norms, again.gradient_norms)
    assert not torch.equal(first.ratios, lipschitz(model, batches, seeded(1)).ratios)


def test_it_is_restored_also_when_a_forward_fails():
    def loss(theta, x):
        if (theta - start).norm() > 0.05 * start.norm():
            raise RuntimeError("too far")
        return theta.sum()

    model = Loss(loss, 2, 3)
    start = torch.cat([model.a, model.b]).detach().clone()
    with pytest.raises(RuntimeError, match="too far"):
        lipschitz(model, [{"x": None}], seeded())
    assert torch.equal(torch.cat([model.a, model.b]), start)


def test_infinite_losses_are_not_hidden():
    model = Loss(lambda theta, x: theta.sum() * math.inf, 2, 3)
    found = lipschitz(model, [{"x": None}], seeded(), directions=1)
    assert not found.losses.isfinite().any()
    assert not found.ratios.isfinite().any()


@pytest.mark.parametrize(
    ("batches", "options"),
    [([], {}), ([{"x": None}], {"radii": [0.0]}), ([{"x": None}], {"directions": 0}), ([{"x": None}], {"radii": []})],
)
def test_nothing_to_measure_is_refused(batches, options):
    with pytest.raises(ValueError, match="allowed: at least one of each"):
        lipschitz(Loss(lambda theta, x: theta.sum(), 2, 3), batches, seeded(), **options)


def test_a_batch_without_labels_is_refused():
    with pytest.raises(ValueError, match="gives no loss"):
        lipschitz(make_model(), [make_batch()], seeded())
