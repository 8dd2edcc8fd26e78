"""Whether the theory's predictions held, from made-up runs whose answer is known."""

import itertools
import math
from pathlib import Path

import pytest

from hf_semfocus.comparison.theory import predictions
from hf_semfocus.report.theory import sentences, table
from hf_semfocus.schema import Epoch, RunResult, SpecRecord
from hf_semfocus.summary_schema import SpeedUpEntry, Summary
from hf_semfocus.training.run_files import Run

TASKS = [f"task_{index}" for index in range(7)]
MASKS = ["full", "topk:1", "topk:5", "banded:5"]


def run(task, mask, seed, epochs, ratio, budget=100, reached=True, gradient=1.0):
    """A run that gets there in its last epoch, with the dispersion ratio and gradients given."""
    trained = epochs if reached else budget
    history = [
        Epoch(
            epoch=epoch,
            train_accuracy=0.99 if reached and epoch == trained else 0.5,
            heldout_accuracy=0.9,
            train_loss=1.0 - epoch / (2 * trained),
            train_seconds=epoch,
            seconds=epoch,
            analysis_gradient_norm=gradient * epoch,
            **({} if ratio is None else {"analysis_dispersion_ratio": ratio}),
            analysis_dispersion_mask_mean=2.0,
        )
        for epoch in range(1, trained + 1)
    ]
    spec = {"task": task, "mask": mask, "seed": seed, "training": {"tau": 0.95, "heldout_tau": 0.95, "epochs": budget}}
    start = {"analysis_gradient_norm": gradient}
    result = RunResult(status="reached" if reached else "censored", initial_analysis=start)
    return Run(SpecRecord.model_validate(spec), Path("."), history, result)


def entries(speedups):
    return [
        SpeedUpEntry.model_construct(task=task, mask=mask, quantity="train", restricted_mean_ratio=value)
        for (task, mask), value in speedups.items()
    ]


def made(sign, tasks=TASKS):
    """Speed-up falls (sign −1) or rises (+1) with the dispersion ratio, in every task and mask."""
    runs, speedups = [], {}
    for number, (task, mask) in enumerate(itertools.product(tasks, MASKS)):
        ratio = 1.0 if mask == "full" else 0.1 + 0.03 * number
        runs += [run(task, mask, seed, 20, ratio, gradient=2.0 if mask == "full" else 1.0) for seed in (0, 1)]
        if mask != "full":
            speedups[task, mask] = math.exp(sign * ratio)
    return predictions(runs, "full", entries(speedups))


def of(found, quantity):
    return next(entry for entry in found["correlations"] if entry["quantity"] == quantity)


@pytest.mark.parametrize(("sign", "verdict"), [(-1, "as predicted"), (1, "against the prediction")])
def test_a_monotone_relation_is_found_with_its_direction(sign, verdict):
    entry = of(made(sign), "dispersion_ratio")
    assert entry["rho"] == pytest.approx(sign)
    assert (entry["low"], entry["high"]) == (pytest.approx(sign), pytest.approx(sign))
    assert (entry["n"], entry["tasks"], entry["verdict"]) == (21, 7, verdict)


def test_unrelated_numbers_leave_it_open():
    runs, speedups = [], {}
    for number, (task, mask) in enumerate(itertools.product(TASKS, MASKS)):
        runs.append(run(task, mask, 0, 20, 0.1 + 0.37 * number % 1))
        if mask != "full":
            speedups[task, mask] = 1 + 0.61 * number % 1
    entry = of(predictions(runs, "full", entries(speedups)), "dispersion_ratio")
    assert entry["low"] < 0 < entry["high"]
    assert entry["verdict"] == "open"


def test_fewer_than_six_tasks_give_points_and_no_correlation():
    found = made(-1, TASKS[:5])
    entry = of(found, "dispersion_ratio")
    assert (entry["rho"], entry["n"], entry["tasks"], entry["verdict"]) == (None, 15, 5, "too few tasks")
    assert len(found["units"]) == 20
    (_, text) = sentences(Summary.model_construct(analysis=found))[0]
    assert "not judged, 15 points on 5 tasks are too few" in text


def test_gradients_are_compared_at_the_same_weights_and_at_the_same_loss():
    found = made(-1)
    unit = next(unit for unit in found["units"] if unit["mask"] == "topk:5")
    assert unit["gradient_ratio_initial"] == 0.5
    # Both fall alike, with gradients of epoch and 2 · epoch.
    assert unit["gradient_ratio_matched"] == pytest.approx(0.5)
    uneven = [run("a", "full", 0, 10, 1.0), run("a", "topk:5", 0, 40, 0.5, reached=False)]
    assert predictions(uneven, "full", [])["units"][1]["gradient_ratio_matched"] == pytest.approx(10, rel=0.01)
    full = next(unit for unit in found["units"] if unit["mask"] == "full")
    assert (full["gradient_ratio_initial"], full["gradient_ratio_matched"]) == (1, 1)
    assert of(found, "trajectory_ratio_matched")["n"] == 0  # not in these histories
    # All ratios are equal: there is no rank to correlate.
    assert of(found, "gradient_ratio_initial")["verdict"] == "not defined"


def test_what_is_not_defined_stays_so():
    found = predictions([run("a", "full", 0, 5, None), run("a", "topk:1", 0, 5, 0.5)], "full", [])
    full, topk = found["units"]
    assert full["separation"] is None
    assert topk["speedup"] is None
    assert topk["trajectory_ratio_matched"] is None
    row = table(Summary.model_construct(analysis=found))[0]
    assert [row[name] for name in ("separation", "mask_stability", "trajectory_median")] == ["n/a"] * 3
    assert predictions([], "full", []) is None


def test_the_k_sweep_is_in_order_of_k():
    runs = [
        run("a", mask, 0, 5, 0.5)
        for mask in ("full", "topk:15", "topk:3", "topk:5+sink:1", "topk:5+not_registered:1", "banded:5")
    ]
    assert [unit["k"] for unit in predictions(runs, "full", [])["k_sweep"]] == [3, 15]
    assert predictions(runs[:2], "full", [])["k_sweep"] == []
