"""`semfocus card`: make the model card of a checkpoint, and publish both on the Hub.

`semfocus train` and `semfocus compare` leave cards in their checkpoints too.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .parsing import add_command, described, path, place
from .terminal import console

if TYPE_CHECKING:
    from rich.console import Console

    from ..comparison.run_directory import RunDirectory
    from ..training.run_files import Run

CARDED = ("reached", "censored", "diverged")


def add_parser(commands: Any) -> None:
    """Adds `card`."""
    parser = add_command(commands, *described(__doc__), "semfocus card runs/one --repo user/name --push", run)
    add = parser.add_argument
    text = "a run's folder, its checkpoint, or a run directory of `semfocus compare`, or its URL"
    add("folder", type=place, help=text)
    text = "put <name>.md and <name>.png there (default: README.md in the checkpoint)"
    add("--output", type=path, metavar="DIR", help=text)
    add("--repo", metavar="USER/NAME", help="what the checkpoint is called on the Hub")
    add("--dataset", metavar="USER/NAME", help="its data set on the Hub (default: the task's name)")
    add("--push", action="store_true", help="publish model, code, tokenizer and card in --repo, in one commit")
    add("--private", action="store_true", help="with --push: in a private repository")
    add("--revision", metavar="BRANCH", help="with --push: to this branch (default: main)")


def run(options: argparse.Namespace) -> int:
    """Makes the card of a run, a checkpoint, or every run of a comparison; with `--push`, publishes the checkpoint."""
    from huggingface_hub.utils import disable_progress_bars, logging

    from ..comparison.run_directory import RunDirectory
    from ..comparison.storage import local_copy
    from ..hub.card import write_card
    from ..hub.publish import check_repo, push

    for name, value in (("--repo", options.repo), ("--dataset", options.dataset)):
        if value is not None:
            check_repo(value, name)
    if options.push and options.repo is None:
        raise ValueError("--push needs --repo user/name: where to")
    if options.push and options.output is not None:
        raise ValueError("give either --output or --push: what is pushed is the checkpoint with its card in it")
    if not options.push and (options.private or options.revision):
        raise ValueError(f"{'--private' if options.private else '--revision'} needs --push")
    folder, out = local_copy(options.folder), console()
    if (folder / "experiment.json").is_file():
        if options.repo is not None:
            raise ValueError(f"--repo names one checkpoint, and {folder} is a comparison; give the folder of one run")
        for card in comparison_cards(RunDirectory.read(folder), out, output=options.output, dataset=options.dataset):
            out.print(f"card: {card}", soft_wrap=True, highlight=False)
        return 0
    checkpoint = _checkpoint(folder)
    card = write_card(checkpoint, output=options.output, repo=options.repo, dataset=options.dataset)
    out.print(f"card: {card}", soft_wrap=True, highlight=False)
    if options.push:
        disable_progress_bars()  # several, of a few kilobytes each
        # It warns of a commit that need not be made.
        logging.get_logger("huggingface_hub.hf_api").setLevel(logging.ERROR)
        with out.status(f"pushing to {options.repo}"):
            done = push(checkpoint, options.repo, private=options.private, revision=options.revision)
        state = "published" if done.changed else "nothing has changed, already published"
        out.print(f"{state}: {done.url}", soft_wrap=True, highlight=False)
        out.print(f"commit: {done.commit}", soft_wrap=True, highlight=False)
    return 0


def comparison_cards(
    directory: "RunDirectory",
    out: "Console",
    *,
    output: str | None = None,
    dataset: str | None = None,
    changed_only: bool = False,
) -> list[Path]:
    """Writes the card of every finished run of a comparison; names those that have none, and counts those without a model.

    Args:
        directory: the run directory.
        out: where to.
        output, dataset: as in `write_card`.
        changed_only: leave a checkpoint alone whose card was made from the same facts, and say nothing of runs that have none.

    Returns:
        The cards that were written.
    """
    from ..hub.card import write_card
    from ..hub.facts import write_facts
    from ..training.checkpoints import missing_model_file

    cards, without_model, without_card = [], 0, []
    with out.status("") as status:
        for number, run in enumerate(directory.runs, start=1):
            if run.folder is None or run.status not in CARDED:
                if not changed_only:
                    without_card.append(f"no card for {'/'.join(map(str, run.key))}: {run.status}")
                continue
            if missing_model_file(run.folder / "model") is not None:
                without_model += 1
                continue
            status.update(f"cards: {number} of {len(directory.runs)}")
            if changed_only:
                cards += fresh_card(run, directory)
            else:
                cards.append(write_card(write_facts(run, directory), output=output, dataset=dataset))
    for line in without_card:
        out.print(line, soft_wrap=True)
    if without_model:
        text = "finished runs without a complete model, and so without a card"
        out.print(
            f"{text}: {without_model}; `semfocus compare` trains one again where its folder is moved away",
            soft_wrap=True,
        )
    if not cards and not changed_only:
        raise ValueError(f"{directory.path} has no finished run with a model: nothing to make a card of")
    return cards


def fresh_card(run: "Run | Path", directory: "RunDirectory | None" = None) -> list[Path]:
    """Writes the card into the checkpoint of a run, unless it has one made from the same facts; returns what was written."""
    from ..hub.card import write_card
    from ..hub.facts import write_facts
    from ..hub.run_json import FACTS

    folder = run if isinstance(run, Path) else run.folder
    assert folder is not None
    facts = folder / "model" / FACTS
    before = facts.read_bytes() if facts.is_file() else None
    checkpoint = write_facts(run, directory)
    unchanged = before == facts.read_bytes() and (checkpoint / "README.md").is_file()
    return [] if unchanged else [write_card(checkpoint)]


def _checkpoint(folder: Path) -> Path:
    """The checkpoint that a folder is or holds, its `run.json` written again where the run's files are there."""
    from ..hub.facts import write_facts

    if (folder / "spec.json").is_file():
        return write_facts(folder)
    if not (folder / "config.json").is_file():
        there = "" if folder.exists() else " (it does not exist)"
        raise ValueError(
            f"{folder} is no run's folder, checkpoint or comparison{there}: it has no spec.json, config.json or experiment.json"
        )
    run = folder.absolute().parent
    if folder.absolute().name == "model" and (run / "spec.json").is_file():
        return write_facts(run)
    return folder
