"""Where a run's epochs go: those near chance (the plateau), and those from there to τ (the climb). Exploration, see the diary."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from hf_semfocus.comparison.paired_tests import Judgement, as_ratios, judge_values
from hf_semfocus.training.run_files import Run

from .page import difference_text, judged_text
from .records import BASELINE, MASK, Pair, StoredRun, TaskRecord

ABOVE = 0.1  # of running accuracy over chance or the majority class: a run that has it has left the plateau


@dataclass(frozen=True)
class Split:
    """A task's pairs of which both runs reached τ.

    Args:
        seeds: of these pairs.
        plateaus, climbs: by mask, a seed each: the first epoch above the plateau (that of τ where it comes first), and the epochs
            from it to τ.
        plateau: judgement of the ratios of plateaus, full attention over the mask.
        climb: judgement of the differences of climbs, full attention less the mask, in epochs.
    """

    task: str
    seeds: tuple[int, ...]
    plateaus: Mapping[str, tuple[int, ...]]
    climbs: Mapping[str, tuple[int, ...]]
    plateau: Judgement
    climb: Judgement


def splits(records: Sequence[TaskRecord], stored: Mapping[str, Sequence[StoredRun]]) -> list[Split]:
    """Of each task with a pair that counts and in which both runs reached τ."""
    found = []
    for record in records:
        runs = {(own.run.label, own.run.spec.seed): own.run for own in stored.get(record.name, ())}
        pairs = [pair for pair in record.counted if all(convergence.reached for convergence in pair.convergences)]
        if not pairs:
            continue
        plateaus, climbs = {}, {}
        for side, mask in enumerate((BASELINE, MASK)):
            both = [(_left(runs[mask, pair.seed], pair, side), pair.convergences[side].epochs) for pair in pairs]
            plateaus[mask] = tuple(first for first, _ in both)
            climbs[mask] = tuple(end - first for first, end in both)
        ratios = [math.log(a / b) for a, b in zip(plateaus[BASELINE], plateaus[MASK], strict=True)]
        differences = [a - b for a, b in zip(climbs[BASELINE], climbs[MASK], strict=True)]
        judged = as_ratios(judge_values(ratios)), judge_values(differences)
        found.append(Split(record.name, tuple(pair.seed for pair in pairs), plateaus, climbs, *judged))
    return found


def _left(run: Run, pair: Pair, side: int) -> int:
    """The first epoch above the plateau. A run that learns all within an epoch is at τ before its mean over an epoch is above."""
    bound = ((pair.baseline, pair.mask)[side].at_random or 0.0) + ABOVE
    end = pair.convergences[side].epochs
    return next((i for i, value in enumerate(run.values("running_accuracy")[:end], 1) if value > bound), end)


def section(found: Sequence[Split]) -> list[str]:
    """Lines of Markdown; none without a task."""
    if not found:
        return []
    return [
        "## Where the epochs go",
        "",
        f"Exploration: not among the claims. A run leaves its plateau in the first epoch whose running accuracy is more than {ABOVE:g} "
        "above chance (or the majority class); the climb is the epochs from it to τ. One that reaches τ first leaves it there, and "
        "counts wholly as plateau. 1 is the least, so 2 against 1 says little more than *later*. Pairs that count and both reached τ.",
        "",
        f"| task | plateau left in epoch, by seed: `{BASELINE}` | `{MASK}` | ratio [95 % interval] | climb: `{BASELINE}` | `{MASK}` | "
        f"`{BASELINE}` − `{MASK}` [95 % interval] |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(_row(one) for one in found),
        "",
        f"Of all epochs of `{BASELINE}` to τ, these are before that: "
        + ", ".join(f"{one.task} {100 * _on_the_plateau(one):.0f} %" for one in found)
        + ". What shortens the plateau alone can save no more than that.",
        "",
    ]


def _on_the_plateau(one: Split) -> float:
    """The share of full attention's epochs, over all pairs."""
    left, climbs = one.plateaus[BASELINE], one.climbs[BASELINE]
    before = sum(epoch - (climb > 0) for epoch, climb in zip(left, climbs, strict=True))
    return before / (sum(left) + sum(climbs))


def results_line(found: Sequence[Split]) -> str:
    """For docs/results.md: both numbers of each task with enough pairs; empty without one."""
    tested = [one for one in found if one.plateau.p is not None]
    plateau = "; ".join(
        f"{one.task} {fmean(one.plateaus[BASELINE]):.0f} and {fmean(one.plateaus[MASK]):.0f}" for one in tested
    )
    climb = "; ".join(f"{one.task} {difference_text(one.climb, 1)}" for one in tested)
    return (
        f"- Where they go (exploration): the first epoch above chance by {ABOVE:g} (1 at the least), mean of full attention and "
        f"of `{MASK}`: {plateau}. Epochs from there to 95 %, full attention − `{MASK}`: {climb}."
        if tested
        else ""
    )


def _row(one: Split) -> str:
    cells = [one.task]
    for values, told in (
        (one.plateaus, judged_text(one.plateau)),
        (one.climbs, judged_text(one.climb, speed=False, digits=1)),
    ):
        cells += [*(", ".join(map(str, values[mask])) for mask in (BASELINE, MASK)), told]
    return f"| {' | '.join(cells)} |"
