"""How each claim is judged from stored summaries: the rules as functions. `claim_table.py` has the claims."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from hf_semfocus.comparison.summary import speedup_entry
from hf_semfocus.report.words import INTERVALS, speed_up_words
from hf_semfocus.summary_schema import RunEntry, Summary
from hf_semfocus.text import format_ratio

from .verdicts import (
    FEWEST_FOR_AN_INTERVAL,
    FEWEST_TASKS,
    MIXED,
    NOT_REPRODUCED,
    NOT_TESTED,
    REPRODUCED,
    Side,
    Stored,
    Verdict,
    entry_of,
    finished,
    interval,
    measured,
    of_cases,
    over_tasks,
    runs_of,
    side,
)

ALIKE = 1.5  # "behaves like full": the whole interval of the speed-up lies within 1/1.5 … 1.5
NEAR = 0.05  # "near chance": held-out accuracy at most this far above chance and the majority class
NOTICEABLE = 0.01  # difference of held-out accuracy below which no task is called better or worse


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
    too_few = False
    asked = _asked(summaries, masks)
    for mask in asked:
        values, sides = _speeds(summaries, tasks, mask)
        ways = [one.way for one in sides.values()]
        if len(ways) - ways.count("missing") < FEWEST_TASKS:
            parts.append(f"{mask}: not enough runs")
            too_few = True
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
    if too_few or not asked:
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
        enough = len(done) >= FEWEST_FOR_AN_INTERVAL
        way = "open" if missed and enough else "up" if enough and len(done) == len(runs) else "missing"
        cases[task] = Side(way, text)
    return of_cases(cases)


def generalises_on(summaries: Sequence[Summary], tasks: Sequence[str], expected: int) -> Verdict:
    """Full attention generalises on exactly so many tasks: most of a task's runs reach τ on held-out rows."""
    learnt_on: dict[str, dict[str, bool]] = {"full": {}, "topk:5": {}}
    cut_short = set()
    for mask, known in learnt_on.items():
        for task in tasks:
            done = measured(runs_of(summaries, task, mask))
            if len(done) >= FEWEST_FOR_AN_INTERVAL:
                if mask == "full" and any(run.status == "censored" for run in done):
                    cut_short.add(task)
                known[task] = 2 * sum(run.epochs_to_heldout_tau is not None for run in done) > len(done)
    parts = [
        f"{mask} on {sum(known.values())} of {len(known)} ({', '.join(t for t in known if known[t]) or 'none'})"
        for mask, known in learnt_on.items()
    ]
    yes, no = sum(learnt_on["full"].values()), sum(not value for value in learnt_on["full"].values())
    if yes > expected or no > len(tasks) - expected:
        # A task whose budget ended before it was learnt might generalise with a longer one.
        learnt = sum(not value for task, value in learnt_on["full"].items() if task not in cut_short)
        open_still = yes <= expected and learnt <= len(tasks) - expected
        if cut_short:
            parts.append(f"full attention's budget ended before τ on {', '.join(t for t in tasks if t in cut_short)}")
        return Verdict(NOT_REPRODUCED, "; ".join(parts), open_still, incomplete=yes + no < len(tasks))
    return Verdict(REPRODUCED if yes + no == len(tasks) else NOT_TESTED, "; ".join(parts))


def better_heldout(summaries: Sequence[Summary], tasks: Sequence[str], mask: str) -> Verdict:
    """Held-out accuracy at the end is higher than full attention's: paired differences, their mean over tasks."""
    means, better, worse = {}, [], []
    for task in tasks:
        by_seed, base = (
            {run.seed: run for run in measured(runs_of(summaries, task, name))} for name in (mask, "full")
        )
        values = [
            (by_seed[seed].final_heldout_accuracy, base[seed].final_heldout_accuracy)
            for seed in by_seed
            if seed in base
        ]
        gaps = [a - b for a, b in values if a is not None and b is not None]
        if len(gaps) < FEWEST_FOR_AN_INTERVAL:
            continue
        means[task] = fmean(gaps)
        low, high = interval(gaps)
        better += [task] if low > 0 and means[task] > NOTICEABLE else []
        worse += [task] if high < 0 and means[task] < -NOTICEABLE else []
    if len(means) < FEWEST_TASKS:
        return Verdict(NOT_TESTED, f"{len(means)} of the {FEWEST_TASKS} tasks that a mean needs")
    low, high = interval(list(means.values()))
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


def about(summaries: Sequence[Summary], task: str, mask: str, factor: float, within: float) -> Verdict:
    """Faster, and about `factor` times so: the estimate lies within `factor` / `within` … `factor` × `within`."""
    entry = entry_of(summaries, task, mask)
    verdict = of_cases({f"{mask} on {task}": side(entry)})
    if verdict.verdict != REPRODUCED or entry is None:
        return verdict
    estimate = entry.estimate if entry.interval_kind in INTERVALS else None
    near = estimate is not None and factor / within <= estimate <= factor * within
    return verdict if near else Verdict(MIXED, f"{verdict.numbers}: faster, but not shown to be by about {factor:g} ×")


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
        if len(finals) < FEWEST_FOR_AN_INTERVAL or len(finals) < len(runs):
            cases[mask] = Side("missing", f"{len(finals)} finished runs")
            continue
        way = "up" if max(finals) <= limit + NEAR else "down"
        cases[mask] = Side(way, f"held-out {min(finals):.3f}–{max(finals):.3f} (chance or majority {limit:.3f})")
    verdict = of_cases(cases)
    not_run = [mask for mask in masks if mask not in cases]
    missing = f"not run: {', '.join(not_run)}" if not_run else ""
    return replace(verdict, numbers="; ".join(filter(None, [verdict.numbers, missing])))


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
        by_seed, base = ({run.seed: run.dispersion for run in measured(runs_of(summaries, task, name)) if run.dispersion}
                     for name in (mask, "full"))  # fmt: skip
        pairs = [(by_seed[seed].mask.mean, base[seed].full.mean) for seed in by_seed if seed in base]
        ratios = [a / b for a, b in pairs if a and b]
        sides[task] = _ratio_side(ratios)
        if len(ratios) >= FEWEST_FOR_AN_INTERVAL:
            values[task] = math.exp(fmean(map(math.log, ratios)))
    return over_tasks(values, sides, "down")


def _ratio_side(ratios: Sequence[float]) -> Side:
    if len(ratios) < FEWEST_FOR_AN_INTERVAL:
        return Side("missing", f"{len(ratios)} pairs")
    low, high = (math.exp(end) for end in interval([math.log(value) for value in ratios]))
    return Side("up" if low > 1 else "down" if high < 1 else "open", f"[{format_ratio(low)}, {format_ratio(high)}]")


def smaller_lipschitz(summaries: Sequence[Summary], tasks: Sequence[str], mask: str, quantity: str) -> Verdict:
    """A Lipschitz estimate of the loss (`gradient_initial`, `gradient`, `trajectory`) over full attention's."""
    entries = {e.task: e for s in summaries if s.analysis for e in s.analysis.matched
               if (e.mask, e.quantity) == (mask, quantity)}  # fmt: skip
    ratios = {
        task: [pair.ratio for pair in entries[task].pairs if pair.ratio] if task in entries else [] for task in tasks
    }
    sides = {task: _ratio_side(ratio) for task, ratio in ratios.items()}
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
