"""The main result in words, made from the numbers: no sentence claims more than its pairs and its interval carry."""

from dataclasses import dataclass

from ..summary_schema import Aggregate, ReachEntry, SpeedUpEntry, Summary, TaskEntry
from ..text import accuracy, percent, plural, reach_text
from .words import INTERVALS, direction_counts, epochs_of, no_pair_text, speed_up_words

ONE_PAIR = ("faster in one pair", "slower in one pair")
VERDICTS = ("faster", "faster in all pairs", ONE_PAIR[0], "slower", "slower in all pairs", ONE_PAIR[1], "open")
DECIDES_NOTHING = "One pair decides nothing"


@dataclass(frozen=True)
class Finding:
    """What one mask did on one task, in a sentence or a few.

    Args:
        task, mask: names.
        verdict: "faster" or "slower" (the interval lies on one side of 1), "faster in all pairs" or "slower in all pairs"
            (every pair does, and there is no interval or it includes 1), with a single pair one of `ONE_PAIR`, "open" (neither), or
            "no pair".
        text: the sentences.
        warning: that the mask cannot see the whole input; empty if it can.
    """

    task: str
    mask: str
    verdict: str
    text: str
    warning: str


def findings(summary: Summary) -> list[Finding]:
    """A finding for each task and mask but the baseline, in the order of the summary."""
    reaches = {(entry.task, entry.mask): entry for entry in summary.reach}
    aggregates = {(entry.task, entry.mask): entry for entry in summary.aggregates}
    tasks = {task.name: task for task in summary.tasks}
    found = []
    for entry in summary.speedups:
        if entry.quantity != "train":
            continue
        key = entry.task, entry.mask
        aggregate, base = aggregates[key], aggregates.get((entry.task, summary.baseline))
        verdict, text = _speed(summary, entry, aggregate, tasks[entry.task].tau)
        text += _heldout(aggregate, base, tasks[entry.task], summary.baseline)
        found.append(Finding(*key, verdict, text, blind_warning(reaches.get(key))))
    return found


def headline(summary: Summary) -> str:
    """One sentence over all tasks: for each mask, on how many tasks it was faster or slower, and on how many it is open.

    The words are those of the verdicts of `Finding`.
    """
    by_mask: dict[str, list[Finding]] = {}
    for finding in findings(summary):
        by_mask.setdefault(finding.mask, []).append(finding)
    if not by_mask:
        return f"Only {summary.baseline} was run: there is nothing to compare."
    parts = []
    for mask, of_mask in by_mask.items():
        verdicts = ["open" if finding.verdict == "no pair" else finding.verdict for finding in of_mask]
        words = [f"{word} on {verdicts.count(word)}" for word in VERDICTS if word in verdicts]
        blind = sum(bool(finding.warning) for finding in of_mask)
        note = f" (cannot see the whole input on {blind})" if blind else ""
        if len(verdicts) == 1:  # "on 1" says nothing where there is one task
            words, note = verdicts, note.replace(" on 1", "")
        parts.append(f"{mask} {', '.join(words)}{note}")
    count = plural(len(summary.tasks), "task")
    seeds = plural(len(summary.seeds), "seed")
    alone = (
        f" {DECIDES_NOTHING}." if any(one.verdict in ONE_PAIR for group in by_mask.values() for one in group) else ""
    )
    return f"Against {summary.baseline}, over {count} and {seeds}: {'; '.join(parts)}.{alone}"


def blind_warning(reach: ReachEntry | None) -> str:
    """The sentence for a mask whose reach does not span the task's length; empty for any other."""
    if reach is None or reach.sees_all is not False:
        return ""
    how = {"block": "information never leaves its", "window": "information travels at most"}
    return (
        f"It cannot see the whole input: through all its layers {how.get(reach.kind, 'a position sees')} {reach_text(reach)}. "
        "No benefit here may mean that it cannot see, not that focus does not help."
    )


def _speed(summary: Summary, entry: SpeedUpEntry, aggregate: Aggregate, tau: float | None) -> tuple[str, str]:
    baseline, words = summary.baseline, speed_up_words(entry)
    goal, n = f"{percent(tau)} training accuracy", entry.n_pairs
    if n == 0:
        reasons = "; ".join(f"seed {item.seed}: {no_pair_text(item)}" for item in entry.without_pair)
        return "no pair", f"No pair with {baseline} to compare ({reasons or 'no runs'})."
    theirs = summary.runs_of(entry.task, baseline)
    epochs = f"epochs {epochs_of(summary.runs_of(entry.task, entry.mask), 'train')}"
    epochs += f" against {epochs_of(theirs, 'train')}" if theirs else ""
    faster, slower = entry.faster, entry.slower
    pairs = plural(n, "pair")
    if entry.interval_kind in INTERVALS and entry.low is not None and entry.high is not None:
        if entry.low > 1:
            return "faster", f"Reached {goal} sooner than {baseline}: {words} over {pairs} ({epochs})."
        if entry.high < 1:
            return "slower", f"Reached {goal} later than {baseline}: {words} over {pairs} ({epochs})."
        if n in (faster, slower):
            verdict, when = ("faster", "sooner") if faster == n else ("slower", "later")
            return f"{verdict} in all pairs", (
                f"Reached {goal} {when} than {baseline} in all {pairs}, but the interval does not exclude 1: "
                f"{words} ({epochs})."
            )
        return "open", (f"No clear difference in epochs to {goal}: {words} over {pairs}; {_counts(entry)} ({epochs}).")
    too_few = f" {DECIDES_NOTHING}." if n == 1 else " Too few pairs for an interval." if n == 2 else ""
    never = aggregate.n_reached == 0 and aggregate.n_failed + aggregate.n_unfinished < aggregate.n_runs
    did_not = f"Did not reach {goal} in any run ({epochs})" if never else ""
    start = f"{did_not}. " if did_not else ""
    after = "" if did_not else f" ({epochs})"
    if entry.undetermined == n:
        return "open", f"{start}The speed-up is undetermined in {_all(n)}{after}."
    counts = _counts(entry)
    pairs_said = "one pair" if n == 1 else "all pairs"
    if faster == n:
        text = f"Reached {goal} sooner than {baseline} in {_all(n)}: {words.text} ({epochs}).{too_few}"
        return f"faster in {pairs_said}", text
    if slower == n:
        # A pair is slower without the mask having got there only where the baseline did.
        how = f"{did_not}; {baseline} did" if did_not else f"Reached {goal} later than {baseline}"
        return f"slower in {pairs_said}", f"{how} in {_all(n)}: {words.text}{after}.{too_few}"
    return "open", f"{start}{counts}; {words.text}{after}.{too_few}"


def _all(n: int) -> str:
    return "the one pair" if n == 1 else "both pairs" if n == 2 else f"all {n} pairs"


def _counts(entry: SpeedUpEntry) -> str:
    return f"{direction_counts(entry.pairs)} of {plural(entry.n_pairs, 'pair')}"


def _heldout(aggregate: Aggregate, base: Aggregate | None, task: TaskEntry, baseline: str) -> str:
    if aggregate.final_heldout_mean is None:
        return ""
    text = f" Held-out accuracy at the end {accuracy(aggregate.final_heldout_mean)}"
    if base and base.final_heldout_mean is not None:
        text += f" ({baseline} {accuracy(base.final_heldout_mean)}; chance {accuracy(task.chance)}"
        if task.majority_accuracy is not None:
            text += f", majority class {accuracy(task.majority_accuracy)}"
        text += ")"
    return text + "."
