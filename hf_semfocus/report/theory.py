"""What the theory predicts and what was seen, in words made from the summary's numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

from .tables import plural

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


def number(value: float | None) -> str:
    """Three significant digits; "n/a" where a quantity is not defined."""
    return "n/a" if value is None else f"{value:.3g}"


def sentences(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A verdict and a sentence for each prediction; none claims more than its interval carries."""
    found = []
    for entry in (summary.get("analysis") or {}).get("correlations", []):
        what = WORDS[entry["quantity"]]
        points = f"{plural(entry['n'], 'point')} on {plural(entry['tasks'], 'task')}"
        if entry["rho"] is None:
            why = "too few for a correlation" if entry["verdict"] == "too few tasks" else "whose ranks are all equal"
            text = f"Faster learning goes with {what}: not judged, {points} are {why}."
            if entry["verdict"] != "too few tasks":
                text = f"Faster learning goes with {what}: not judged, {points}, {why}."
        else:
            interval = f"ρ = {entry['rho']:.2f} [{entry['low']:.2f}, {entry['high']:.2f}], {points}"
            said = {
                "as predicted": "seen",
                "against the prediction": "the opposite was seen",
                "open": "open, the interval includes 0",
            }[entry["verdict"]]
            text = f"Faster learning goes with {what}: {said} (rank correlation with the speed-up {interval})."
        found.append((entry["verdict"], text))
    return found


def matched_sentences(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """For each mask and Lipschitz estimate the answer to whether it is smaller than the baseline's, and the ratios.

    The answer counts tasks: "yes" or "no" where all tasks that can be judged lie on that side, "mixed" where they disagree,
    "open" where no interval excludes 1.
    """
    analysis, baseline = summary.get("analysis") or {}, summary["baseline"]
    by_mask: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for entry in analysis.get("matched") or []:
        by_mask.setdefault((entry["mask"], entry["quantity"]), []).append(entry)
    said = []
    for (mask, quantity), entries in by_mask.items():
        count = {verdict: sum(e["verdict"] == verdict for e in entries) for verdict in ("smaller", "larger", "open")}
        judged = [word for word in ("smaller", "larger") if count[word]]
        answer = {(): "open", ("smaller",): "yes", ("larger",): "no"}.get(tuple(judged), "mixed")
        parts = [f"{word} on {count[word]}" for word in ("smaller", "larger", "open") if count[word]]
        missing = len(entries) - sum(count.values())
        parts += [f"not comparable on {missing}"] if missing else []
        tasks = plural(len(entries), "task")
        text = f"{COMPARED[quantity].format(mask=mask)} Of {tasks}: {', '.join(parts)}. Ratio to {baseline}'s: "
        said.append((answer, text + "; ".join(map(_matched_words, entries)) + "."))
    return said


def _matched_words(entry: Mapping[str, Any]) -> str:
    if entry["ratio"] is None:
        reasons = dict.fromkeys(one["reason"] for one in entry["without_pair"])
        return f"{entry['task']} n/a ({', '.join(reasons)})"
    pairs = entry["pairs"]
    interval = "" if entry["low"] is None else f" [{number(entry['low'])}, {number(entry['high'])}]"
    words = f"{entry['task']} {number(entry['ratio'])}{interval}, smaller in {entry['smaller']} of {plural(len(pairs), 'pair')}"
    if "high" in pairs[0]:
        high, low = (max(pair["high"] for pair in pairs), min(pair["low"] for pair in pairs))
        words += f", training losses {number(high)} to {number(low)}"
    if entry["without_pair"]:
        reasons = dict.fromkeys(one["reason"] for one in entry["without_pair"])
        words += f" ({plural(len(entry['without_pair']), 'pair')} left out: {', '.join(reasons)})"
    return words


def table(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """The units as text, a row a task and mask."""
    return [_row(unit) for unit in (summary.get("analysis") or {}).get("units", [])]


def k_sweep(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """The ``topk:k`` masks by task and k."""
    units: Sequence[Mapping[str, Any]] = (summary.get("analysis") or {}).get("k_sweep", [])
    order = list(dict.fromkeys(unit["task"] for unit in units))
    return [_row(unit) for task in order for unit in units if unit["task"] == task]


def _row(unit: Mapping[str, Any]) -> dict[str, str]:
    names = (*LABELS, "dispersion", "dispersion_ratio_initial", "heldout", "trajectory_median", "trajectory_max")
    row = {name: number(unit.get(name)) for name in names}
    bound = " (censored)" if unit["censored"] else ""
    return {
        **row,
        "task": unit["task"],
        "mask": unit["mask"],
        "k": str(unit["k"] or ""),
        "epochs": unit["epochs"],
        "speedup": number(unit["speedup"]) + bound,
    }
