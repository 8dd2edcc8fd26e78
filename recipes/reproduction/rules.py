"""How a claim is judged from stored summaries: the rules as functions. `claims.py` has the claims, and when the rules were fixed.

Only what an interval or a sign test carries counts. A pair whose two runs are both censored is *undetermined*: it counts for no
claim. Where an interval can be given (no pair censored, three pairs or more) it decides; signs do not overrule it. Where
censoring leaves none, the pairs' directions are known from DESIGN §2's bounds, and an exact sign test decides, in which equal
and undetermined pairs count against either direction. It is one-sided at 5 %, so five pairs all one way are the fewest that
can decide (1/32): a weaker standard than the interval's 2.5 % a side, and where it is used the numbers say so.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from hf_semfocus.comparison.statistics import log_interval
from hf_semfocus.comparison.summary import speedup_entry
from hf_semfocus.report.words import INTERVALS, speed_up_words
from hf_semfocus.schema import FINISHED
from hf_semfocus.summary_schema import RunEntry, SpeedUpEntry, Summary
from hf_semfocus.text import format_ratio

FEWEST_PAIRS = 3
FEWEST_TASKS = 5  # of the suite's 8, for a claim about all of them
SIGN_LEVEL = 0.05
ALIKE = 1.5  # "behaves like full": the whole interval of the speed-up lies within 1/1.5 … 1.5
NEAR = 0.05  # "near chance": held-out accuracy at most this far above chance and the majority class
NOTICEABLE = 0.01  # difference of held-out accuracy below which no task is called better or worse

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
    if entry is None or entry.n_pairs < FEWEST_PAIRS:
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
        p = sum(math.comb(n, count) for count in range(faster, n + 1)) / 2**n
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
    low, high, _ = log_interval(logs)
    assert low is not None
    assert high is not None
    middle, *ends = (near_one(value) for value in (math.exp(fmean(logs)), low, high))
    mean = f"geometric mean {middle} [{', '.join(ends)}] over {len(values)} tasks"
    mean += f" ({', '.join(f'{task} {ratio(value)}' for task, value in values.items())})"
    clear = low > 1 if claimed == "up" else high < 1
    if clear and opposite not in by_way:
        verdict = REPRODUCED
    else:
        verdict = MIXED if clear or claimed in by_way else NOT_REPRODUCED
    against = opposite in by_way or (high < 1 if claimed == "up" else low > 1)
    left_open = verdict == NOT_REPRODUCED and not against
    return Verdict(verdict, "; ".join([mean, *parts]), left_open, incomplete="missing" in by_way)


def ratio(value: float) -> str:
    """Two significant digits."""
    return format_ratio(value)


def near_one(value: float) -> str:
    """As :func:`ratio`; within 10 % of 1 three decimals, and more where they would hide on which side of 1 it lies."""
    if not 0.9 <= value <= 1.1:
        return ratio(value)
    digits = next((n for n in range(3, 9) if value == 1 or round(value, n) != 1), 9)
    return f"{value:.{digits}f}"


def entry_of(summaries: Sequence[Summary], task: str, mask: str) -> SpeedUpEntry | None:
    """The speed-up in epochs to τ training accuracy of a mask on a task."""
    found = (e for s in summaries for e in s.speedups if (e.task, e.mask, e.quantity) == (task, mask, "train"))
    return next(found, None)


def runs_of(summaries: Sequence[Summary], task: str, mask: str) -> list[RunEntry]:
    """The runs of a mask on a task."""
    return [run for s in summaries for run in s.runs if (run.task, run.mask) == (task, mask)]


def finished(runs: Sequence[RunEntry]) -> list[RunEntry]:
    """Those that ended by themselves."""
    return [run for run in runs if run.status in FINISHED]


def measured(runs: Sequence[RunEntry]) -> list[RunEntry]:
    """Those that ended with weights whose accuracy says something: finished, and not diverged."""
    return [run for run in finished(runs) if not run.diverged]


def faster(summaries: Sequence[Summary], task: str, mask: str) -> Verdict:
    """The mask learns faster than full attention on one task; where no pair tells, how far both came stands beside it."""
    one = side(entry_of(summaries, task, mask))
    if one.way == "undetermined":
        ends = []
        for name in ("full", mask):
            ended = measured(runs_of(summaries, task, name))
            finals = [value for run in ended if (value := run.final_train_accuracy) is not None]
            if finals:
                ends.append(f"{name} {min(finals):.3f}–{max(finals):.3f}")
        if ends:
            one = Side(one.way, f"{one.text}; training accuracy when the budget ended: {', '.join(ends)}")
    return of_cases({f"{mask} on {task}": one})


def faster_over_tasks(summaries: Sequence[Summary], tasks: Sequence[str], mask: str) -> Verdict:
    """The mask learns faster over the suite, by the ratios of restricted mean epochs, which censoring leaves defined."""
    return over_tasks(*_speeds(summaries, tasks, mask))


def _speeds(summaries: Sequence[Summary], tasks: Sequence[str], mask: str) -> tuple[dict[str, float], dict[str, Side]]:
    entries = {task: entry_of(summaries, task, mask) for task in tasks}
    sides = {task: side(entry) for task, entry in entries.items()}
    values = {
        task: entry.restricted_mean_ratio
        for task, entry in entries.items()
        if entry and sides[task].way not in ("missing", "undetermined") and entry.restricted_mean_ratio is not None
    }
    return values, sides


def not_consistently_better(summaries: Sequence[Summary], tasks: Sequence[str], masks: Sequence[str]) -> Verdict:
    """No input-agnostic mask is faster over the suite, and each is slower on a task: shown, not merely undecided."""
    better, shown, parts = [], [], []
    asked = _asked(summaries, masks)
    for mask in asked:
        values, sides = _speeds(summaries, tasks, mask)
        ways = [one.way for one in sides.values()]
        if len(ways) - ways.count("missing") < FEWEST_TASKS:
            parts.append(f"{mask}: not enough runs")
            continue
        found = over_tasks(values, sides)
        better += [mask] if found.verdict == REPRODUCED else []
        shown += [mask] if "down" in ways and found.verdict != REPRODUCED else []
        slower = ", ".join(task for task, one in sides.items() if one.way == "down") or "no task"
        quicker = ", ".join(task for task, one in sides.items() if one.way == "up") or "no task"
        parts.append(f"{mask}: slower on {slower}, faster on {quicker}, undetermined on {ways.count('undetermined')}")
    numbers = "; ".join(parts)
    if len(asked) < len(masks):
        numbers = "; ".join(
            filter(None, [numbers, f"not run: {', '.join(mask for mask in masks if mask not in asked)}"])
        )
    if not asked or any(part.endswith("not enough runs") for part in parts):
        return Verdict(NOT_TESTED, numbers)
    incomplete = len(asked) < len(masks)  # what holds of one mask is said of all only when all have run
    if len(shown) == len(asked):
        return Verdict(REPRODUCED, numbers, incomplete=incomplete)
    verdict = MIXED if shown or 0 < len(better) < len(asked) else NOT_REPRODUCED
    return Verdict(verdict, numbers, left_open=verdict == NOT_REPRODUCED and not better, incomplete=incomplete)


def _asked(summaries: Sequence[Summary], masks: Sequence[str]) -> list[str]:
    """Those of the masks that a stored comparison has."""
    return [mask for mask in masks if any(mask in summary.masks for summary in summaries)]


def fits_all(summaries: Sequence[Summary], tasks: Sequence[str]) -> Verdict:
    """Full attention reaches τ on the training split of every task, in every run. Runs stop there, so 100 % is not asked."""
    cases = {}
    for task in tasks:
        runs = runs_of(summaries, task, "full")
        done = finished(runs)
        got = sum(run.epochs_to_tau is not None for run in runs)
        text = f"{got} of {len(done)} runs"
        missed = [run for run in done if run.epochs_to_tau is None]
        finals = [value for run in missed if (value := run.final_train_accuracy) is not None]
        if finals:
            text += f", the others at {min(finals):.3f}–{max(finals):.3f} when the budget ended"
        # The end of a budget is not the opposite of the claim: a longer one might do.
        enough = len(done) >= FEWEST_PAIRS
        way = "open" if missed and enough else "up" if enough and len(done) == len(runs) else "missing"
        cases[task] = Side(way, text)
    return of_cases(cases)


def generalises_on(summaries: Sequence[Summary], tasks: Sequence[str], expected: int) -> Verdict:
    """Full attention generalises on exactly so many tasks: most of a task's runs reach τ on held-out rows."""
    told: dict[str, dict[str, bool]] = {"full": {}, "topk:5": {}}
    cut_short = set()
    for mask, known in told.items():
        for task in tasks:
            done = measured(runs_of(summaries, task, mask))
            if len(done) >= FEWEST_PAIRS:
                if mask == "full" and any(run.status == "censored" for run in done):
                    cut_short.add(task)
                known[task] = 2 * sum(run.epochs_to_heldout_tau is not None for run in done) > len(done)
    parts = [
        f"{mask} on {sum(known.values())} of {len(known)} ({', '.join(t for t in known if known[t]) or 'none'})"
        for mask, known in told.items()
    ]
    yes, no = sum(told["full"].values()), sum(not value for value in told["full"].values())
    if yes > expected or no > len(tasks) - expected:
        # A task whose budget ended before it was learnt might generalise with a longer one.
        learnt = sum(not value for task, value in told["full"].items() if task not in cut_short)
        open_still = yes <= expected and learnt <= len(tasks) - expected
        if cut_short:
            parts.append(f"full attention's budget ended before τ on {', '.join(t for t in tasks if t in cut_short)}")
        return Verdict(NOT_REPRODUCED, "; ".join(parts), open_still, incomplete=yes + no < len(tasks))
    return Verdict(REPRODUCED if yes + no == len(tasks) else NOT_TESTED, "; ".join(parts))


def better_heldout(summaries: Sequence[Summary], tasks: Sequence[str], mask: str) -> Verdict:
    """Held-out accuracy at the end is higher than full attention's: paired differences, their mean over tasks."""
    means, better, worse = {}, [], []
    for task in tasks:
        own, base = ({run.seed: run for run in measured(runs_of(summaries, task, name))} for name in (mask, "full"))
        values = [
            (own[seed].final_heldout_accuracy, base[seed].final_heldout_accuracy) for seed in own if seed in base
        ]
        gaps = [a - b for a, b in values if a is not None and b is not None]
        if len(gaps) < FEWEST_PAIRS:
            continue
        means[task] = fmean(gaps)
        low, high = _interval(gaps)
        better += [task] if low > 0 and means[task] > NOTICEABLE else []
        worse += [task] if high < 0 and means[task] < -NOTICEABLE else []
    if len(means) < FEWEST_TASKS:
        return Verdict(NOT_TESTED, f"{len(means)} of the {FEWEST_TASKS} tasks that a mean needs")
    low, high = _interval(list(means.values()))
    numbers = (
        f"held-out accuracy {fmean(means.values()):+.3f} [{low:+.3f}, {high:+.3f}] over {len(means)} tasks "
        f"({', '.join(f'{task} {value:+.3f}' for task, value in means.items())}); better on {', '.join(better) or 'no task'}; "
        f"worse on {', '.join(worse) or 'no task'}"
    )
    if low > 0 and not worse:
        return Verdict(REPRODUCED, numbers)
    verdict = MIXED if low > 0 or better else NOT_REPRODUCED
    left_open = verdict == NOT_REPRODUCED and high > 0 and not worse
    return Verdict(verdict, numbers, left_open, incomplete=len(means) < len(tasks))


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of a mean."""
    low, high, _ = log_interval(values)
    assert low is not None
    assert high is not None
    return math.log(low), math.log(high)


def about(summaries: Sequence[Summary], task: str, mask: str, factor: float, within: float) -> Verdict:
    """Faster, and about `factor` times so: the estimate lies within `factor` / `within` … `factor` × `within`."""
    entry = entry_of(summaries, task, mask)
    found = of_cases({f"{mask} on {task}": side(entry)})
    if found.verdict != REPRODUCED or entry is None:
        return found
    estimate = entry.estimate if entry.interval_kind in INTERVALS else None
    near = estimate is not None and factor / within <= estimate <= factor * within
    return found if near else Verdict(MIXED, f"{found.numbers}: faster, but not shown to be by about {factor:g} ×")


def slower(summaries: Sequence[Summary], task: str, masks: Sequence[str]) -> Verdict:
    """Each of the masks falls short of full attention on the task."""
    return of_cases({mask: side(entry_of(summaries, task, mask)) for mask in masks}, "down")


def near_chance(summaries: Sequence[Summary], task: str, masks: Sequence[str]) -> Verdict:
    """Held-out accuracy stays at chance, in every run of every mask."""
    cases = {}
    for mask in _asked(summaries, masks):
        runs = runs_of(summaries, task, mask)
        done = [(run, value) for run in measured(runs) if (value := run.final_heldout_accuracy) is not None]
        finals = [value for _, value in done]
        limit = max((value for run, _ in done for value in (run.chance, run.majority_accuracy) if value), default=1.0)
        if len(finals) < FEWEST_PAIRS or len(finals) < len(runs):
            cases[mask] = Side("missing", f"{len(finals)} finished runs")
            continue
        way = "up" if max(finals) <= limit + NEAR else "down"
        cases[mask] = Side(way, f"held-out {min(finals):.3f}–{max(finals):.3f} (chance or majority {limit:.3f})")
    found = of_cases(cases)
    not_run = [mask for mask in masks if mask not in cases]
    told = f"not run: {', '.join(not_run)}" if not_run else ""
    return replace(found, numbers="; ".join(filter(None, [found.numbers, told])))


def like_full(summaries: Sequence[Summary], tasks: Sequence[str], mask: str, others: Sequence[str]) -> Verdict:
    """The mask is neither faster nor slower than full attention by a factor of `ALIKE`, shown by its interval."""
    cases = {}
    for task in tasks:
        entry = entry_of(summaries, task, mask)
        one = side(entry)
        swept = ", ".join(
            f"{m} {speed_up_words(e)}" for m in others if (e := entry_of(summaries, task, m)) is not None
        )
        text = f"{mask} {one.text}" + (f" (beside it: {swept})" if swept else "")
        way = "missing" if one.way == "missing" else "undetermined"
        if entry is not None and entry.interval_kind in INTERVALS:
            alike = (entry.low or 0.0) >= 1 / ALIKE and (entry.high or math.inf) <= ALIKE
            way = "up" if alike else "open" if one.way == "open" else "down"
        elif one.way in ("up", "down"):
            way = "down"
        cases[task] = Side(way, text)
    return of_cases(cases)


def robust(stored: Stored, tasks: Sequence[str], mask: str, variants: Sequence[str]) -> Verdict:
    """The mask learns faster under each variant on each task."""
    cases: dict[str, Side] = {}
    for name in variants:
        summaries = [stored[name]] if name in stored else []
        cases |= {f"{name}, {task}": side(entry_of(summaries, task, mask)) for task in tasks}
    return of_cases(cases)


def smaller_dispersion(summaries: Sequence[Summary], tasks: Sequence[str], mask: str) -> Verdict:
    """Dispersion of the keys that the mask's models keep, over that of all keys in full attention's, pairs by seed."""
    values, sides = {}, {}
    for task in tasks:
        own, base = ({run.seed: run.dispersion for run in measured(runs_of(summaries, task, name)) if run.dispersion}
                     for name in (mask, "full"))  # fmt: skip
        pairs = [(own[seed].mask.mean, base[seed].full.mean) for seed in own if seed in base]
        ratios = [a / b for a, b in pairs if a and b]
        sides[task] = _ratio_side(ratios)
        if len(ratios) >= FEWEST_PAIRS:
            values[task] = math.exp(fmean(map(math.log, ratios)))
    return over_tasks(values, sides, "down")


def _ratio_side(ratios: Sequence[float]) -> Side:
    if len(ratios) < FEWEST_PAIRS:
        return Side("missing", f"{len(ratios)} pairs")
    low, high = (math.exp(end) for end in _interval([math.log(value) for value in ratios]))
    return Side("up" if low > 1 else "down" if high < 1 else "open", f"[{ratio(low)}, {ratio(high)}]")


def smaller_lipschitz(summaries: Sequence[Summary], tasks: Sequence[str], mask: str, quantity: str) -> Verdict:
    """A Lipschitz estimate of the loss (`gradient_initial`, `gradient`, `trajectory`) over full attention's."""
    entries = {e.task: e for s in summaries if s.analysis for e in s.analysis.matched
               if (e.mask, e.quantity) == (mask, quantity)}  # fmt: skip
    ratios = {
        task: [pair.ratio for pair in entries[task].pairs if pair.ratio] if task in entries else [] for task in tasks
    }
    sides = {task: _ratio_side(found) for task, found in ratios.items()}
    values = {task: math.exp(fmean(map(math.log, ratios[task]))) for task in tasks if sides[task].way != "missing"}
    return over_tasks(values, sides, "down")


def tuned(
    stored: Stored, tasks: Sequence[str], mask: str, rates: Mapping[str, float], choose: Sequence[int]
) -> Verdict:
    """Faster also where each mask has the learning rate that suits it: chosen on the seeds `choose`, compared on the others.

    The rate with the fewest epochs to τ summed over `choose` (the budget where τ was not reached), of equal ones that with
    the highest training accuracy at the end, then the smallest.
    """
    cases = {}
    for task in tasks:
        picked, by_seed = {}, {}
        for name in ("full", mask):
            tried = {rate: {run.seed: run for run in runs_of([stored[key]], task, name)}
                     for key, rate in rates.items() if key in stored}  # fmt: skip
            whole = len(tried) == len(rates) and all(
                seed in runs and finished([runs[seed]]) for runs in tried.values() for seed in choose
            )
            if whole:
                picked[name] = min(tried, key=lambda rate: (*_cost([tried[rate][seed] for seed in choose]), rate))
                by_seed[name] = {s: r for s, r in tried[picked[name]].items() if s not in choose and r.epochs_trained}
        if len(picked) < 2:
            cases[task] = Side("missing", "not every rate has finished on the seeds that choose")
            continue
        seeds = [seed for seed in by_seed["full"] if seed in by_seed[mask]]
        one = side(speedup_entry("train", *([by_seed[name][seed] for seed in seeds] for name in ("full", mask))))
        cases[task] = Side(one.way, f"{one.text} with rates {picked['full']:g} (full) and {picked[mask]:g} ({mask})")
    return of_cases(cases)


def _cost(runs: Sequence[RunEntry]) -> tuple[int, float]:
    epochs = sum(run.epochs_to_tau or run.budget or run.epochs_trained for run in runs)
    return epochs, -fmean(run.final_train_accuracy or 0.0 for run in runs)
