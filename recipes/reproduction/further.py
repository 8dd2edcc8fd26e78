"""The further tiers of `docs/protocol.md` in which each mask stands beside full attention: judged, or shown where seeds are few."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from hf_semfocus.comparison.paired_tests import Judgement, judge_speed, with_holm
from hf_semfocus.experiments.experiment import Experiment
from hf_semfocus.text import plural

from .page import difference_text, epochs, judged_text, of_one_task, speed_text
from .records import BASELINE, SEEDS, TIER_RECIPES, TaskRecord, read_tier, stored_name, task_record
from .tier1 import restricted_of

TIERS = {
    "tier2": "Other masks (tier 2)",
    "tier5_gelu": "GELU instead of ReLU (tier 5)",
    "tier5_mish": "Mish instead of ReLU (tier 5)",
    "tier5_adam": "Adam instead of SGD (tier 5)",
    "tier6": "Input-agnostic masks on the long tasks (tier 6)",
    "heavy_hitters": "Other heavy hitters, and controls",
}

EXPLORED = ("heavy_hitters",)
"""Not in the protocol's table, so without a claim."""


@dataclass(frozen=True)
class Compared:
    """A mask beside full attention on a task of a tier: its pairs by seed, and the verdict of `faster:TASK`."""

    tier: str
    mask: str
    record: TaskRecord
    judgement: Judgement


def read(results: Path) -> dict[str, list[Compared]]:
    """What is stored of each tier, by its name.

    Raises:
        ValueError: a stored comparison cannot be read, or is not of its tier's recipe.
    """
    tiers = {}
    for name in TIERS:
        if stored := read_tier(results, name):
            compared, family = [], dict.fromkeys(_asked(name).tasks, judge_speed([]))
            for mask in dict.fromkeys(own.run.label for own in stored if own.run.label != BASELINE):
                tasks = dict.fromkeys(own.run.spec.task for own in stored if own.run.label == mask)
                records = [
                    task_record(task, [own for own in stored if own.run.spec.task == task], SEEDS, mask)
                    for task in tasks
                ]
                judged = family | {
                    one.name: judge_speed([pair.convergences for pair in one.counted]) for one in records
                }
                compared += [Compared(name, mask, one, with_holm(judged)[one.name]) for one in records]
            tiers[name] = compared
    return tiers


def _asked(name: str) -> Experiment:
    return Experiment.from_yaml(TIER_RECIPES / f"{name}.yaml")


def section(tiers: Mapping[str, Sequence[Compared]]) -> list[str]:
    """Lines of Markdown: a part a tier, none where nothing is stored."""
    lines: list[str] = []
    for name, compared in tiers.items():
        folder = stored_name(name)
        lines += [
            f"## {TIERS[name]}",
            "",
            f"Each beside `{BASELINE}` of the same seeds, as in tier 1; fewer than six pairs are shown, not tested. "
            + (
                "Exploration: no claim of the protocol."
                if name in EXPLORED
                else "*This task alone*: at 5 % there, not over the tier's tasks (Holm)."
            )
            + " Where pairs are censored the sign test decides; beside it the difference in restricted mean epochs, "
            f"`{BASELINE}` − mask, which decides nothing. Held-out accuracy: means over pairs, mask / `{BASELINE}`. All runs: "
            f"[{folder}]({folder}/README.md).",
            "",
            f"| task | mask | epochs, by seed | epochs of `{BASELINE}` | speed-up [95 % interval] | verdict | "
            "held-out, last five epochs | best | at the last common epoch |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
            *(_row(one) for one in compared),
            "",
            *_missing(name, compared),
        ]
    return lines


def results_line(tiers: Mapping[str, Sequence[Compared]]) -> str:
    """For docs/results.md: the speed-up of each mask in each tier that has one, a tier a line."""
    lines = []
    for name, compared in tiers.items():
        tested = [
            f"{one.record.name} `{one.mask}` {speed_text(one.judgement)}, {_verdict(one).replace('**', '')}"
            for one in compared
            if one.judgement.p is not None
        ]
        lines += (
            [f"- {TIERS[name]}, epochs of `{BASELINE}` over those of the mask: {'; '.join(tested)}."] if tested else []
        )
        if shown := _shown([one for one in compared if one.judgement.p is None and one.record.counted]):
            lines.append(f"- {TIERS[name]}, too few pairs to test, median epochs: {'; '.join(shown)}.")
    return "\n".join(lines)


def _shown(compared: Sequence[Compared]) -> list[str]:
    """By task and seeds: median epochs of full attention and of each mask."""
    by_pairs: dict[tuple[str, tuple[int, ...]], list[Compared]] = {}
    for one in compared:
        by_pairs.setdefault((one.record.name, tuple(pair.seed for pair in one.record.counted)), []).append(one)
    return [
        f"{task} ({plural(len(seeds), 'pair')}) `{BASELINE}` {_median(of_task[0], 0)}, "
        + ", ".join(f"`{one.mask}` {_median(one, 1)}" for one in of_task)
        for (task, seeds), of_task in by_pairs.items()
    ]


def _median(one: Compared, side: int) -> str:
    """Of the pairs that count; censored where half of the runs are."""
    found = [pair.convergences[side] for pair in one.record.counted]
    middle = median(known.epochs if known.reached else math.inf for known in found)
    return f">{min(known.epochs for known in found if not known.reached)}" if middle == math.inf else f"{middle:g}"


def _missing(name: str, compared: Sequence[Compared]) -> list[str]:
    """What the tier's recipe asks for and no run is stored of."""
    asked = _asked(name)
    masks = {task: [one.mask for one in compared if one.record.name == task] for task in asked.tasks}
    lacking = [
        f"{task} with {', '.join(f'`{mask}`' for mask in lacks)}" if there else task
        for task, there in masks.items()
        if (lacks := [mask for mask in asked.masks if mask not in (BASELINE, *there)])
    ]
    return [f"Nothing is stored yet of {'; '.join(lacking)}.", ""] if lacking else []


def _row(one: Compared) -> str:
    counted = one.record.counted
    accuracies = (
        [(pair.mask.heldout, pair.baseline.heldout) for pair in counted],
        [(pair.mask.best, pair.baseline.best) for pair in counted],
        [(pair.common[1], pair.common[0]) for pair in counted if pair.common],
    )
    cells = (
        one.record.name,
        f"`{one.mask}`",
        *_by_seed(one),
        _effect(one),
        _verdict(one),
        *(_means(values) for values in accuracies),
    )
    return f"| {' | '.join(cells)} |"


def _effect(one: Compared) -> str:
    """Speed-up; with censoring also the test that decided, and the difference in restricted mean epochs."""
    text = judged_text(one.judgement)
    if one.judgement.test != "sign":
        return text
    return f"{text}, sign test; restricted {difference_text(restricted_of(one.record).difference, 1)} epochs"


def _means(values: Sequence[tuple[float | None, float | None]]) -> str:
    """Of the mask and of full attention."""
    sides = ([value for value in side if value is not None] for side in zip(*values, strict=True))
    return " / ".join(f"{fmean(side):.3f}" if side else "–" for side in sides) or "–"


def _by_seed(one: Compared) -> list[str]:
    """Epochs of the mask's runs and of full attention's of the same seeds."""
    pairs = [pair for pair in one.record.pairs if pair.mask.trained]
    return [", ".join(epochs(getattr(pair, side)) for pair in pairs) for side in ("mask", "baseline")]


def _verdict(one: Compared) -> str:
    words, counted = of_one_task(one.judgement), len(one.record.counted)
    if one.tier in EXPLORED and counted >= len(SEEDS):
        return "exploration"
    return words if counted >= len(SEEDS) else f"{words} ({plural(counted, 'pair')})"
