"""The paper's claims, judged from the stored results by fixed rules.

python -m recipes.reproduction.claims                      # recipes/results/ → recipes/results/claims.md and claims.json
python -m recipes.reproduction.readme --claims      # … and into docs/results.md

A claim names the stored results (`recipes/reproduction/archive.py`) that it is read from, and its rule (`rules.py`). Where too
little is stored for a rule it is *not tested*, whatever the numbers so far look like. `rules.md` says when the rules were fixed.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_semfocus.experiments.experiment import Experiment
from hf_semfocus.experiments.presets import preset
from hf_semfocus.experiments.spec import flat
from hf_semfocus.files import atomic_write, read_record, write_json
from hf_semfocus.summary_schema import Summary, TaskEntry
from hf_semfocus.text import length_text

from .blocks import RESULTS, ROOT
from .claim_table import (
    ABLATIONS,
    ABSTRACT,
    CLAIMS,
    DOCUMENTS,
    NO_MATTER,
    OF_PAPER_SIZE,
    OURS,
    PRIMARY,
    SOURCES,
    SUITE,
    TAU,
    TIERS,
    VARIANTS,
    Claim,
)
from .stored_readme import ARCHIVE, counts
from .verdicts import MIXED, NOT_REPRODUCED, NOT_TESTED, REPRODUCED, Stored, Verdict, verdict_words

RECIPES = ROOT / "recipes"
FORMAT = 1
SOURCE_WORDS = {
    ABSTRACT: "the abstract of arXiv 2506.14095",
    DOCUMENTS: "the paper, as the documents that this project started from give it",
    OURS: "our question, not a claim of the paper",
}
WHY_MISSING = {
    "listops_paper": "500 to 600 tokens through 10 blocks need a GPU, and there was none",
    "rate_0_03": "this rate was chosen for no mask, so seeds 0 to 2 are not needed",
    "rate_1": "this rate was chosen for no mask, so seeds 0 to 2 are not needed",
    "theory": "topk:1 and cycle_navigation: their core-hours went to `reduced`, which records the same quantities every fifth epoch",
}


def load(results: Path = RESULTS) -> dict[str, Summary]:
    """The stored results that claims are read from, by name, each checked to be what its name says.

    Raises:
        ValueError: one of them was trained with other settings.
    """
    stored = {}
    for name in SOURCES:
        folder = results / name
        if (folder / ARCHIVE).is_file():
            stored[name] = read_record(folder / "summary.json", Summary, "restore it, or store the comparison again")
            check(name, stored[name])
    for names, base in ((ABLATIONS, "reduced"), (VARIANTS, "theory")):
        for name in names:
            if name in stored and base in stored:
                check_beside(name, stored[name], base, stored[base])
    return stored


def check(name: str, summary: Summary) -> None:
    """Refuses a summary under the name of another comparison: a verdict must not rest on it."""
    if summary.baseline != "full":
        raise ValueError(f"recipes/results/{name} has the baseline {summary.baseline}; allowed: full")
    for task in summary.tasks:
        if task.length is None:  # nothing of it was started
            continue
        if (task.name == "listops") != name.startswith("listops"):
            raise ValueError(f"recipes/results/{name} has the task {task.name}")
        wanted = {"tau": TAU, "heldout_tau": TAU, **PRIMARY, **SOURCES[name]}
        if name in OF_PAPER_SIZE and task.name in SUITE:
            paper = preset("paper").spec(task.name, "full", 0)
            wanted |= {"length": list(paper.length) if isinstance(paper.length, tuple) else paper.length, "train_size": paper.train_size,
                       "model.num_hidden_layers": paper.model["num_hidden_layers"], "model.hidden_size": 64}  # fmt: skip
        settings = {**PRIMARY, "model.num_hidden_layers": 5, "model.hidden_size": 64, **_settings(task)}
        for key in task.differing:
            if not key.startswith(("model.", "training.")) or key in wanted:
                raise ValueError(f"recipes/results/{name}: the runs of {task.name} differ in {key}")
        for key, value in wanted.items():
            if settings.get(key) != value:
                raise ValueError(
                    f"recipes/results/{name}: {task.name} has {key} {settings.get(key)!r}; allowed: {value!r}"
                )


def _settings(task: TaskEntry) -> dict[str, Any]:
    names = ("length", "train_size", "tau", "heldout_tau")
    return flat({**task.hyperparameters, **{name: task[name] for name in names}})


def check_beside(name: str, summary: Summary, base: str, other: Summary) -> None:
    """Refuses an ablation that differs from its base in more than its name says."""
    first, theirs = ({task.name: _settings(task) for task in one.tasks if task.length} for one in (summary, other))
    for task in first.keys() & theirs.keys():
        mine, others = first[task], theirs[task]
        for key in sorted((mine.keys() | others.keys()) - {*SOURCES[name], *NO_MATTER}):
            if mine.get(key) != others.get(key):
                raise ValueError(
                    f"recipes/results/{name}: {task} has {key} {mine.get(key)!r}, and {base} has {others.get(key)!r}"
                )


def size_text(claim: Claim, stored: Stored) -> str:
    """The size, with the lengths and blocks of what the verdict was read from."""
    sizes: dict[str, None] = {}
    for name in claim.read:
        for task in stored[name].tasks if name in stored else []:
            if task.length is not None and claim.task in (None, task.name):
                blocks = task.hyperparameters["model"].get("num_hidden_layers", 5)
                sizes[f"length {length_text(task.length)}, {blocks} blocks"] = None
    return f"{claim.size} ({'; '.join(sizes)})" if sizes else claim.size


def judged(stored: Stored) -> dict[str, Any]:
    """All claims with their verdicts, as plain values."""
    entries = []
    for claim in CLAIMS:
        missing = [name for name in claim.read if name not in stored]
        verdict = claim.judge(stored) if len(missing) < len(claim.read) else Verdict(NOT_TESTED, "")
        numbers = verdict.numbers
        if missing:
            numbers = "; ".join(filter(None, [numbers, f"not stored: {', '.join(missing)}"]))
        entries.append(
            {
                "name": claim.name,
                "claim": claim.words,
                "source": claim.source,
                "task": claim.task,
                "size": size_text(claim, stored),
                "read": list(claim.read),
                "missing": missing,
                "rule": claim.rule,
                "verdict": verdict.verdict,
                "left_open": verdict.left_open,
                "provisional": verdict.verdict != NOT_TESTED
                and bool(
                    missing or verdict.incomplete or any(_not_ended(stored[n]) for n in claim.read if n in stored)
                ),
                "numbers": numbers,
            }
        )
    runs = {
        name: {**counts(stored[name]), "seeds": len(stored[name].seeds), "recipe": _runs_of_recipe(name)}
        if name in stored
        else None
        for name in SOURCES
    }
    return {"format": FORMAT, "stored": runs, "claims": entries}


def _runs_of_recipe(name: str) -> int:
    """How many runs the file in recipes/ asks for, of which a part may have been asked for on the command line."""
    (path,) = (path for folder in (".", "ablations", "first") if (path := RECIPES / folder / f"{name}.yaml").is_file())
    experiment = Experiment.from_yaml(path)
    return len(experiment.tasks) * len(experiment.masks) * len(experiment.seeds)


def _not_ended(summary: Summary) -> bool:
    number = counts(summary)
    return number["finished"] < number["asked"]


def markdown(results: Mapping[str, Any]) -> str:
    """The page: what to take from it, the claims, task by task, the rules, what is stored."""
    general = [entry for entry in results["claims"] if entry["task"] is None]
    single = [entry for entry in results["claims"] if entry["task"] is not None]
    stored = results["stored"].items()
    short = [name for name, runs in stored if runs is None or runs["finished"] < runs["recipe"]]
    lines = [
        *takeaways(general),
        "",
        *_table(general),
        "",
        "<details><summary>Task by task</summary>",
        "",
        *_table(single),
        "",
        "</details>",
        "",
        "<details><summary>The rules, and when they were fixed</summary>",
        "",
        (Path(__file__).with_name("rules.md")).read_text("utf-8").strip(),
        "",
        f"Sources: {'; '.join(f'*{name}*, {text}' for name, text in SOURCE_WORDS.items())}.",
        "",
        "What each claim asks for:",
        "",
        *(f"- {rule}: {', '.join(names)}." for rule, names in _by_rule(general).items()),
        "",
        "</details>",
        "",
        "<details><summary>What is stored, and what is missing</summary>",
        "",
        *_stored_table(results["stored"]),
        "",
        "Why runs are missing (which ones: the end of each result's page):",
        "",
        *([f"- {name}: {WHY_MISSING.get(name, 'no reason is recorded')}." for name in short] or ["- none is."]),
        "",
        "</details>",
    ]
    return (
        "# Claims of the paper, judged\n\nMade by `python -m recipes.reproduction.claims` from `recipes/results/`.\n\n"
        + "\n".join(lines)
        + "\n"
    )


def _by_rule(entries: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    grouped: dict[str, dict[str, None]] = {}
    for entry in entries:
        grouped.setdefault(entry["rule"], {})[f"`{entry['name']}`"] = None
    return {rule: list(names) for rule, names in grouped.items()}


def _table(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """A row a claim, its verdicts at each size one below the other."""
    rows = ["| claim | source | verdict | numbers |", "| --- | --- | --- | --- |"]
    by_claim: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        by_claim.setdefault(entry["name"], []).append(entry)
    for name, by_size in by_claim.items():
        verdicts = "<br>".join(f"{entry['size']}: {verdict_words(entry)}" for entry in by_size)
        numbers = "<br>".join(f"{entry['size'].split(' (')[0]}: {entry['numbers']}" for entry in by_size)
        cells = (f"{by_size[0]['claim']} (`{name}`)", by_size[0]["source"], verdicts, numbers)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return rows


def _stored_table(stored: Mapping[str, Mapping[str, int] | None]) -> list[str]:
    rows = [
        "| result | runs finished | of which censored | unfinished | failed | not started | runs of the whole recipe |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, runs in stored.items():
        if runs is None:
            rows.append(f"| {name} | not stored | – | – | – | – | – |")
        else:
            cells = (
                f"{runs['finished']} of {runs['asked']}",
                *(runs[key] for key in ("censored", "unfinished", "failed", "missing", "recipe")),
            )
            rows.append(f"| [{name}]({name}/README.md) | {' | '.join(map(str, cells))} |")
    return rows


def takeaways(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Three sentences: speed, input-agnostic masks, and how many claims stand. They say no more than the verdicts."""
    of = {}
    for entry in entries:
        of[entry["name"], entry["size"].split(" (")[0]] = verdict_words(entry).replace("**", "")
    said = []
    for name, what in (
        ("topk_faster", "That top-k attention learns faster than full attention over the tasks"),
        ("agnostic_not_better", "That input-agnostic sparse attention is not consistently better"),
    ):
        verdicts = {size: of[name, size] for size in TIERS}
        if len(set(verdicts.values())) == 1:
            said.append(f"{what} is {verdicts['paper size']} at either size.")
        else:
            said.append(f"{what} is {', and '.join(f'{verdict} at {size}' for size, verdict in verdicts.items())}.")
    tested = [entry for entry in entries if entry["verdict"] != NOT_TESTED]
    stand = sum(entry["verdict"] == REPRODUCED for entry in tested)
    ours = sum(entry["verdict"] == REPRODUCED and entry["source"] == OURS for entry in tested)
    said.append(
        f"Of {len(entries)} verdicts in the first table, a claim at a size each, {len(tested)} could be given and {stand} are "
        f"*reproduced*, {ours} of them claims of our own."
    )
    return [" ".join(said)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="where results are stored (default: recipes/results)"
    )
    options = parser.parse_args(arguments)
    try:
        if not options.results.is_dir():
            raise ValueError(f"{options.results} is no folder")
        results = judged(load(options.results))
        write_json(options.results / "claims.json", results)
        atomic_write(options.results / "claims.md", markdown(results))
    except (ValueError, OSError) as error:
        print(f"claims: {error}", file=sys.stderr)
        return 2
    verdicts = [entry["verdict"] for entry in results["claims"]]
    counted = ", ".join(f"{verdicts.count(v)} {v}" for v in (REPRODUCED, MIXED, NOT_REPRODUCED, NOT_TESTED))
    print(f"{len(verdicts)} verdicts, those task by task among them: {counted}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
