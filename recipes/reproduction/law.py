"""The law of focus (tier 3) on the page: what `recipes/focus_law.py` makes of the stored sweep, in tables."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from itertools import combinations
from pathlib import Path
from typing import Any

from hf_semfocus.comparison.paired_tests import Judgement, as_ratios, judge_values, with_holm
from hf_semfocus.experiments.experiment import Experiment
from hf_semfocus.text import format_ratio, plural

from ..focus_law import (
    EXCEPTION,
    EXPLAINED,
    MASK,
    TASKS,
    FocusRun,
    focus_run,
    matched,
    of_common_labels,
    summary,
    swept_gains,
    vanishes,
)
from .archive import same_machine
from .page import VERDICTS, judged_text, of_one_task, speed_text
from .records import BASELINE, SEEDS, TIER_RECIPES, read_tier, stored_name

NAME = "tier3"
TITLE = "The law of focus (tier 3)"
QUESTIONS = {
    "focus:matched": f"`{MASK}` is faster at equal initial entropy; contradicted, and p of that, where 10 % are excluded",
    "focus:explains": "Initial entropy explains the differences: R² on the task left out is above 0.5",
    "focus:vanishes": f"The advantage of `{MASK}` falls with the gain: slope of its logarithm on that of the gain is below 0",
    "focus:exception": f"{EXCEPTION} differs from the other two: its speed-up at gain 1 over the mean of theirs is not 1",
}
SHARPER = (
    f"A sharper start instead of top-k (exploration): epochs of `{MASK}` as it is over those of full attention with a change (above 1: "
    "full attention with the change is faster). A gain is a factor on the initial weights of query and key; sparsemax and entmax-1.5, in "
    "place of softmax, give small scores a weight of exactly 0: sparse too, without a fixed number of keys."
)
PREDICTORS = {
    "entropy": "initial entropy H, H²",
    "dispersion": "initial dispersion ln δ, (ln δ)²",
    "mask": "the mask",
    "gain": "ln gain",
    "entropy and mask": "H, H² and the mask",
}


def read(results: Path) -> tuple[list[FocusRun], list[dict[str, Any]]]:
    """The runs of the stored sweep that count, of the protocol's seeds, and what is known of those that don't: they have not ended, or
    full attention of their task and seed was trained on another machine. Both empty where no sweep is stored.

    Raises:
        ValueError: it cannot be read, or is not of tier 3's recipe.
    """
    stored = [own for own in read_tier(results, NAME) if own.run.spec.seed in SEEDS]
    full = {own.run.key[::2]: own.machines for own in stored if own.run.label == BASELINE}
    counted, not_counted = [], []
    for own in stored:
        task, label, seed = own.run.key
        machines = [*own.machines, *full.get((task, seed), ())]
        one_machine = all(same_machine(first, second) for first, second in combinations(machines, 2))
        known = focus_run(own.run) if one_machine else None
        if known is not None:
            counted.append(known)
        elif own.run.history:
            why = own.run.status if one_machine else "another machine than full attention's"
            reached = own.run.convergence("train").reached
            not_counted.append(
                {
                    "task": task,
                    "label": label,
                    "seed": seed,
                    "epochs": len(own.run.history),
                    "reached": reached,
                    "why": why,
                }
            )
    return counted, not_counted


def judge(runs: Sequence[FocusRun], not_counted: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """`focus_law.summary`, what top-k gains over full attention at each change, and two of the claims of each task alone."""
    swept = summary(runs, f"python -m recipes.reproduction, from {stored_name(NAME)}")
    by_task = {task: of_common_labels([run for run in runs if run.task == task]) for task in swept["tasks"]}
    by_task = {task: of_task for task, of_task in by_task.items() if swept_gains(of_task)}
    # All tasks of the claim are its family, also those that have no sweep yet.
    matches = dict.fromkeys(TASKS, judge_values([])) | {task: matched(of_task)[0] for task, of_task in by_task.items()}
    corrected = with_holm(matches)
    return {
        "summary": swept,
        "not_counted": list(not_counted),
        "advantages": advantages(runs),
        "instead": instead(runs, swept["judged_labels"]),
        "alone": {
            task: {
                "focus:matched": asdict(as_ratios(corrected[task])),
                "focus:vanishes": asdict(vanishes(of_task)),
            }
            for task, of_task in by_task.items()
        },
    }


def advantages(runs: Sequence[FocusRun]) -> list[dict[str, Any]]:
    """Restricted epochs of full attention over those of top-k at the same change, judged over the seeds of each task."""
    by_entropy = sorted((run for run in runs if run.mask == BASELINE), key=lambda run: (run.task, -run.entropy))
    found = []
    for task, change in dict.fromkeys((run.task, run.label.removeprefix(BASELINE)) for run in by_entropy):
        full, sparse = (
            {run.seed: run for run in runs if (run.task, run.label) == (task, mask + change)}
            for mask in (BASELINE, MASK)
        )
        both = sorted(full.keys() & sparse.keys())
        if both:
            values = [full[seed].log_epochs - sparse[seed].log_epochs for seed in both]
            censored = sum(side[seed].censored for side in (full, sparse) for seed in both)
            judged = as_ratios(judge_values(values))
            found.append({"task": task, "change": change.lstrip(";"), "censored": censored, **asdict(judged)})
    return found


def instead(runs: Sequence[FocusRun], labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """By change of full attention in `labels`, and by task: epochs of top-k as it is over those of the change. Empty with one task."""
    logs = {(run.label, run.task, run.seed): run.log_epochs for run in runs}
    tasks, seeds = (list(dict.fromkeys(getattr(run, name) for run in runs)) for name in ("task", "seed"))
    if len(tasks) < 2 or MASK not in labels:
        return {}
    return {
        label: {
            task: asdict(as_ratios(judge_values([logs[MASK, task, seed] - logs[label, task, seed] for seed in seeds])))
            for task in tasks
        }
        for label in labels
        if label.startswith(f"{BASELINE};")
    }


def section(told: Mapping[str, Any], drawn: bool) -> list[str]:
    """Lines of Markdown, with the picture where it was drawn."""
    folder, swept = stored_name(NAME), told["summary"]
    return [
        f"## {TITLE}",
        "",
        f"Is `{MASK}` faster because its attention is sharper at the start? {plural(swept['runs'], 'run')} on "
        f"{', '.join(swept['tasks'])}, {swept['censored']} of them censored (they count with the ceiling). "
        f"`full` and `{MASK}` as they are: tier 1's runs (tiers: [protocol](../../docs/protocol.md#what-is-run)). "
        f"H: entropy of the untrained model's attention, 1 is uniform; `{MASK}` can have ln 5 / ln 40 = 0.436 at most. δ: mean range of "
        "its scores (ε in the protocol). gain: a factor on the initial weights of query and key; beta: an inverse temperature, scores are "
        "multiplied by beta / 8 instead of 1 / 8 (not β below); qk_norm: query and key are normalised; entmax15, sparsemax: instead of "
        f"softmax, both give small scores a weight of exactly 0. All runs: [{folder}]({folder}/README.md).",
        "",
        *(["![Epochs to τ against initial entropy](paper/law.png)", ""] if drawn else []),
        "| claim | effect [95 % interval] | verdict |",
        "| --- | --- | --- |",
        *(_question(name, swept["judgements"][name], provisional=bool(_lacking(swept))) for name in QUESTIONS),
        *(_question(name, judged, task) for task, alone in told["alone"].items() for name, judged in alone.items()),
        "",
        *_judged_labels(swept),
        *_explained(swept["judgements"]["focus:explains"]),
        *_not_counted(told["not_counted"]),
        "The masks' entropy is equal only where it is low. Where runs need one or two epochs there, one epoch is a factor of up to 2: the "
        "interval decides by the rule, but rests on such steps.",
        "",
        *([SHARPER, "", *_sharper(told["instead"], p=True), ""] if told["instead"] else []),
        f"`{MASK}` beside full attention with the same change (restricted epochs; above 1: `{MASK}` is faster). This table and the next "
        "decide nothing, and their p are not corrected:",
        "",
        "| task | change | speed-up [95 % interval] | pairs | censored runs |",
        "| --- | --- | --- | --- | --- |",
        *(
            f"| {one['task']} | {one['change'] or 'none'} | {_effect(one)} | {one['n']} | {one['censored']} |"
            for one in told["advantages"]
        ),
        "",
        "Each change beside full attention as it is:",
        "",
        "| task | variant | H | δ | epochs (geometric mean) | runs, censored | speed-up [95 % interval] |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *_groups(swept),
        "",
    ]


def results_lines(told: Mapping[str, Any]) -> list[str]:
    """For docs/results.md, below its table by gain: what is judged."""
    judgements, lines = told["summary"]["judgements"], []
    for task, alone in told["alone"].items():
        if alone["focus:matched"]["p"] is not None:
            judged = _judgement(alone["focus:matched"])
            verdict = of_one_task(judged).replace("**", "")
            lines.append(
                f"- The same at equal initial entropy (0.44 at most): {task} {speed_text(judged)}, {verdict}."
            )
    if judgements["focus:vanishes"] is not None:
        explained = judgements["focus:explains"]["entropy"]["left_out"]
        provisional = ", provisional" if _lacking(told["summary"]) else ""
        lines += [
            f"- That the advantage falls with the gain, over the three tasks at gains {_gains(told['summary'])}: ln(advantage) on ln(gain) "
            f"has {_slope(judgements['focus:vanishes'])}, {_plain(judgements['focus:vanishes'])}{provisional}.",
            f"- That initial entropy explains the epochs of a task from those of the others: R² on the task left out {_share(explained)}, "
            f"where the claim asks for more than {EXPLAINED:g}: {_plain(explained)}{provisional}.",
        ]
    if told["instead"]:
        ranges = (
            f"`{label.partition(';')[2]}` {_range([one['estimate_low'] for one in of_label.values()])}"
            for label, of_label in told["instead"].items()
        )
        lines.append(
            f"- A sharper start instead of top-k (exploration): epochs of `{MASK}` as it is over those of full attention with "
            f"{', '.join(ranges)} over the tasks."
        )
    return lines


def results_table(told: Mapping[str, Any]) -> list[str]:
    """For docs/results.md: what top-k gains at each gain of attention; empty without a sweep of six seeds."""
    found = {
        (one["task"], float(one["change"].removeprefix("gain=") or 1)): speed_text(_judgement(one))
        for one in told["advantages"]
        if one["p"] is not None and (not one["change"] or one["change"].startswith("gain="))
    }
    if not found:
        return []
    tasks = list(dict.fromkeys(task for task, _ in found))
    return [
        f"The law of focus: with larger initial weights of query and key (gain), epochs of full attention over those of `{MASK}`:",
        "",
        f"| gain | {' | '.join(tasks)} |",
        f"|---|{'---|' * len(tasks)}",
        *(
            f"| {gain:g} | {' | '.join(found.get((task, gain), '–') for task in tasks)} |"
            for gain in sorted({gain for _, gain in found})
        ),
    ]


def _gains(swept: Mapping[str, Any]) -> str:
    """Those at which both masks are judged over the tasks."""
    judged = [group for group in swept["groups"] if group["label"] in swept["judged_labels"]]
    gains = {group["label"]: group["gain"] for group in judged}
    both = {
        gain
        for label, gain in gains.items()
        if label.removeprefix(BASELINE) in ("", f";gain={gain:g}") and MASK + label.removeprefix(BASELINE) in gains
    }
    return " and ".join(f"{gain:g}" for gain in sorted(both))


def readme_text(told: Mapping[str, Any]) -> str:
    """For the README: what a sharper start does instead of a mask; empty while fewer than two tasks are swept."""
    link = "[The law of focus](recipes/results/paper.md#the-law-of-focus-tier-3)."
    return "\n".join([f"{SHARPER} {link}", "", *_sharper(told["instead"], p=False)]) if told["instead"] else ""


def _sharper(found: Mapping[str, Mapping[str, Any]], p: bool) -> list[str]:
    """The table of `instead`, a change a row."""
    tasks = list(next(iter(found.values())))
    return [
        f"| full attention with | {' | '.join(tasks)} |",
        f"|---|{'---|' * len(tasks)}",
        *(
            f"| `{label.partition(';')[2]}` | "
            + " | ".join(_effect(of_label[task]) if p else speed_text(_judgement(of_label[task])) for task in tasks)
            + " |"
            for label, of_label in found.items()
        ),
    ]


def _groups(swept: Mapping[str, Any]) -> list[str]:
    changes = {(change["task"], change["label"]): change for change in swept["changes"]}
    rows = []
    for group in sorted(swept["groups"], key=lambda group: (group["task"], -group["entropy"])):
        change = changes.get((group["task"], group["label"]))
        compared = _effect(change) if change else "baseline"
        rows.append(
            f"| {group['task']} | `{group['label']}` | {group['entropy']:.3f} | {group['dispersion']:.2f} | {group['epochs']:.1f} | "
            f"{group['runs']}, {group['censored']} | {compared} |"
        )
    return rows


def _not_counted(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    if not runs:
        return []
    named = (
        f"{run['task']} `{run['label']}` seed {run['seed']} ({run['why']} after {plural(run['epochs'], 'epoch')}, "
        f"{'τ' if run['reached'] else 'τ not'} reached)"
        for run in runs
    )
    return [f"Not counted: {'; '.join(named)}. The protocol's diary says why.", ""]


def _judged_labels(swept: Mapping[str, Any]) -> list[str]:
    if len(swept["tasks"]) < 2:
        return []
    judged, lacking = ", ".join(f"`{label}`" for label in swept["judged_labels"]), _lacking(swept)
    missing = (
        f" *Provisional*: a task or seed lacks {plural(len(lacking), 'variant')} of the recipe." if lacking else ""
    )
    return [f"Over the tasks, those variants are judged that each has in every seed: {judged}.{missing}", ""]


def _explained(judged: Mapping[str, Any] | None) -> list[str]:
    """What each predictor explains."""
    if judged is None:
        return []
    return [
        "| predictor | R² on the task left out [95 % interval] | R² on the tasks of the fit |",
        "| --- | --- | --- |",
        *(
            f"| {PREDICTORS[name]} | {_share(both['left_out'])} | {_share(both['within'])} |"
            for name, both in judged.items()
        ),
        "",
    ]


def _share(values: Mapping[str, Any]) -> str:
    if values["p"] is None:
        return "–"
    return f"{values['estimate_low']:.2f} [{values['low']:.2f}, {values['high']:.2f}]".replace("-", "−")


def _lacking(swept: Mapping[str, Any]) -> list[str]:
    """The recipe's variants that some task or seed lacks."""
    return [
        label
        for label in Experiment.from_yaml(TIER_RECIPES / f"{NAME}.yaml").masks
        if label not in swept["judged_labels"]
    ]


def _question(name: str, judged: Mapping[str, Any] | None, task: str | None = None, provisional: bool = False) -> str:
    words = f"{QUESTIONS[name]} ({f'`{name}`' if task is None else f'{task} alone'})"
    if judged is None:
        return f"| {words} | – | not tested: runs that it needs are missing |"
    if name == "focus:explains":
        judged = judged["entropy"]["left_out"]
    # No rule of the protocol gives this one a verdict on a task alone.
    verdict = "exploration" if task and name == "focus:vanishes" else _verdict(judged)
    if task and name == "focus:matched":
        verdict = of_one_task(_judgement(judged))
    verdict += " (provisional)" if provisional and name != "focus:exception" and judged["p"] is not None else ""
    effect = (
        _share(judged) if name == "focus:explains" else _slope(judged) if name == "focus:vanishes" else _effect(judged)
    )
    return f"| {words} | {effect} | {verdict} |"


def _slope(judged: Mapping[str, Any]) -> str:
    """Of the advantage on the gain; the judgement is of minus the slope."""
    if judged["p"] is None:
        return "–"
    interval = f"{-judged['estimate_low']:.2f} [{-judged['high']:.2f}, {-judged['low']:.2f}]".replace("-", "−")
    return f"slope {interval}, p = {judged['p']:.2g}"


def _range(ratios: Sequence[float]) -> str:
    return f"{format_ratio(min(ratios))}× to {format_ratio(max(ratios))}×"


def _plain(values: Mapping[str, Any]) -> str:
    return _verdict(values).replace("**", "")


def _judgement(values: Mapping[str, Any]) -> Judgement:
    return Judgement(**{field.name: values[field.name] for field in fields(Judgement)})


def _effect(values: Mapping[str, Any]) -> str:
    return judged_text(_judgement(values))


def _verdict(values: Mapping[str, Any]) -> str:
    return VERDICTS[values["verdict"]]
