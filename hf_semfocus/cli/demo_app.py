"""The app of `semfocus demo --serve`: an input typed by hand, a checkpoint and a mask; what the model answers, and what it attends to."""

import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import gradio
    import torch
    from matplotlib.figure import Figure

    from ..data import Task
    from ..schema import SpecRecord
    from ..training.run_files import Run

LABELLED = 40  # tokens that still fit beside a heat map
COLUMNS = 3


class Checkpoints:
    """The models of a comparison's runs, by what the app calls them.

    Args:
        folder: the run directory.

    Raises:
        ValueError: it is none, or no run has a model.
    """

    def __init__(self, folder: Path | str):
        from ..comparison.run_directory import RunDirectory
        from ..training.checkpoints import missing_model_file

        directory = RunDirectory.read(folder)
        self.masks = list(dict.fromkeys(run.spec.mask for run in directory.runs if run.folder))
        self.runs: dict[str, Run] = {
            " · ".join((run.key[0], run.key[1], f"seed {run.key[2]}")): run
            for run in directory.runs
            if run.folder is not None and missing_model_file(run.folder / "model") is None
        }
        if not self.runs:
            raise ValueError(f"{folder} has no run with a model; `semfocus compare` makes them")

    def start(self, name: str) -> tuple[str, str, str]:
        """A checkpoint's mask, its first held-out input, and its symbols."""
        from ..data.core.encoding import QUERY
        from ..hub.facts import example

        spec = self.runs[name].spec
        words = [word for word in example(spec)["text"].split() if word != QUERY]
        return spec.mask, " ".join(words), f"Symbols: {' '.join(_task(spec).vocabulary)}"

    def answer(self, name: str, mask: str, text: str) -> "tuple[str, Figure]":
        """What a model answers to `text` under `mask`, as Markdown, and its attention.

        Raises:
            ValueError: a symbol that the task does not have, an input that is too long or malformed, an unknown mask.
        """
        import torch

        run = self.runs[name]
        task = _task(run.spec)
        words, right = read(task, text)
        assert run.folder is not None
        tokenizer, model = _loaded(run.folder / "model", None if mask.strip() == run.spec.mask else mask.strip())
        outputs = task.output_length(len(words)) if task.kind == "token_classification" else 0
        inputs = tokenizer(" ".join([*words, *["[Q]"] * outputs]), return_tensors="pt")
        count, most = inputs["input_ids"].shape[1], model.config.max_position_embeddings
        if count > most:
            raise ValueError(f"the input is too long: {count} tokens; this checkpoint takes at most {most}")
        with torch.no_grad():
            found = model(**inputs, output_attentions=True)
        labels = [model.config.id2label[number] for number in range(model.config.num_labels)]
        shares = found.logits[0].softmax(-1).reshape(-1, len(labels))[-max(outputs, 1) :]
        tokens = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0].tolist())
        return told(shares, labels, right), maps(torch.stack(found.attentions)[:, 0], tokens)


def read(task: "Task", text: str) -> tuple[list[str], str]:
    """The symbols of a text, which may lack the spaces between them, and the right answer.

    Raises:
        ValueError: nothing is there, a symbol is not the task's, brackets do not match, or there is no answer.
    """
    known = sorted(task.vocabulary, key=len, reverse=True)
    words = re.findall("|".join([*map(re.escape, known), r"\S+"]), text)
    if not words:
        raise ValueError(f"the input is empty; the symbols are {' '.join(task.vocabulary)}")
    task.read(" ".join(words))
    depth, closed = 0, []
    for word in words:
        depth += (word[0] in "([") - (word in (")", "]"))
        closed.append(depth)
    one = task.level != "listops" or 0 not in closed[:-1]
    if depth or min(closed) < 0 or not one:
        raise ValueError("the brackets do not match" + ("" if one else ": give one expression"))
    try:
        return words, task.solve(" ".join(words))
    except Exception:  # each task fails in its own way on what it does not generate
        raise ValueError(f"the input is not well-formed; an example: {task.example[0]}") from None


def told(shares: "torch.Tensor", labels: list[str], right: str) -> str:
    """The prediction and its probabilities (outputs, labels) as Markdown: a row an output."""
    predicted = " ".join(labels[index] for index in shares.argmax(-1).tolist())
    lines = [f"**Prediction: {predicted}** (right answer: {right})", ""]
    lines += [
        f"| {'output' if len(shares) > 1 else ''} | " + " | ".join(labels) + " |",
        "|---" * (len(labels) + 1) + "|",
    ]
    rows = enumerate(shares.tolist(), start=1) if len(shares) > 1 else [("probability", shares[0].tolist())]
    return "\n".join(
        [*lines, *(f"| {at} | " + " | ".join(f"{share:.3f}" for share in row) + " |" for at, row in rows)]
    )


def maps(weights: "torch.Tensor", tokens: list[str]) -> "Figure":
    """Attention weights (layers, heads, queries, keys) as heat maps: a query a row, a key a column, dark is more."""
    from matplotlib.figure import Figure

    layers, heads = weights.shape[:2]
    rows = -(-layers * heads // COLUMNS)
    figure = Figure(figsize=(4 * COLUMNS, 3.8 * rows), layout="constrained")
    panels = figure.subplots(rows, COLUMNS, squeeze=False).ravel()
    for panel in panels[layers * heads :]:
        panel.remove()
    for at, panel in enumerate(panels[: layers * heads]):
        layer, head = divmod(at, heads)
        image = panel.imshow(weights[layer, head].float().numpy(), cmap="Blues", vmin=0)
        name = f"layer {layer + 1}" + (f", head {head + 1}" if heads > 1 else "")
        panel.set_title(f"{name} (darkest: {image.get_clim()[1]:.2f})", fontsize=10)
        shown = range(len(tokens)) if len(tokens) <= LABELLED else []
        panel.set_xticks(shown, [tokens[place] for place in shown], fontsize=6, rotation=90)
        panel.set_yticks(shown, [tokens[place] for place in shown], fontsize=6)
    return figure


def _task(spec: "SpecRecord") -> "Task":
    from ..data.tasks import get_task
    from ..experiments.imports import known_task

    known_task(spec.task, None, spec.imports)
    return get_task(spec.task, spec.task_options.get("answer"))


@lru_cache(maxsize=4)
def _loaded(checkpoint: Path, mask: str | None) -> tuple[Any, Any]:
    """Tokenizer and model, under another mask than its own if one is given."""
    from transformers import AutoConfig, AutoTokenizer

    import hf_semfocus

    config = AutoConfig.from_pretrained(checkpoint)
    changes = {} if mask is None else {"mask": mask, "layer_masks": None}
    model = getattr(hf_semfocus, config.architectures[0]).from_pretrained(checkpoint, **changes)
    return AutoTokenizer.from_pretrained(checkpoint), model.eval()


def build(folder: Path | str) -> "gradio.Blocks":
    """The app; `launch` starts it.

    Raises:
        ValueError: gradio is not installed, or `folder` has no model.
    """
    checkpoints = Checkpoints(folder)
    try:
        import gradio
    except ImportError:
        raise ValueError("--serve needs gradio: pip install gradio, or this package with its extra [demo]") from None
    names = list(checkpoints.runs)

    def start(name: str) -> tuple[str, Any]:
        mask, text, symbols = checkpoints.start(name)
        return mask, gradio.update(value=text, info=symbols)

    def look(name: str, mask: str | None, text: str) -> tuple[str, Any]:
        try:
            return checkpoints.answer(name, mask or "", text)
        except ValueError as error:
            return f"⚠️ {error}", None

    mask, text, symbols = checkpoints.start(names[0])
    with gradio.Blocks(title="What a mask attends to", analytics_enabled=False) as app:
        gradio.Markdown(
            "# What a mask attends to\nType an input, choose a checkpoint and a mask: the model's answer, and its attention. A mask that "
            "the checkpoint was not trained with is put on the same weights. In the pictures a row is a query, a column a key."
        )
        with gradio.Row():
            chosen = gradio.Dropdown(names, label="Checkpoint", value=names[0])
            masked = gradio.Dropdown(checkpoints.masks, label="Mask", value=mask, allow_custom_value=True)
        typed = gradio.Textbox(text, label="Input", info=symbols)
        asked = gradio.Button("Predict", variant="primary")
        said, drawn = gradio.Markdown(), gradio.Plot(show_label=False)
        given, shown = [chosen, masked, typed], [said, drawn]
        chosen.input(start, chosen, [masked, typed]).then(look, given, shown)
        masked.input(look, given, shown)
        asked.click(look, given, shown)
        typed.submit(look, given, shown)
        app.load(look, given, shown)
    return app


def launch(app: "gradio.Blocks", port: int | None = None) -> str:
    """Starts the app on this machine alone, in a thread, and returns its address. The page asks nothing of any other machine.

    Raises:
        ValueError: the port is taken.
    """
    from gradio.themes import Default

    theme = Default(font=["system-ui", "sans-serif"], font_mono=["monospace"])  # not Google's
    try:
        _, address, _ = app.launch(
            server_name="127.0.0.1", server_port=port, prevent_thread_lock=True, quiet=True, theme=theme, ssr_mode=False,
            footer_links=[],
        )  # fmt: skip
    except OSError:  # gradio's words speak of its own options
        raise ValueError(f"port {port or '7860 … 7959'} is taken; allowed: a free --port") from None
    return address
