"""The model card of a checkpoint: README.md with metadata by the Hub's rules, and its picture, from the `run.json` beside the weights."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
from matplotlib.figure import Figure

from ..report import pictures
from ..report.files import drawn, write_whole
from ..report.palette import LIGHT
from .card_metadata import PIPELINES, data_call, metadata, model_name
from .card_words import limits, outcome, result_rows

FORMAT = 1
FACTS = "run.json"
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
        ValueError: there is no `run.json`, or it is damaged or of another format.
    """
    checkpoint = Path(checkpoint)
    facts = read_facts(checkpoint)
    card, picture = checkpoint / "README.md", checkpoint / PICTURE
    if output is not None:
        name = model_name(facts, repo)
        card, picture = Path(output) / f"{name}.md", Path(output) / f"{name}.png"
    try:
        text = render_card(facts, repo=repo, dataset=dataset, picture=picture.name)
        image = drawn(curves(facts), "png")
    except (KeyError, TypeError, AttributeError, IndexError, jinja2.UndefinedError) as error:
        raise ValueError(
            f"{checkpoint / FACTS} is damaged ({type(error).__name__}: {error}); `semfocus card` makes it anew from the run's folder"
        ) from error
    write_whole(picture, image)
    write_whole(card, text.encode("utf-8"))
    return card


def read_facts(checkpoint: Path) -> dict[str, Any]:
    """The `run.json` of a checkpoint; `ValueError` if it is missing, damaged or of another format."""
    path = checkpoint / FACTS
    if not path.is_file():
        raise ValueError(
            f"{checkpoint} has no {FACTS}: `semfocus card` makes it from the folder of the run that trained the checkpoint"
        )
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}); `semfocus card` makes it anew from the run's folder") from None
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        found = facts.get("format") if isinstance(facts, dict) else None
        raise ValueError(
            f"{path} has format {found!r}, allowed: {FORMAT}; `semfocus card` makes it anew from the run's folder"
        )
    return facts


def render_card(
    facts: Mapping[str, Any], *, repo: str | None = None, dataset: str | None = None, picture: str = PICTURE
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
    body = environment.get_template("card.md.jinja").render(
        f=facts,
        spec=facts["spec"],
        training=facts["spec"]["training"],
        name=model_name(facts, repo),
        repo=repo,
        dataset=dataset,
        picture=picture,
        head=facts["architecture"]["class"].removeprefix("SemFocus"),
        pipeline=PIPELINES[facts["architecture"]["class"]],
        rows=result_rows(facts),
        outcome=outcome(facts),
        limits=limits(facts),
        per_token=facts["task"]["kind"] == "token_classification",
        data_call=data_call(facts["spec"]),
    )
    return f"---\n{metadata(facts, repo=repo, dataset=dataset).to_yaml()}\n---\n\n{body}"


def curves(facts: Mapping[str, Any]) -> Figure:
    """Training and held-out accuracy against epochs; a line marks the epoch of the checkpoint's weights where that is not the last."""
    spec, training = facts["spec"], facts["spec"]["training"]
    run = {"task": spec["task"], "mask": spec["mask"], "history": facts["history"], "status": facts["status"]}
    task = {"name": spec["task"], "length": spec["length"], "chance": facts["baselines"]["chance"]}
    figure = pictures.curves(
        {
            "tasks": [{**task, "tau": training["tau"], "heldout_tau": training["heldout_tau"]}],
            "masks": [spec["mask"]],
            "baseline": "full",
            "runs": [{**run, "diverged": facts["diverged"]}],
        },
        LIGHT,
    )
    assert figure is not None  # a finished run has epochs
    if facts["kept_epoch"] != len(facts["history"]):
        for axes in figure.axes:
            axes.axvline(facts["kept_epoch"], color=LIGHT.faint, linewidth=1, linestyle=(0, (4, 2)))
            axes.annotate("these weights", (facts["kept_epoch"], 0), xycoords=("data", "axes fraction"), xytext=(3, 3),
                          textcoords="offset points", fontsize=7.5, color=LIGHT.faint)  # fmt: skip
    return figure
