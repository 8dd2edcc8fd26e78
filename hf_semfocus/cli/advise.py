"""`semfocus advise`: say what attention looks like before training, and which change the stored evidence supports."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .parsing import add_command, add_field, add_run_options, asked, described
from .terminal import console, quiet_libraries

if TYPE_CHECKING:
    from ..experiments.spec import RunSpec
    from ..schema import AttentionRecord

STORED = Path(__file__).with_name("focus_law.json")
MARGIN = 0.02
"""Normalised entropy by which a model may lie outside of what the evidence starts from."""
SHARPENED = {"attention_scale": None, "qk_norm": False, "normalizer": "softmax"}
"""Fields beside the gain that change how sharp attention starts, as they are without."""


def add_parser(commands: Any) -> None:
    """Adds `advise`."""
    parser = add_command(commands, *described(__doc__), "semfocus advise even_pairs", run)
    text = "a task, with the paper's recipe and the options given here over it, or a run's folder"
    parser.add_argument("task_or_run", metavar="TASK_OR_RUN", help=text)
    add_field(parser, "--mask", "mask", "of a task's model: a mask specification or a variant (default: full)")
    add_field(parser, "--seed", "seed", "of a task's model: fixes the data and the weights (default: 0)", type=int)
    text = "a summary by recipes/focus_law.py (default: what came with this version)"
    parser.add_argument("--evidence", metavar="FILE", help=text)
    add_run_options(parser)


def run(options: argparse.Namespace) -> int:
    """Prints two sentences on a task's untrained model (with the paper's recipe and what is asked for), or on a run's."""
    quiet_libraries()
    from ..data import list_tasks, task_info
    from ..experiments.imports import import_strategies
    from ..training.results import untrained_attention

    settings, what = asked(options), options.task_or_run
    import_strategies(settings.pop("imports", []))
    evidence = stored_evidence(options.evidence)
    if what in list_tasks("all"):
        spec = _of_task(what, settings)
    elif not Path(what).exists():
        try:
            task_info(what)
        except ValueError as error:
            raise ValueError(f"{what!r} is neither a task nor the folder of a run: {error}") from None
    elif settings:
        raise ValueError(f"{what} is a run, which has its own settings; options that change them are for a task")
    else:
        spec = _of_run(Path(what))
    start = untrained_attention(spec)
    if start is None:
        raise ValueError(f"the inputs of {what} have one token, which leaves attention nothing to choose")
    console().print(f"{looks(spec, start)} {supports(spec, start, evidence)}", soft_wrap=True, highlight=False)
    return 0


def stored_evidence(file: str | None) -> dict[str, Any]:
    """A summary that `recipes/focus_law.py` wrote; the one that came with the package where none is named."""
    from ..files import read_json

    place = STORED if file is None else Path(file)
    evidence = read_json(place)
    if not isinstance(evidence, dict) or not evidence.keys() >= {"tasks", "changes", "baseline_entropy"}:
        raise ValueError(f"{place} is no summary of the law of focus; allowed: one by `recipes/focus_law.py --output`")
    return evidence


def looks(spec: "RunSpec", start: "AttentionRecord") -> str:
    """The first sentence."""
    sparse = "" if start["entropy"] == start["entropy_all"] else f" ({start['entropy_all']:.3f} without the mask)"
    return (
        f"Before training, attention under {spec.label} on {spec.task} (seed {spec.seed}, gain {start['attention_gain']:g}) has a "
        f"normalised entropy of {start['entropy']:.3f}{sparse}, where 1 is uniform over all keys, and scores with a mean dispersion δ of "
        f"{start['dispersion_all']:.2f}."
    )


def supports(spec: "RunSpec", start: "AttentionRecord", evidence: Mapping[str, Any]) -> str:
    """The second sentence: the change with the largest lower end of its interval among those that are supported."""
    from ..text import format_ratio, plural

    low, high = evidence["baseline_entropy"]
    changed = start["attention_gain"] != 1 or any(
        spec.model.get(name, plain) not in (plain, None) for name, plain in SHARPENED.items()
    )
    if spec.mask != "full" or changed or not low - MARGIN <= start["entropy"] <= high + MARGIN:
        return (
            f"The stored evidence starts from full attention as it is, with an entropy of {low:.3f} to {high:.3f}, which this is not, so "
            "it supports no change here."
        )
    known = spec.task in evidence["tasks"]
    if not known and len(evidence["tasks"]) == 1:
        return f"The stored evidence is of {evidence['tasks'][0]} alone, so it supports no change here."
    changes = [change for change in evidence["changes"] if change["task"] == (spec.task if known else None)]
    tried = [change for change in changes if change["verdict"] != "not_tested"]
    where = (
        f"on {spec.task}" if known else f"on {', '.join(evidence['tasks'])} together (there is none on {spec.task})"
    )
    about = f"the {plural(len(tried), 'change')} that the stored evidence compares with full attention {where}"
    better = [change for change in tried if change["verdict"] == "supported"]
    if not better:
        return f"None of {about} is supported as faster."
    best = max(better, key=lambda change: change["low"])
    by_task = [
        change["estimate_low"]
        for change in evidence["changes"]
        if change["task"] and change["label"] == best["label"] and change["verdict"] != "not_tested"
    ]
    by, low, high = (format_ratio(best[name]) for name in ("estimate_low", "low", "high"))
    lies = (
        ""
        if known or not by_task
        else f"; from {format_ratio(min(by_task))} to {format_ratio(max(by_task))} by task, and another task may lie outside"
    )
    return (
        f"Of {about}, {len(better)} {'is' if len(better) == 1 else 'are'} supported as faster, each judged alone at 5 %, and the "
        f"clearest is `{best['change']}`: {by} times as fast to 95 % training accuracy ({best['n']} pairs of runs at the paper's "
        f"recipe, 95 % interval over seeds {low} to {high}{lies})."
    )


def _of_task(task: str, settings: Mapping[str, Any]) -> "RunSpec":
    """The paper's recipe where the paper has the task; `settings` go over it."""
    from ..experiments.options import merged
    from ..experiments.presets import preset
    from ..experiments.spec import RunSpec

    paper, mask = preset("paper"), settings.get("mask", "full")
    base = paper.spec(task, mask, 0).to_dict() if task in paper.tasks else {"mask": mask}
    # A variant has a mask of its own under its name.
    return RunSpec.from_dict(merged(base, {**settings, "task": task, "mask": base["mask"]}))


def _of_run(folder: Path) -> "RunSpec":
    from ..experiments.spec import RunSpec
    from ..files import read_json
    from .analyze_sources import source_of

    if (folder / "spec.json").is_file():
        return RunSpec.from_dict(read_json(folder / "spec.json"))
    spec = source_of(folder).spec
    if spec is None:
        raise ValueError(
            f"{folder} does not say which run it is of, so its untrained model cannot be made; give a task"
        )
    return spec
