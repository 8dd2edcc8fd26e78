"""`semfocus advise`: what attention looks like before training, and which change the stored evidence supports."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from ..data import list_tasks, task_info
from ..experiments.experiment import merged
from ..experiments.imports import import_strategies
from ..experiments.presets import preset
from ..experiments.spec import RunSpec
from ..files import read_json
from ..training.results import untrained_attention
from .analyze_sources import source_of

FORMAT = 1
STORED = Path(__file__).with_name("focus_law.json")
MARGIN = 0.02
"""Normalised entropy by which a model may lie outside of what the evidence starts from."""


def run_advise(options: argparse.Namespace, asked: Mapping[str, Any], console: Console) -> int:
    """Prints two sentences on a task's untrained model (with the paper's recipe and what is asked for), or on a run's."""
    import_strategies(options.imports)
    what = options.task_or_run
    evidence = stored_evidence(options.evidence)
    if what in list_tasks("all"):
        spec = _of_task(what, asked)
    elif not Path(what).exists():
        try:
            task_info(what)
        except ValueError as error:
            raise ValueError(f"{what!r} is neither a task nor the folder of a run: {error}") from None
    elif asked:
        raise ValueError(f"{what} is a run, which has its own settings; options that change them are for a task")
    else:
        spec = _of_run(Path(what))
    start = untrained_attention(spec)
    if start is None:
        raise ValueError(f"the inputs of {what} have one token, which leaves attention nothing to choose")
    console.print(f"{looks(spec, start)} {supports(spec, start, evidence)}", soft_wrap=True, highlight=False)
    return 0


def stored_evidence(file: str | None) -> dict[str, Any] | None:
    """A summary that `recipes/focus_law.py` wrote; None where none is named and none came with the package."""
    path = STORED if file is None else Path(file)
    if file is None and not path.is_file():
        return None
    if not path.is_file():
        raise ValueError(f"--evidence {path} is no file; allowed: a summary by `recipes/focus_law.py --output`")
    found = read_json(path)
    told = isinstance(found, dict) and found.get("format") == FORMAT
    if not told or not all(isinstance(found.get(name), list) for name in ("tasks", "changes", "baseline_entropy")):
        raise ValueError(f"{path} is no summary of the law of focus; allowed: one by `recipes/focus_law.py --output`")
    return found


def looks(spec: RunSpec, start: Mapping[str, Any]) -> str:
    """The first sentence."""
    sparse = "" if start["entropy"] == start["entropy_all"] else f" ({start['entropy_all']:.3f} without the mask)"
    return (
        f"Before training, attention under {spec.label} on {spec.task} (seed {spec.seed}, gain {start['attention_gain']:g}) has a "
        f"normalised entropy of {start['entropy']:.3f}{sparse}, where 1 is uniform over all keys, and scores with a mean dispersion δ of "
        f"{start['dispersion_all']:.2f}."
    )


def supports(spec: RunSpec, start: Mapping[str, Any], evidence: Mapping[str, Any] | None) -> str:
    """The second sentence: the change with the largest lower end of its interval among those that are supported."""
    if evidence is None:
        return "No evidence on the law of focus is stored yet, so no change is advised."
    low, high = evidence["baseline_entropy"]
    if spec.mask != "full" or not low - MARGIN <= start["entropy"] <= high + MARGIN:
        return (
            f"The stored evidence starts from full attention with an entropy of {low:.3f} to {high:.3f}, which this is not, so it supports "
            "no change here."
        )
    known = spec.task in evidence["tasks"]
    changes = [change for change in evidence["changes"] if change["task"] == (spec.task if known else None)]
    tried = [change for change in changes if change["verdict"] != "not_tested"]
    where = (
        f"on {spec.task}" if known else f"on {', '.join(evidence['tasks'])} together (there is none on {spec.task})"
    )
    about = f"the {len(tried)} changes that the stored evidence compares with full attention {where}"
    better = [change for change in tried if change["verdict"] == "supported"]
    if not better:
        return f"None of {about} is supported as faster."
    best = max(better, key=lambda change: change["low"])
    return (
        f"Of {about}, {len(better)} are supported as faster, each judged alone at 5 %, and the clearest is `{best['change']}`: "
        f"{best['estimate_low']:.2f} times as fast to 95 % training accuracy ({best['n']} pairs of runs at the paper's recipe, 95 % "
        f"interval {best['low']:.2f} to {best['high']:.2f})."
    )


def _of_task(task: str, asked: Mapping[str, Any]) -> RunSpec:
    """The paper's recipe where the paper has the task; `asked` goes over it."""
    paper, values = preset("paper"), dict(asked)
    mask = values.pop("mask", "full")
    base = {"task": task, "mask": mask}
    if task in paper.tasks:
        base = paper.spec(task, mask, 0).to_dict()
        del base["mask_source"]
    return RunSpec.from_dict(merged(base, values))


def _of_run(folder: Path) -> RunSpec:
    if (folder / "spec.json").is_file():
        return RunSpec.from_dict(read_json(folder / "spec.json"))
    spec = source_of(folder).spec
    if spec is None:
        raise ValueError(f"{folder} does not tell its run, so its untrained model cannot be made; give a task")
    return spec
