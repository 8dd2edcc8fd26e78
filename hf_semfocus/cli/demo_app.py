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
LONGEST = 400  # characters of a message on the page, which may repeat what was typed
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
        learnt = (name for name, run in self.runs.items() if run.status == "reached")
        self.first = next(learnt, next(iter(self.runs)))

    def start(self, name: str) -> tuple[str, str, str]:
        """A checkpoint's mask, its first held-out input, and its symbols."""
        from ..data.core.encoding import QUERY
        from ..hub.facts import example

        spec = self.runs[name].spec
        words = [word for word in example(spec)["text"].split() if word != QUERY]
        return spec.mask, " ".join(words), f"Symbols: {' '.join(_task(spec).vocabulary)}"

    def answer(self, name: str | None, mask: str | None, text: str | None) -> "tuple[str, Figure]":
        """What a model answers to `text` under `mask`, as Markdown, and its attention.

        Raises:
            ValueError: no such checkpoint, one that cannot be loaded, a symbol that the task does not have, an input that is too long or
                malformed, an unknown mask, or one that learns on a model that was trained with another.
        """
        import torch

        from ..model.mask_base import MaskStrategy
        from ..model.mask_registry import mask_parts, parse_mask

        run = self.runs.get(name or "")
        if run is None:
            raise ValueError(f"no checkpoint {name!r}; choose one of the list" if name else "choose a checkpoint")
        task = _task(run.spec)
        words, right = read(task, text or "")
        strategy = parse_mask("" if mask is None else mask)
        other = None if str(strategy) == str(parse_mask(run.spec.mask)) else str(strategy)
        if other and any(type(part).make_state is not MaskStrategy.make_state for part in mask_parts(strategy)):
            raise ValueError(
                f"mask {other!r} learns while a model trains; it needs a checkpoint that was trained with it"
            )
        assert run.folder is not None
        tokenizer, model = _loaded(run.folder / "model", other)
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


def read(task: "Task", text: str) -> tuple[list[str], str | None]:
    """The symbols of a text, which may lack the spaces between them, and the right answer.

    There is none (None) where a task's inputs have a grammar that nothing here checks: `solve` answers malformed ones too.

    Raises:
        ValueError: nothing is there, a symbol is not the task's, or it is no ListOps expression.
    """
    from ..data import UniformWords

    known = sorted(task.vocabulary, key=len, reverse=True)
    words = re.findall("|".join([*map(re.escape, known), r"\S+"]), text)
    if not words:
        raise ValueError(f"the input is empty; the symbols are {' '.join(task.vocabulary)}")
    joined = left = " ".join(words)
    task.read(joined)
    if task.name == "listops":
        while left != (left := re.sub(r"\[[A-Z]+( \d){2,10} \]", "0", left)):
            pass  # an innermost list is a digit to the list around it
        if not re.fullmatch(r"\d", left):
            allowed = "one digit or one list of 2 to 10 arguments, brackets matched"
            raise ValueError(f"the input is not well-formed: give {allowed}, such as {task.example[0]}")
    return words, task.solve(joined) if task.name == "listops" or isinstance(task, UniformWords) else None


def told(shares: "torch.Tensor", labels: list[str], right: str | None) -> str:
    """The prediction and its probabilities (outputs, labels) as Markdown: a row an output."""
    predicted = " ".join(labels[index] for index in shares.argmax(-1).tolist())
    lines = [f"**Prediction: {predicted}**" + (f" (right answer: {right})" if right else ""), ""]
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
    """Tokenizer and model, under another mask than its own if one is given; `ValueError` if they cannot be loaded."""
    from transformers import AutoConfig, AutoTokenizer

    import hf_semfocus

    changes = {} if mask is None else {"mask": mask, "layer_masks": None}
    try:
        config = AutoConfig.from_pretrained(checkpoint)
        model = getattr(hf_semfocus, config.architectures[0]).from_pretrained(checkpoint, **changes)
        return AutoTokenizer.from_pretrained(checkpoint), model.eval()
    except Exception as error:  # each library fails in its own way on a damaged file
        raise ValueError(f"the model in {checkpoint} cannot be loaded: {' '.join(str(error).split())}") from error


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

    def start(name: str | None) -> tuple[Any, Any]:
        if name not in names:  # cleared
            return gradio.skip(), gradio.skip()
        mask, text, symbols = checkpoints.start(name)
        return mask, gradio.update(value=text, info=symbols)

    def look(name: str | None, mask: str | None, text: str | None) -> tuple[str, Any]:
        try:
            answer, figure = checkpoints.answer(name, mask, text)
        except ValueError as error:
            message = str(error)
            if len(message) > LONGEST:
                message = f"{message[: LONGEST // 2]} … {message[-LONGEST // 2 :]}"
            return f"⚠️ {message}", gradio.update(value=None, visible=False)
        return answer, gradio.update(value=figure, visible=True)

    mask, text, symbols = checkpoints.start(checkpoints.first)
    with gradio.Blocks(title="What a mask attends to", analytics_enabled=False) as app:
        gradio.Markdown(
            "# What a mask attends to\nType an input, choose a checkpoint and a mask: the model's answer, and its attention. A mask that "
            "the checkpoint was not trained with is put on the same weights. In the pictures a row is a query, a column a key."
        )
        with gradio.Row():
            chosen = gradio.Dropdown(names, label="Checkpoint", value=checkpoints.first, min_width=320)
            masked = gradio.Dropdown(checkpoints.masks, label="Mask", value=mask, allow_custom_value=True)
        typed = gradio.Textbox(text, label="Input", info=symbols)
        asked = gradio.Button("Predict", variant="primary")
        said, drawn = gradio.Markdown(), gradio.Plot(show_label=False, visible=False)
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
