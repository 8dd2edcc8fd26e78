"""Run directories made by formula, with every outcome that a run can have. No training."""

import json
import math
from pathlib import Path

import numpy as np

from hf_semfocus.experiments.spec import mask_slug

CHANCE = {
    "even_pairs": 0.5, "cycle_navigation": 0.2, "missing_duplicate_string": 0.5, "parity_check": 0.5, "solve_equation": 0.2,
    "modular_arithmetic_brackets": 0.2, "stack_manipulation": 0.5,
}  # fmt: skip
REACH = {
    "full": {"left": 19, "right": 19, "sees_all": True, "text": "all"},
    "topk:5": {"left": 19, "right": 19, "sees_all": True, "text": "all"},
    "banded:5": {"left": 6, "right": 6, "sees_all": False, "text": "±6 of 20 positions"},
    "block:5": {"left": 4, "right": 4, "sees_all": False, "text": "own block of 5"},
}
QUICKSTART = {
    "even_pairs": {"full": [27, 15], "topk:5": [8, 6], "banded:5": [None, None], "block:5": [None, None]},
}
EVERYTHING = {
    "even_pairs": {
        "full": [27, 15, 33],
        "banded:5": [None, None, None],
        "block:5": [None, "diverged:3", None],
        "topk:5": [8, 6, 9],
    },
    "missing_duplicate_string": {
        "full": [None, None, 36],
        "banded:5": [None, None, "failed"],
        "block:5": [None, "unfinished:12", "missing"],
        "topk:5": [26, 30, None],
    },
}
MASKS = [
    "full", "topk:5", "topk:9", "topp:0.5", *(f"{kind}:{size}{more}" for kind in ("banded", "block") for size in (5, 9)
    for more in ("", "+global:1")), "strided:4", "random:5;seed=0", "sink:1",
]  # fmt: skip


def many_outcomes(seeds=10):
    """Outcomes of 7 tasks and 15 masks: learnt sooner, later, by some seeds, or by none."""
    return {
        task: {
            mask: [
                None
                if (place + number) % 5 == 4 or (number % 3 == 2 and seed > 6)
                else 6 + (7 * number + 5 * seed + place) % 30
                for seed in range(seeds)
            ]
            for number, mask in enumerate(MASKS)
        }
        for place, task in enumerate(CHANCE)
    }


def update(record, **changes):
    """Changes fields of a summary's record, which is otherwise as it was."""
    for name, value in changes.items():
        setattr(record, name, value)


def accuracy_at(epoch, target, chance, phase):
    """First ≥ 0.95 at `target`: a plateau, a rise over the last third, then 0.99. Without a target the plateau
    stays."""
    wobble = 0.02 * math.sin(1.3 * epoch + phase)
    if target is None or epoch < 0.7 * target:
        return chance + 0.03 + wobble + 0.05 * epoch / (epoch + 40)
    if epoch < target:
        return chance + 0.08 + (0.94 - chance - 0.08) * (epoch / target) ** 3 * 0.95
    return 0.96 if epoch == target else 0.991


def write_run_directory(folder, outcomes=None, *, budget=40, generalises=True, note="Reduced size: a test.", lag=2):
    """A run directory with `outcomes` {task: {mask: [per seed: epoch of τ, None, "diverged:3", "failed", …]}}."""
    folder, outcomes = Path(folder), outcomes or EVERYTHING
    masks = list(next(iter(outcomes.values())))
    seeds = list(range(len(next(iter(next(iter(outcomes.values())).values())))))
    experiment = {
        "format": 1,
        "command": "semfocus compare --preset quickstart --output runs/quickstart",
        "created": "2026-11-28T01:00:00+00:00",
        "versions": {"torch": "2.13.0"},
        "machine": {"platform": "Linux", "processor": "a processor", "cores": 2},
        "name": "quickstart",
        "note": note,
        "tasks": {task: {"length": 20} for task in outcomes},
        "masks": masks,
        "seeds": seeds,
        "defaults": {"training": {"epochs": budget}},
        "baseline": "full",
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "experiment.json").write_text(json.dumps(experiment))
    for task, by_mask in outcomes.items():
        for mask, by_seed in by_mask.items():
            for seed, outcome in enumerate(by_seed):
                if outcome != "missing":
                    write_run(folder, task, mask, seed, outcome, budget, generalises, lag)
    return folder


def write_run(folder, task, mask, seed, outcome, budget=40, generalises=True, lag=2):
    path = folder / "runs" / task / mask_slug(mask) / f"seed-{seed}"
    path.mkdir(parents=True)
    kind, _, number = outcome.partition(":") if isinstance(outcome, str) else ("", "", "")
    target = outcome if isinstance(outcome, int) else None
    epochs = int(number or 0) if kind else budget
    if target is not None and generalises:
        epochs = min(budget, target + lag)
    chance = CHANCE[task]
    spec = {
        "task": task, "mask": mask, "seed": seed, "length": 20, "train_size": 5000, "validation_size": 1000,
        "test_size": 2000, "task_options": {}, "model": {"num_hidden_layers": 3},
        "training": {"optimizer": "sgd", "learning_rate": 0.3, "lr_decay": 0.99, "batch_size": 100,
                     "max_grad_norm": 1.0, "epochs": budget, "tau": 0.95, "heldout_tau": 0.95},
    }  # fmt: skip
    (path / "spec.json").write_text(json.dumps(spec))
    history = []
    for epoch in range(1, epochs + 1):
        heldout_target = target + lag if target is not None and generalises else None
        broken = kind == "diverged" and epoch == epochs
        row = {
            "epoch": epoch, "learning_rate": 0.3 * 0.99 ** (epoch - 1),
            "train_loss": None if broken else 0.7 / epoch, "heldout_loss": None if broken else 0.8 / epoch,
            "train_accuracy": accuracy_at(epoch, target, chance, seed),
            "heldout_accuracy": accuracy_at(epoch, heldout_target, chance, seed + 2),
            "train_token_accuracy": None, "heldout_token_accuracy": None,
            "train_seconds": 1.25 * epoch, "seconds": 1.5 * epoch,
        }  # fmt: skip
        history.append(row)
    if history:
        (path / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in history))
    if kind == "unfinished":
        return path
    if kind == "failed":
        result = {"status": "failed", "error": "RuntimeError: a <b>worker</b> died", "versions": {"torch": "2.13.0"}}
        (path / "result.json").write_text(json.dumps(result))
        return path

    def first(name):
        return next((row["epoch"] for row in history if row[name] >= 0.95), None)

    spread = 2.0 + 0.3 * seed
    result = {
        "status": kind or ("reached" if target else "censored"),
        "stopped": kind or ("reached" if epochs < budget else "budget"),
        "error": None,
        "epochs_trained": epochs,
        "epochs_to_tau": first("train_accuracy"),
        "epochs_to_heldout_tau": first("heldout_accuracy"),
        "seconds_to_tau": 1.25 * target if target else None,
        "seconds": 1.5 * epochs,
        "train_seconds": 1.25 * epochs,
        "parameters": 63106,
        "data": {"chance": chance, "majority_accuracy": chance + 0.011, "label_histogram": {"0": 2445, "1": 2555}},
        "reach": REACH.get(mask, REACH["full"]),
        "dispersion": None if kind == "diverged" else {
            "full": {"mean": 2 * spread, "median": 2 * spread, "q95": 3 * spread, "max": 5 * spread},
            "mask": {"mean": spread if mask != "full" else 2 * spread, "median": spread, "q95": spread, "max": 3.0},
        },
        "versions": {"torch": "2.13.0", "python": "3.11.9"},
    }  # fmt: skip
    (path / "result.json").write_text(json.dumps(result))
    return path


def write_snapshots(folder, summary):
    """What full and topk:5, with a global token and a third layer, of seed 0 attended to at three epochs; returns it: (mask, epoch) →
    (rows, layers, heads, queries, keys)."""
    generator, made = np.random.default_rng(0), {}
    for run in summary.runs:
        if run.seed == 0 and run.mask in ("full", "topk:5"):
            (folder / run.path / "snapshots").mkdir(parents=True)
            for epoch in (0, 2, 9):
                shape = (2, 2, 1, 6, 6) if run.mask == "full" else (2, 3, 1, 7, 7)
                scores = (1 + epoch) * generator.normal(size=shape)
                weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
                made[run.mask, epoch] = weights
                path = folder / run.path / "snapshots" / f"epoch-{epoch}.npz"
                np.savez_compressed(
                    path, weights=weights.astype(np.float16), tokens=np.array([list("011010"), list("110001")])
                )
    return made
