"""What the theory predicts and what was seen, in words made from the summary's numbers."""

from ..summary_schema import Analysis, Matched, Summary, Unit
from ..text import epochs_text, number, plural

WORDS = {
    "dispersion_ratio": "a smaller dispersion of the kept scores (δ_h/δ_s, at the end)",
    "separation": "a larger separation of kept from left-out scores (Δ, at the end)",
    "improvement_share": "more queries whose stability constant is smaller than full attention's (ξ_h < ξ_s, at the end)",
    "mask_stability": "a mask that changes less under noise (masks that choose by the scores, at the end)",
    "gradient_ratio_initial": "a smaller gradient of the loss than the baseline's at the same initial weights",
    "gradient_ratio_matched": "a smaller gradient of the loss than the baseline's at the same training loss",
    "trajectory_ratio_matched": "a loss that changes less along the path, per unit of length, than the baseline's at the same training "
    "loss",
}
LABELS = {
    "dispersion_ratio": "δ of kept scores / δ of all scores",
    "separation": "separation Δ",
    "improvement_share": "share of queries with ξ_h < ξ_s",
    "gradient_ratio_initial": "‖∇loss‖ / baseline's, same weights",
    "gradient_ratio_matched": "‖∇loss‖ / baseline's, same loss",
    "trajectory_ratio_matched": "|Δloss|/‖Δθ‖ / baseline's, same loss",
    "mask_stability": "kept keys that stay under noise (ε = 0.1)",
}
COMPARED = {
    "gradient_initial": "At the same initial weights (the same θ), is the gradient of the loss smaller under {mask}?",
    "gradient": "At the same training loss, is the gradient of the loss smaller under {mask}?",
    "trajectory": "At the same training loss, does the loss change less along the path, per unit of length, under {mask}?",
}
REASONS = {
    "not_recorded": "not recorded",
    "baseline_not_recorded": "{baseline} recorded nothing",
    "no_common_loss": "no training loss that both went through",
}


def _of(summary: Summary) -> Analysis:
    """The section of the summary; an empty one where nothing was recorded."""
    return summary.analysis or Analysis()


def sentences(summary: Summary) -> list[tuple[str, str]]:
    """A verdict and a sentence for each prediction; none claims more than its interval carries."""
    found: list[tuple[str, str]] = []
    for entry in _of(summary).correlations:
        what = WORDS[entry.quantity]
        points = f"{plural(entry.n, 'point')} on {plural(entry.tasks, 'task')}"
        if entry.rho is None:
            why = "too few for a correlation" if entry.verdict == "too few tasks" else "whose ranks are all equal"
            text = f"Faster learning goes with {what}: not judged, {points} are {why}."
            if entry.verdict != "too few tasks":
                text = f"Faster learning goes with {what}: not judged, {points}, {why}."
        else:
            interval = f"ρ = {entry.rho:.2f} [{entry.low:.2f}, {entry.high:.2f}], {points}"
            said = {
                "as predicted": "seen",
                "against the prediction": "the opposite was seen",
                "open": "open, the interval includes 0",
            }[entry.verdict]
            text = f"Faster learning goes with {what}: {said} (rank correlation with the speed-up {interval})."
        found.append((entry.verdict, text))
    return found


def matched_sentences(summary: Summary) -> list[tuple[str, str]]:
    """For each mask and Lipschitz estimate the answer to whether it is smaller than the baseline's, and the ratios.

    The answer counts tasks: "yes" or "no" where all tasks that can be judged lie on that side, "mixed" where they disagree,
    "open" where no interval excludes 1.
    """
    baseline = summary.baseline
    by_mask: dict[tuple[str, str], list[Matched]] = {}
    for entry in _of(summary).matched:
        by_mask.setdefault((entry.mask, entry.quantity), []).append(entry)
    said = []
    for (mask, quantity), entries in by_mask.items():
        count = {verdict: sum(e.verdict == verdict for e in entries) for verdict in ("smaller", "larger", "open")}
        judged = [word for word in ("smaller", "larger") if count[word]]
        answer = {(): "open", ("smaller",): "yes", ("larger",): "no"}.get(tuple(judged), "mixed")
        parts = [f"{word} on {count[word]}" for word in ("smaller", "larger", "open") if count[word]]
        missing = len(entries) - sum(count.values())
        parts += [f"not comparable on {missing}"] if missing else []
        tasks = plural(len(entries), "task")
        text = f"{COMPARED[quantity].format(mask=mask)} Of {tasks}: {', '.join(parts)}. Ratio to {baseline}'s: "
        said.append((answer, text + "; ".join(_matched_words(entry, baseline) for entry in entries) + "."))
    return said


def _matched_words(entry: Matched, baseline: str) -> str:
    reasons = dict.fromkeys(REASONS[one.reason].format(baseline=baseline) for one in entry.without_pair)
    if entry.ratio is None:
        return f"{entry.task} n/a ({', '.join(reasons)})"
    pairs = entry.pairs
    interval = "" if entry.low is None else f" [{number(entry.low)}, {number(entry.high)}]"
    words = f"{entry.task} {number(entry.ratio)}{interval}, smaller in {entry.smaller} of {plural(len(pairs), 'pair')}"
    highs, lows = ([value for pair in pairs if (value := pair[end]) is not None] for end in ("high", "low"))
    if highs:
        high, low = max(highs), min(lows)
        words += f", training losses {number(high)} to {number(low)}"
    if entry.without_pair:
        words += f" ({plural(len(entry.without_pair), 'pair')} left out: {', '.join(reasons)})"
    return words


def table(summary: Summary) -> list[dict[str, str]]:
    """The units as text, a row a task and mask."""
    return [_row(unit) for unit in _of(summary).units]


def k_sweep(summary: Summary) -> list[dict[str, str]]:
    """The ``topk:k`` masks by task and k."""
    units = _of(summary).k_sweep
    order = list(dict.fromkeys(unit.task for unit in units))
    return [_row(unit) for task in order for unit in units if unit.task == task]


def _row(unit: Unit) -> dict[str, str]:
    names = (*LABELS, "dispersion", "dispersion_ratio_initial", "heldout", "trajectory_median", "trajectory_max")
    row = {name: number(unit.get(name)) for name in names}
    bound = " (censored)" if unit.censored else ""
    return {
        **row,
        "task": unit.task,
        "mask": unit.mask,
        "k": str(unit.k or ""),
        "epochs": ", ".join(map(epochs_text, unit.epochs)),
        "speedup": number(unit.speedup) + bound,
    }
