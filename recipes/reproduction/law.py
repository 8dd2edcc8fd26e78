"""The law of focus (tier 3) on the page: what `recipes/focus_law.py` makes of the stored sweep, in tables."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from hf_semfocus.comparison.paired_tests import Judgement, as_ratios, judge_values
from hf_semfocus.text import plural

from ..focus_law import EXCEPTION, MASK, FocusRun, focus_run, matched, summary
from .page import VERDICTS, judged_text
from .records import BASELINE, read_tier, stored_name

NAME = "tier3"
TITLE = "The law of focus (tier 3)"
QUESTIONS = {
    "focus:matched": f"`{MASK}` is faster at equal initial entropy",
    "focus:explains": "Initial entropy explains the differences: R² on the task left out is above 0.5",
    "focus:vanishes": f"The advantage of `{MASK}` falls with the gain",
    "focus:exception": f"{EXCEPTION} differs from the other two",
}


def read(results: Path) -> list[FocusRun]:
    """The runs of the stored sweep that have ended; none where it is not stored.

    Raises:
        ValueError: it cannot be read, or is not of tier 3's recipe.
    """
    return [known for own in read_tier(results, NAME) if (known := focus_run(own.run)) is not None]


def judge(runs: Sequence[FocusRun]) -> dict[str, Any]:
    """`focus_law.summary`, what top-k gains over full attention at each change, and `focus:matched` of each task alone."""
    swept = summary(runs, f"python -m recipes.reproduction, from {stored_name(NAME)}")
    alone = {task: matched([run for run in runs if run.task == task], MASK)[0] for task in swept["tasks"]}
    return {
        "summary": swept,
        "advantages": advantages(runs),
        "matched_alone": {task: asdict(as_ratios(judged)) for task, judged in alone.items()},
    }


def advantages(runs: Sequence[FocusRun]) -> list[dict[str, Any]]:
    """Restricted epochs of full attention over those of top-k at the same change, judged over the seeds of each task."""
    changes = dict.fromkeys((run.task, run.label.removeprefix(BASELINE)) for run in runs if run.mask == BASELINE)
    found = []
    for task, change in changes:
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


def section(told: Mapping[str, Any], drawn: bool) -> list[str]:
    """Lines of Markdown, with the picture where it was drawn."""
    folder, swept = stored_name(NAME), told["summary"]
    return [
        f"## {TITLE}",
        "",
        f"Is `{MASK}` faster because its attention is sharper at the start? {plural(swept['runs'], 'run')} on "
        f"{', '.join(swept['tasks'])}, {swept['censored']} of them censored (they count with the ceiling). H: entropy of the untrained "
        f"model's attention, 1 is uniform; δ: mean range of its scores. All runs: [{folder}]({folder}/README.md).",
        "",
        *(["![Epochs to τ against initial entropy](paper/law.png)", ""] if drawn else []),
        "| claim | effect [95 % interval] | verdict |",
        "| --- | --- | --- |",
        *(_question(name, swept["judgements"][name]) for name in QUESTIONS),
        *(
            f"| {QUESTIONS['focus:matched']}, {task} alone | {_effect(judged)} | {_verdict(judged)} |"
            for task, judged in told["matched_alone"].items()
        ),
        "",
        f"`{MASK}` beside full attention with the same change (restricted epochs; above 1: `{MASK}` is faster):",
        "",
        "| task | change | speed-up [95 % interval] | verdict | pairs | censored runs |",
        "| --- | --- | --- | --- | --- | --- |",
        *(
            f"| {one['task']} | {one['change'] or 'none'} | {_effect(one)} | {_verdict(one)} | {one['n']} | {one['censored']} |"
            for one in told["advantages"]
        ),
        "",
        "Each change beside full attention as it is:",
        "",
        "| task | variant | H | δ | epochs (geometric mean) | runs, censored | speed-up [95 % interval] | verdict |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        *_groups(swept),
        "",
    ]


def _groups(swept: Mapping[str, Any]) -> list[str]:
    changes = {(change["task"], change["label"]): change for change in swept["changes"]}
    rows = []
    for group in sorted(swept["groups"], key=lambda group: (group["task"], -group["entropy"])):
        change = changes.get((group["task"], group["label"]))
        compared = f"{_effect(change)} | {_verdict(change)}" if change else "baseline | "
        rows.append(
            f"| {group['task']} | `{group['label']}` | {group['entropy']:.3f} | {group['dispersion']:.2f} | {group['epochs']:.1f} | "
            f"{group['runs']}, {group['censored']} | {compared} |"
        )
    return rows


def _question(name: str, judged: Mapping[str, Any] | None) -> str:
    if judged is None:
        return f"| {QUESTIONS[name]} (`{name}`) | – | not tested: the sweep is not complete |"
    if name == "focus:explains":
        judged = judged["entropy"]["left_out"]
        effect = f"{judged['estimate_low']:.2f} [{judged['low']:.2f}, {judged['high']:.2f}]"
    elif name == "focus:vanishes":
        effect = f"slope {-judged['estimate_low']:.2f} [{-judged['high']:.2f}, {-judged['low']:.2f}]"
    else:
        effect = _effect(judged)
    return f"| {QUESTIONS[name]} (`{name}`) | {effect} | {_verdict(judged)} |"


def _judgement(values: Mapping[str, Any]) -> Judgement:
    return Judgement(**{field.name: values[field.name] for field in fields(Judgement)})


def _effect(values: Mapping[str, Any]) -> str:
    return judged_text(_judgement(values))


def _verdict(values: Mapping[str, Any]) -> str:
    return VERDICTS[values["verdict"]]
