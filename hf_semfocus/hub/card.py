"""The model card of a checkpoint: README.md with metadata by the Hub's rules, and its picture, from the `run.json` beside the weights."""

from pathlib import Path

import jinja2
from matplotlib.figure import Figure

from ..comparison.statistics import speed_up
from ..files import atomic_write
from ..report import pictures
from ..report.files import render_figure
from ..report.palette import LIGHT
from ..summary_schema import RunEntry, Summary, TaskEntry
from ..text import bounds_text, epochs_text
from .card_metadata import PIPELINES, data_call, metadata, model_name
from .card_words import limits, outcome, result_rows
from .run_json import RunFacts, read_facts

PICTURE = "curves.png"


def write_card(
    checkpoint: Path | str,
    *,
    output: Path | str | None = None,
    repo: str | None = None,
    dataset: str | None = None,
) -> Path:
    """Writes the card of a checkpoint and its picture; returns the card's path.

    Each file appears whole or not at all, and the same checkpoint gives the same bytes. Make `run.json` first
    (`hf_semfocus.hub.facts.write_facts`).

    Args:
        checkpoint: the folder with the weights and `run.json`.
        output: None: `README.md` and `curves.png` in the checkpoint. Otherwise a folder that gets `<name>.md` and `<name>.png`,
            the name being the repository's or that of the run.
        repo: "user/name", what the checkpoint is called on the Hub; None: the card loads it from its folder.
        dataset: "user/name" of the data set on the Hub; None: the card names the task.

    Raises:
        ValueError: there is no `run.json`, or it is damaged.
    """
    checkpoint = Path(checkpoint)
    facts = read_facts(checkpoint)
    card, picture = checkpoint / "README.md", checkpoint / PICTURE
    if output is not None:
        name = model_name(facts, repo)
        card, picture = Path(output) / f"{name}.md", Path(output) / f"{name}.png"
    text = render_card(facts, repo=repo, dataset=dataset, picture=picture.name)
    atomic_write(picture, render_figure(curves(facts), "png"))
    atomic_write(card, text)
    return card


def render_card(
    facts: RunFacts, *, repo: str | None = None, dataset: str | None = None, picture: str = PICTURE
) -> str:
    """The card as text: a YAML head and Markdown. Arguments as in `write_card`; `picture` is where it lies, seen from the card."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("hf_semfocus", "report"),
        autoescape=False,  # Markdown, not HTML
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    pair = facts.comparison and facts.comparison.pair
    ratio = speed_up(pair.baseline, pair.mask) if pair else None
    body = environment.get_template("card.md.jinja").render(
        f=facts,
        spec=facts.spec,
        name=model_name(facts, repo),
        repo=repo,
        dataset=dataset,
        picture=picture,
        pipeline=PIPELINES[facts.architecture["class"]],
        rows=result_rows(facts),
        outcome=outcome(facts),
        limits=limits(facts),
        baseline_epochs=epochs_text(pair.baseline) if pair else None,
        speed_up=bounds_text((ratio.lower, not ratio.exact), (ratio.upper, not ratio.exact)) if ratio else None,
        per_token=facts.task.kind == "token_classification",
        data_call=data_call(facts.spec),
    )
    return f"---\n{metadata(facts, repo=repo, dataset=dataset).to_yaml()}\n---\n\n{body}"


def curves(facts: RunFacts) -> Figure:
    """Training and held-out accuracy against epochs; a line marks the epoch of the checkpoint's weights where that is not the last."""
    spec = facts.spec
    task = TaskEntry.model_construct(name=spec.task, length=spec.length, chance=facts.baselines.chance,
                                     tau=spec.training.tau, heldout_tau=spec.training.heldout_tau)  # fmt: skip
    run = RunEntry.model_construct(task=spec.task, mask=spec.mask, history=facts.history, status=facts.status,
                                   diverged=facts.diverged)  # fmt: skip
    figure = pictures.curves(
        Summary.model_construct(tasks=[task], masks=[spec.mask], baseline="full", runs=[run]), LIGHT
    )
    assert figure is not None  # a finished run has epochs
    if facts.kept_epoch != len(facts.history):
        for axes in figure.axes:
            axes.axvline(facts.kept_epoch, color=LIGHT.faint, linewidth=1, linestyle=(0, (4, 2)))
            axes.annotate("these weights", (facts.kept_epoch, 0), xycoords=("data", "axes fraction"), xytext=(3, 3),
                          textcoords="offset points", fontsize=7.5, color=LIGHT.faint)  # fmt: skip
    return figure
