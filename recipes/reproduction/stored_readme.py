"""README.md of a stored result: what was run where, what became of it, and how to make it again."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hf_semfocus.report.findings import headline
from hf_semfocus.report.html import PICTURES, outcome
from hf_semfocus.report.tables import markdown_table
from hf_semfocus.schema import FINISHED, STATUSES, Earlier
from hf_semfocus.summary_schema import Summary

ARCHIVE = "histories.tar.xz"


def counts(summary: Summary) -> dict[str, int]:
    """How many runs were asked for, and what became of them. "missing" runs were never started."""
    statuses: list[str] = ["missing" if run.path is None else run.status for run in summary.runs]
    known = {status: statuses.count(status) for status in (*STATUSES, "unfinished", "missing")}
    return {"asked": len(statuses), "finished": sum(known[status] for status in FINISHED), **known}


def core_hours(summary: Summary) -> float:
    """Of all epochs that are stored, evaluation included; a run has one thread."""
    return sum(run.seconds or 0.0 for run in summary.runs) / 3600


def machine_text(machine: Mapping[str, Any] | None) -> str:
    """A machine in words."""
    if not machine:
        return "not recorded"
    products = "products by oneDNN" if machine.get("products") == "onednn" else ""
    words = (
        machine.get("processor", "not recorded"),
        f"{machine.get('cores', '?')} cores",
        machine.get("platform"),
        products,
    )
    return ", ".join(filter(None, words))


def _place(values: Summary | Earlier) -> str:
    return f"{machine_text(values.machine)}; started {values.created}"


def about(summary: Summary, folder: Path, name: str, left_out: Iterable[str] = (), checkpoints: int = 0) -> str:
    """README.md of the stored result `name`, whose other files are in `folder`."""
    number = counts(summary)
    versions = ", ".join(f"{name} {version}" for name, version in summary.versions.items())
    lines = [
        f"# {name}",
        "",
        f"{summary.note or ''}",
        "",
        "```bash",
        f"{summary.command or '(the command was not recorded)'}",
        "```",
        "",
        f"- Runs: {number['asked']} asked for; {number['finished']} finished ({number['reached']} reached τ, {number['censored']} "
        f"censored, {number['diverged']} diverged), {number['failed']} failed, {number['unfinished']} unfinished, "
        f"{number['missing']} not started.",
        f"- Cost so far: {core_hours(summary):.2f} core-hours, one thread a run.",
        f"- Machine: {_place(summary)}.",
        f"- Versions: {versions}.",
        *(f"- Trained before on {_place(entry)}." for entry in summary.earlier),
        *(f"- The machine of {entry.runs} runs: {machine_text(entry.machine)}." for entry in summary.machines),
        f"- `{ARCHIVE}`: every run's specification, epochs and result ({(folder / ARCHIVE).stat().st_size / 1000:.0f} kB). "
        f"`python -m recipes.reproduction.archive --unpack recipes/results/{name} --to DIR`, then `semfocus report DIR`.",
        f"- To repeat it whatever has become of its recipe: `semfocus compare --config DIR/experiment.json --output runs/{name}`.",
        "- Made by `python -m recipes.reproduction.archive`; `tests/recipes/test_results.py` makes the numbers again from the archive.",
    ]
    if checkpoints:
        lines.append(f"- Unfinished runs that go on from a stored checkpoint: {checkpoints}.")
    lines += [f"- Left out for its size: {picture}.png; `semfocus report` draws it." for picture in left_out]
    lines += ["", headline(summary), "", markdown_table(summary).strip()]
    troubled: dict[tuple[str, str, str], list[str]] = {}
    for run in summary.runs:
        if run.status in ("failed", "unfinished") or run.diverged:
            troubled.setdefault((run.task, run.mask, outcome(run)), []).append(str(run.seed))
    if troubled:
        lines += ["", "Runs that failed, diverged or are not finished:", ""]
        lines += [
            f"- {task} `{mask}`, seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}: {what}"
            for (task, mask, what), seeds in troubled.items()
        ]
    lines += [f"\n![{PICTURES[path.stem][1]}]({path.name})" for path in sorted(folder.glob("*.png"))]
    return "\n".join(lines) + "\n"
