"""Comparisons of the paper's recipe made by formula, as `semfocus compare --preset paper-nnch` would leave them. No training."""

import json
import math
from dataclasses import replace
from pathlib import Path

from hf_semfocus.experiments.presets import PAPER_EPOCHS, preset

MACHINE = {"platform": "Linux", "processor": "a processor", "cores": 2, "products": "onednn"}
PAPER = preset("paper")
CHANCE = {"solve_equation": 0.2, "cycle_navigation": 0.2, "modular_arithmetic_brackets": 0.2, "listops": 0.1}


def write_comparison(folder, task, outcomes, heldout=0.99, machines=None, paper=PAPER):
    """A run directory of `task` with `outcomes` {mask: [a seed: epoch of τ, None, "unfinished:12", "diverged:3", "failed", "missing"]}.

    `paper`: the experiment of which it is a part.
    `heldout`: held-out accuracy once learnt, or {mask: [a seed: …]}; `machines`: {(mask, seed): record}.
    """
    folder = Path(folder)
    seeds = tuple(range(len(next(iter(outcomes.values())))))
    experiment = replace(paper, tasks={task: paper.tasks[task]}, masks=tuple(outcomes), seeds=seeds)
    folder.mkdir(parents=True)
    values = {"format": 1, "machine": MACHINE, "versions": {"torch": "2.13.0"}, **experiment.to_dict()}
    (folder / "experiment.json").write_text(json.dumps(values))
    for mask, by_seed in outcomes.items():
        for seed, outcome in zip(seeds, by_seed, strict=True):
            if outcome != "missing":
                level = heldout[mask][seed] if isinstance(heldout, dict) else heldout
                write_run(
                    folder,
                    experiment.spec(task, mask, seed),
                    outcome,
                    level,
                    (machines or {}).get((mask, seed), MACHINE),
                )
    return folder


def write_run(folder, spec, outcome, heldout, machine):
    path = folder / "runs" / spec.name
    path.mkdir(parents=True)
    (path / "spec.json").write_text(json.dumps(spec.to_dict()))
    kind, _, number = outcome.partition(":") if isinstance(outcome, str) else ("", "", "")
    target = outcome if isinstance(outcome, int) else None
    ceiling = PAPER_EPOCHS[spec.task]
    epochs = (
        int(number or 0) if kind else min(ceiling, target + max(5, math.ceil(0.1 * target))) if target else ceiling
    )
    chance = CHANCE.get(spec.task, 0.5)
    rows = []
    for epoch in range(1, epochs + 1):
        learnt = target is not None and epoch >= target
        way = min(1.0, epoch / (target or 2 * ceiling)) ** 3
        wobble = 0.002 * math.sin(1.3 * epoch + spec.seed)
        rows.append(
            {
                "epoch": epoch,
                "train_accuracy": 0.96 if learnt else None,
                "heldout_accuracy": min(
                    1.0, (heldout if learnt else chance + way * (heldout - chance) * 0.9) + wobble
                ),
                "running_accuracy": chance + way * (1 - chance),
                "running_loss": math.log(1 / chance) * (1 - 0.95 * way) + wobble,
                "train_loss": 0.1,
                "heldout_loss": None if kind == "diverged" and epoch == epochs else 0.1,
                "train_seconds": 5.0 * epoch,
                "seconds": 6.0 * epoch,
            }
        )
    if rows:
        (path / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if kind == "unfinished":
        return
    result = {"status": kind or ("reached" if target else "censored"), "error": None}
    result |= {"machine": machine} if machine else {}
    if kind != "failed":
        good = [row["epoch"] for row in rows if row["heldout_accuracy"] >= 0.95]
        result |= {
            "stopped": kind or ("settled" if target and epochs < ceiling else "budget"),
            "epochs_trained": epochs,
            "epochs_to_tau": target,
            "epochs_to_heldout_tau": min(good, default=None),
            "data": {"chance": chance, "majority_accuracy": chance + 0.01},
        }
    (path / "result.json").write_text(json.dumps(result))
