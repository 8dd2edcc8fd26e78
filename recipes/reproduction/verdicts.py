"""Verdicts on a claim, from what an interval or a sign test carries. `rules.py` has the rules, claim by claim.

A pair whose two runs are both censored is *undetermined*: it counts for no claim. Where an interval can be given (no pair censored,
three pairs or more) it decides; signs do not overrule it. Where censoring leaves none, the pairs' directions are known from DESIGN §2's
bounds, and an exact sign test decides, in which equal and undetermined pairs count against either direction. It is one-sided at 5 %, so
five pairs all one way are the fewest that can decide (1/32): a weaker standard than the interval's 2.5 % a side, and where it is used
the numbers say so.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from statistics import fmean
from typing import Any

from scipy.stats import binomtest

from hf_semfocus.comparison.statistics import mean_interval
from hf_semfocus.report.words import INTERVALS, speed_up_words
from hf_semfocus.schema import FINISHED
from hf_semfocus.summary_schema import RunEntry, SpeedUpEntry, Summary
from hf_semfocus.text import format_ratio

FEWEST_FOR_AN_INTERVAL = 3
FEWEST_TASKS = 5  # of the suite's 8, for a claim about all of them
SIGN_LEVEL = 0.05

REPRODUCED, NOT_REPRODUCED, MIXED, NOT_TESTED = "reproduced", "not reproduced", "mixed", "not tested"
_OPPOSITE = {"up": "down", "down": "up"}
Stored = Mapping[str, Summary]


@dataclass(frozen=True)
class Side:
    """What one comparison shows: `up` or `down` (decided), `open`, `undetermined`, or `missing` (too little was run yet)."""

    way: str
    text: str


@dataclass(frozen=True)
class Verdict:
    """A claim's verdict and the numbers that it rests on."""

    verdict: str
    numbers: str
    # "Not reproduced" because nothing was decided, not because something was decided against it.
    left_open: bool = False
    # A case of the claim has too few runs for a judgement, and the verdict stands without it.
    incomplete: bool = False


def side(entry: SpeedUpEntry | None) -> Side:
    """The direction of a speed-up entry of a summary: `up` is faster than the baseline."""
    if entry is None or entry.n_pairs < FEWEST_FOR_AN_INTERVAL:
        return Side("missing", f"{entry.n_pairs if entry else 0} pairs")
    n, text = entry.n_pairs, str(speed_up_words(entry))
    runs = [run for pair in entry.pairs for run in (pair.baseline, pair.mask)]
    diverged = sum(run.diverged and not run.reached for run in runs)
    if diverged:  # slower for another reason than the mask's: it counts, and is said
        text += f", {diverged} of {len(runs)} runs diverged"
    if entry.interval_kind in INTERVALS and entry.low is not None and entry.high is not None:
        way = "up" if entry.low > 1 else "down" if entry.high < 1 else "open"
        return Side(way, text)
    for way, faster in (("up", entry.faster), ("down", entry.slower)):
        p = binomtest(faster, n, alternative="greater").pvalue
        if p < SIGN_LEVEL:
            return Side(way, f"{text}, sign test p = {p:.2g}")
    if any(not run.finished and not run.reached for run in runs):
        return Side("missing", f"{text}, not finished")
    return Side("undetermined" if entry.undetermined == n else "open", text)


def of_cases(cases: Mapping[str, Side], claimed: str = "up") -> Verdict:
    """A claim that is to hold in each of several cases: *reproduced* only if it does in all.

    *mixed*: in some, and elsewhere not, or undetermined. *not reproduced*: in none of those judged, and nothing is missing.
    """
    ways = [case.way for case in cases.values()]
    held, missing = ways.count(claimed), ways.count("missing")
    others = sum(way in ("up", "down", "open") for way in ways) - held
    numbers = "; ".join(f"{name}: {words(case, claimed)}" for name, case in cases.items())
    if held == len(ways) and ways:
        return Verdict(REPRODUCED, numbers)
    if held + others == 0 or (missing and (not held or not others)):
        return Verdict(NOT_TESTED, numbers)
    left_open = not held and _OPPOSITE[claimed] not in ways
    return Verdict(MIXED if held else NOT_REPRODUCED, numbers, left_open, incomplete=bool(missing))


def verdict_words(entry: Mapping[str, Any]) -> str:
    """The verdict of an entry of claims.json, in Markdown."""
    if entry["verdict"] == NOT_TESTED:
        return NOT_TESTED
    words = "undecided" if entry["left_open"] else f"**{entry['verdict']}**"
    return f"{words}{' (provisional)' if entry['provisional'] else ''}"


def words(case: Side, claimed: str) -> str:
    """A case in words; what the rule made of it stands where the numbers alone do not tell."""
    note = {_OPPOSITE[claimed]: "the opposite", "open": "open", "missing": "not enough runs"}.get(case.way, "")
    return f"{case.text}{f' ({note})' if note else ''}"


def over_tasks(values: Mapping[str, float], sides: Mapping[str, Side], claimed: str = "up") -> Verdict:
    """A claim about the suite: the geometric mean over tasks of one ratio a task, with a 95 % interval over the tasks.

    *reproduced*: at least `FEWEST_TASKS` tasks have a ratio, the interval lies on the claimed side of 1, and no task is
    decided the other way. *mixed*: some task is decided as claimed, or the interval is, without the rest. *not reproduced*:
    none of that. *not tested*: fewer tasks.
    """
    opposite = _OPPOSITE[claimed]
    by_way: dict[str, list[str]] = {}
    for task, one in sides.items():
        by_way.setdefault(one.way, []).append(task)
    told = {claimed: "as claimed on", opposite: "the opposite on", "open": "open on"}
    told |= {"undetermined": "undetermined on", "missing": "not enough runs on"}
    parts = [f"{text} {', '.join(by_way[way])}" for way, text in told.items() if way in by_way]
    if len(values) < FEWEST_TASKS:
        reason = f"{len(values)} of the {FEWEST_TASKS} tasks that a mean needs"
        return Verdict(NOT_TESTED, "; ".join([reason, *parts]))
    logs = [math.log(value) for value in values.values()]
    middle, low, high = map(math.exp, (fmean(logs), *interval(logs)))
    mean = f"geometric mean {near_one(middle)} [{near_one(low)}, {near_one(high)}] over {len(values)} tasks"
    mean += f" ({', '.join(f'{task} {format_ratio(value)}' for task, value in values.items())})"
    clear = low > 1 if claimed == "up" else high < 1
    if clear and opposite not in by_way:
        verdict = REPRODUCED
    else:
        verdict = MIXED if clear or claimed in by_way else NOT_REPRODUCED
    against = opposite in by_way or (high < 1 if claimed == "up" else low > 1)
    left_open = verdict == NOT_REPRODUCED and not against
    return Verdict(verdict, "; ".join([mean, *parts]), left_open, incomplete="missing" in by_way)


def near_one(value: float, rounding: str = ROUND_HALF_EVEN) -> str:
    """Two significant digits; within 10 % of 1 three decimals, and more where they would hide on which side of 1 it lies.

    `rounding`: as of `format_ratio`.
    """
    if not 0.9 <= value <= 1.1:
        return format_ratio(value, rounding)
    exact = Decimal(str(value))
    shown = (exact.quantize(Decimal(1).scaleb(-digits), rounding=rounding) for digits in range(3, 10))
    return str(next((one for one in shown if value == 1 or one != 1), exact))


def entry_of(summaries: Sequence[Summary], task: str, mask: str) -> SpeedUpEntry | None:
    """The speed-up in epochs to τ training accuracy of a mask on a task."""
    entries = (e for s in summaries for e in s.speedups if (e.task, e.mask, e.quantity) == (task, mask, "train"))
    return next(entries, None)


def runs_of(summaries: Sequence[Summary], task: str, mask: str) -> list[RunEntry]:
    """The runs of a mask on a task."""
    return [run for s in summaries for run in s.runs if (run.task, run.mask) == (task, mask)]


def finished(runs: Sequence[RunEntry]) -> list[RunEntry]:
    """Those that ended by themselves."""
    return [run for run in runs if run.status in FINISHED]


def measured(runs: Sequence[RunEntry]) -> list[RunEntry]:
    """Those that ended with weights whose accuracy says something: finished, and not diverged."""
    return [run for run in finished(runs) if not run.diverged]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of a mean."""
    low, high, _ = mean_interval(values)
    assert low is not None
    assert high is not None
    return low, high
