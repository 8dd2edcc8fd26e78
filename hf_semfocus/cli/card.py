"""`semfocus card`, and the cards that `semfocus train` and `semfocus compare` leave in their checkpoints."""

import argparse
from pathlib import Path

from huggingface_hub.utils import disable_progress_bars, logging
from rich.console import Console

from ..comparison.run_directory import read_experiment, read_runs
from ..comparison.storage import local_copy
from ..hub.card import FACTS, write_card
from ..hub.facts import write_facts
from ..hub.publish import check_repo, push
from ..training.checkpoints import missing_model_file

CARDED = ("reached", "censored", "diverged")


def run_card(options: argparse.Namespace, console: Console) -> int:
    """Makes the card of a run, a checkpoint, or every run of a comparison; with `--push`, publishes the checkpoint."""
    for name, value in (("--repo", options.repo), ("--dataset", options.dataset)):
        if value is not None:
            check_repo(value, name)
    if options.push and options.repo is None:
        raise ValueError("--push needs --repo user/name: where to")
    if options.push and options.output is not None:
        raise ValueError("give either --output or --push: what is pushed is the checkpoint with its card in it")
    if not options.push and (options.private or options.revision):
        raise ValueError(f"{'--private' if options.private else '--revision'} needs --push")
    folder = local_copy(options.folder)
    if (folder / "experiment.json").is_file():
        if options.repo is not None:
            raise ValueError(f"--repo names one checkpoint, and {folder} is a comparison; give the folder of one run")
        for card in comparison_cards(folder, console, output=options.output, dataset=options.dataset):
            console.print(f"card: {card}", soft_wrap=True, highlight=False)
        return 0
    checkpoint = _checkpoint(folder)
    card = write_card(checkpoint, output=options.output, repo=options.repo, dataset=options.dataset)
    console.print(f"card: {card}", soft_wrap=True, highlight=False)
    if options.push:
        disable_progress_bars()  # several, of a few kilobytes each
        logging.get_logger("huggingface_hub.hf_api").setLevel(
            logging.ERROR
        )  # it warns of a commit that need not be made
        with console.status(f"pushing to {options.repo}"):
            done = push(checkpoint, options.repo, private=options.private, revision=options.revision)
        told = "published" if done.changed else "nothing has changed, already published"
        console.print(f"{told}: {done.url}", soft_wrap=True, highlight=False)
        console.print(f"commit: {done.commit}", soft_wrap=True, highlight=False)
    return 0


def comparison_cards(
    folder: Path,
    console: Console,
    *,
    output: str | None = None,
    dataset: str | None = None,
    changed_only: bool = False,
) -> list[Path]:
    """Writes the card of every finished run of a comparison; names those that have none, and counts those without a model.

    Args:
        folder: the run directory.
        console: where to.
        output, dataset: as in `write_card`.
        changed_only: leave a checkpoint alone whose card was made from the same facts, and say nothing of runs that have none.

    Returns:
        The cards that were written.
    """
    cards, without_model, without_card = [], 0, []
    runs = read_runs(folder, read_experiment(folder))
    with console.status("") as status:
        for number, run in enumerate(runs, start=1):
            if run.folder is None or run.status not in CARDED:
                if not changed_only:
                    without_card.append(f"no card for {'/'.join(map(str, run.key))}: {run.status}")
                continue
            if missing_model_file(run.folder / "model") is not None:
                without_model += 1
                continue
            status.update(f"cards: {number} of {len(runs)}")
            if changed_only:
                cards += fresh_card(run.folder)
            else:
                cards.append(write_card(_facts(run.folder), output=output, dataset=dataset))
    for told in without_card:
        console.print(told, soft_wrap=True)
    if without_model:
        console.print(
            f"finished runs without a complete model, as those of an unpacked archive: {without_model}. They have no card, and need "
            "none for the report. Who wants their models: `semfocus compare` makes one from a checkpoint that is left, and trains a run "
            "again if its folder is moved away",
            soft_wrap=True,
            highlight=False,
        )
    if not cards and not changed_only:
        raise ValueError(f"{folder} has no finished run with a model: nothing to make a card of")
    return cards


def fresh_card(folder: Path) -> list[Path]:
    """Writes the card into the checkpoint of a run's folder, unless it has one made from the same facts; returns what was written."""
    facts = folder / "model" / FACTS
    before = facts.read_bytes() if facts.is_file() else None
    checkpoint = _facts(folder)
    unchanged = before == facts.read_bytes() and (checkpoint / "README.md").is_file()
    return [] if unchanged else [write_card(checkpoint)]


def _checkpoint(folder: Path) -> Path:
    """The checkpoint that a folder is or holds, its `run.json` made anew where the run's own files are there."""
    if (folder / "spec.json").is_file():
        return _facts(folder)
    if not (folder / "config.json").is_file():
        there = "" if folder.exists() else " (it does not exist)"
        raise ValueError(
            f"{folder} is no run's folder, checkpoint or comparison{there}: it has no spec.json, config.json or experiment.json"
        )
    run = folder.absolute().parent
    if folder.absolute().name == "model" and (run / "spec.json").is_file():
        return _facts(run)
    return folder


def _facts(folder: Path) -> Path:
    """`write_facts`; files that are JSON and lack what a run writes into them are damaged, like those that are none."""
    try:
        return write_facts(folder)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(
            f"a file of the run in {folder} (spec.json, result.json, history.jsonl or model/config.json) is damaged "
            f"({type(error).__name__}: {error}); restore it, or run the same run again"
        ) from error
