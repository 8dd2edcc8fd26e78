"""Finds and loads what `semfocus analyze` is asked to measure: checkpoints, the runs that made them, and text to measure on."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import transformers
from rich.console import Console
from transformers import AutoTokenizer, PreTrainedModel

import hf_semfocus

from ..data import build_tokenizer, load_task, task_info
from ..data.options import check_options, parse_length
from ..experiments.spec import RunSpec
from ..files import read_json
from ..hub.facts import kept_epoch
from ..integrations.register import apply_attention
from ..integrations.saving import CONFIG_KEY, PREFIX, is_ours
from ..model.mask_registry import parse_mask
from ..training.run_files import read_run
from ..training.setup import build_model

LONGEST_TEXT = 128
"""Tokens at which a line of text is cut, unless --length says otherwise."""


@dataclass(frozen=True)
class Source:
    """A checkpoint, and the run that made it where that is known.

    Args:
        folder: holds config.json and the weights.
        spec: rebuilds the initial weights, and says what the data were.
        epochs: after which the run had these weights, where it has finished.
        own_mask: as the configuration says; "full" for a model of Transformers without our attention.
        is_ours: whether it is a SemFocus model, and not another of Transformers.
        run: the run's folder, where the checkpoint still stands in it.
    """

    folder: Path
    spec: RunSpec | None
    epochs: int | None
    own_mask: str
    run: Path | None = None
    is_ours: bool = True


RowsOf = Callable[[Source, PreTrainedModel], Any]


def source_of(folder: Path) -> Source:
    """The checkpoint that a folder is or holds."""
    if (folder / "experiment.json").is_file():
        raise ValueError(
            f"{folder} is a comparison; give the folders of one or more of its runs (runs/TASK/MASK/seed-N)"
        )
    checkpoint = folder / "model" if (folder / "spec.json").is_file() else folder
    if not (checkpoint / "config.json").is_file():
        there = (
            "it has no config.json or spec.json"
            if checkpoint == folder
            else "it has not finished, failed, or comes from an archive"
        )
        missing = "" if folder.exists() else " (it does not exist)"
        raise ValueError(f"{folder} is no checkpoint and no run with one: {there}{missing}")
    place = checkpoint.absolute()
    spec, epochs, home = None, None, None
    for run in (place.parent, place.parent.parent):  # RUN/model, RUN/checkpoints/checkpoint-N
        if (run / "spec.json").is_file():
            spec, home = RunSpec.from_dict(read_json(run / "spec.json")), run
            if place.name == "model" and (run / "result.json").is_file():
                trained = read_run(run)
                epochs = None if trained is None or not trained.history else kept_epoch(trained)
            if (checkpoint / "trainer_state.json").is_file():
                epochs = round(read_json(checkpoint / "trainer_state.json")["epoch"])
            break
    else:
        if (checkpoint / "run.json").is_file():  # a checkpoint that was moved tells its run
            facts = read_json(checkpoint / "run.json")
            spec, epochs = RunSpec.from_dict(facts["spec"]), facts.get("kept_epoch")
    config = read_json(checkpoint / "config.json")
    if config.get("is_encoder_decoder"):
        raise ValueError(
            f"{folder} is an encoder-decoder ({config.get('model_type')}), which needs two texts; allowed: models with "
            "one (hf_semfocus.analysis.capture_scores takes a batch with decoder_input_ids)"
        )
    if config.get("model_type") != "semfocus":
        return Source(checkpoint, None, None, _own_mask_of_another(config), is_ours=False)
    own_masks = config.get("layer_masks") or [config.get("mask", "topk:5")]
    return Source(checkpoint, spec, epochs, " / ".join(dict.fromkeys(map(str, own_masks))), home)


def _own_mask_of_another(config: dict[str, Any]) -> str:
    """The mask of a model that was saved with our attention."""
    chosen = config.get(CONFIG_KEY)
    names = list(chosen.values()) if isinstance(chosen, dict) else [chosen]
    masks = dict.fromkeys(str(name).removeprefix(PREFIX) for name in names if is_ours(name))
    if len(masks) > 1:
        raise ValueError(
            f"the parts of a {config.get('model_type')} have several masks ({', '.join(masks)}); allowed: one"
        )
    return next(iter(masks), "full")


def chosen_mask(asked: str | None, sources: Sequence[Source]) -> str:
    """What is asked for, or the models' first mask that leaves keys out."""
    if asked is not None:
        return str(parse_mask(asked))
    mask = next((source.own_mask for source in sources if source.own_mask != "full"), sources[0].own_mask)
    if " / " in mask:
        raise ValueError(f"give --mask: the layers of a model have several ({mask})")
    return str(parse_mask(mask))


def loaded(source: Source) -> PreTrainedModel:
    """The model; one that is not ours with our attention under its own mask, so that its scores can be seen."""
    default = "SemFocusModel" if source.is_ours else "none"
    name = (read_json(source.folder / "config.json").get("architectures") or [default])[0]
    cls = getattr(hf_semfocus if source.is_ours else transformers, name, None)
    if cls is None:
        raise ValueError(f"{source.folder} holds a {name}; allowed: a class of hf_semfocus or transformers")
    if source.is_ours:
        return with_weights(cls, source.folder)
    return apply_attention(with_weights(cls, source.folder, attn_implementation="eager"), source.own_mask)


def with_weights(cls: Any, folder: Path, **options: Any) -> Any:
    """`cls.from_pretrained(folder)`; `ValueError` in one line for whatever missing or broken files lead to."""
    try:
        return cls.from_pretrained(folder, **options)
    except Exception as error:
        reason = " ".join(str(error).split())[:120]
        raise ValueError(f"{folder} cannot be loaded ({reason})") from None


def rows_for(
    options: argparse.Namespace, sources: Sequence[Source], console: Console
) -> tuple[dict[str, Any], RowsOf, RowsOf]:
    """What is measured on, for the JSON; the rows for each model, and the training rows for its slices.

    They are lines of a text, or a task's held-out rows (with --paper training ones).
    """
    if options.text is None:
        return _task_data(options, sources)
    if options.paper:
        raise ValueError("got both --paper and --text; allowed: --paper with the training examples of a task")
    if options.task is not None:
        raise ValueError(f"got both --task {options.task} and --text {options.text}; allowed: one of them")
    longest = LONGEST_TEXT if options.length is None else parse_length(options.length)
    if not isinstance(longest, int) or longest < 1:
        raise ValueError(f"--length is {options.length}; allowed with --text: a number of tokens to cut lines at")
    tell = partial(console.print, soft_wrap=True, highlight=False)
    file = Path(options.text)
    rows_of = partial(text_rows, file=file, most=options.examples, longest=longest, tell=tell)
    return {"task": None, "text": file.name, "length": longest, "split": None}, rows_of, rows_of


def _task_data(options: argparse.Namespace, sources: Sequence[Source]) -> tuple[dict[str, Any], RowsOf, RowsOf]:
    """`rows_for` with a task: each run's model on rows of its own seed, pooling and answer, any other on the first run's."""
    task = _task(options, sources)
    first = next((source.spec for source in sources if source.spec is not None and source.spec.task == task), None)
    default = {"length": task_info(task).default_length, "seed": 0} if first is None else first.data_options()
    splits: dict[str, Any] = {}

    def rows_of(source: Source, model: PreTrainedModel, split: str) -> Any:
        own = default if source.spec is None or source.spec.task != task else source.spec.data_options()
        values = _sized({**own, "length": default["length"]}, options)
        key = str(sorted(values.items(), key=str))
        if key not in splits:
            splits[key] = load_task(task, **values)
        return task_rows(source, model, splits[key][split])

    length, split = _sized(default, options)["length"], "train" if options.paper else "test"
    check_options(task, _sized(default, options))
    what = {"task": task, "length": list(length) if isinstance(length, tuple) else length, "split": split}
    return what, partial(rows_of, split=split), partial(rows_of, split="train")


def _task(options: argparse.Namespace, sources: Sequence[Source]) -> str:
    """The task that is asked for, or the runs' own."""
    tasks = {source.spec.task for source in sources if source.spec is not None}
    if options.task is None and len(tasks) != 1:
        known = f"they were trained on {', '.join(sorted(tasks))}" if tasks else "no run says its task"
        other = next((source.folder for source in sources if not source.is_ours), None)
        how = "--task" if other is None else f"--text FILE, an example a line, for {other}, or --task"
        raise ValueError(f"give {how}: {known}")
    return options.task or tasks.pop()


def _sized(own: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """What `load_task` is called with: a run's own data, of the length and as many rows as options say."""
    values = dict(own)
    if options.length is not None:
        values["length"] = parse_length(options.length)
    # A row depends neither on the size of its split nor on those of the others. A model was trained on no more than it had.
    wanted = max(options.examples if options.paper else 1, options.slice_examples if options.slices is not None else 1)
    return values | {
        "train_size": min(wanted, values.get("train_size", wanted)),
        "validation_size": 1,
        "test_size": 1 if options.paper else options.examples,
    }


def text_rows(
    source: Source, model: PreTrainedModel, file: Path, most: int, longest: int, tell: Callable[[str], None]
) -> list[dict[str, Any]]:
    """The first `most` lines of a text as token ids of the checkpoint's own tokenizer, cut at `longest` tokens.

    A causal language model gets its inputs as labels, and with them a loss; any other has none here. `tell` hears how many
    tokens the tokenizer does not know.

    Raises:
        ValueError: no line with text in it, or no tokenizer beside the model.
    """
    lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()][:most]
    if not lines:
        raise ValueError(f"--text {file} has no line with text in it; allowed: an example a line")
    # Without its files, Transformers makes up a tokenizer that knows no word.
    if not any((source.folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        raise ValueError(f"{source.folder} has no tokenizer for --text; save the model's own beside it")
    tokenizer = with_weights(AutoTokenizer, source.folder)
    ids = [tokenizer(line, truncation=True, max_length=longest)["input_ids"] for line in lines]
    if max(map(max, ids)) >= model.get_input_embeddings().num_embeddings:
        raise ValueError(f"the tokenizer of {source.folder} has more tokens than the model; allowed: its own")
    unknown, tokens = sum(row.count(tokenizer.unk_token_id) for row in ids), sum(map(len, ids))
    if unknown:
        tell(f"{source.folder}: {unknown} of {tokens} tokens are unknown to its tokenizer ({tokenizer.unk_token})")
    causal = "CausalLM" in type(model).__name__ or "LMHead" in type(model).__name__
    return [{"input_ids": row, **({"labels": row} if causal else {})} for row in ids]


def task_rows(source: Source, model: PreTrainedModel, rows: Any) -> Any:
    """A task's rows, without the labels (and so without a loss) where the model has no head for them.

    Raises:
        ValueError: the model has no embedding for one of the task's tokens.
    """
    most, size = max(map(max, rows["input_ids"])), model.get_input_embeddings().num_embeddings
    if most >= size:
        raise ValueError(
            f"{source.folder} knows {size} tokens, and the task has the token {most}; give --text FILE, for its own tokenizer"
        )
    classes = 1 + (max(map(max, rows["labels"])) if isinstance(rows[0]["labels"], list) else max(rows["labels"]))
    head = "TokenClassification" if isinstance(rows[0]["labels"], list) else "SequenceClassification"
    fits = head in type(model).__name__ and model.config.num_labels >= classes
    return rows if fits else rows.remove_columns("labels")


def names_of(sources: Sequence[Source]) -> list[str]:
    """Each checkpoint's mask, with whatever else is needed to tell it from the others."""
    masks = [(source.spec and source.spec.variant) or source.own_mask for source in sources]
    names = []
    for number, source in enumerate(sources):
        name = masks[number] if source.is_ours else f"{source.folder.name} {masks[number]}"
        if masks.count(name) > 1 and source.spec is not None:
            name += f" seed {source.spec.seed}"
        names.append(name)
    return [name if names.count(name) == 1 else f"{name} ({number + 1})" for number, name in enumerate(names)]


def initial_model(source: Source, trained: PreTrainedModel) -> PreTrainedModel:
    """The model of a run before its first step: the specification and its seed fix the weights."""
    assert source.spec is not None, "the initial weights of a model without a run were asked for"
    # How many positions there are decides which random numbers the layers behind them get; a gain may have been chosen.
    config = trained.config
    chosen = ("max_position_embeddings", "pad_to_length", "attention_gain")
    spec = replace(source.spec, model={**source.spec.model, **{name: getattr(config, name) for name in chosen}})
    tokenizer = build_tokenizer(spec.task, spec.model.get("pooling", "mean"), spec.answer)
    return build_model(spec, tokenizer, config.pad_to_multiple_of or 1)


def checkpoints_of(source: Source) -> list[tuple[int, Path]]:
    """Epoch and folder of the complete checkpoints before `source`, in the order of training."""
    checkpoints = []
    for folder in (source.run / "checkpoints").glob("checkpoint-*") if source.run is not None else ():
        if all((folder / name).is_file() for name in ("trainer_state.json", "config.json", "model.safetensors")):
            checkpoints.append((round(read_json(folder / "trainer_state.json")["epoch"]), folder))
    last = source.epochs if source.epochs is not None else 0
    return sorted((epoch, folder) for epoch, folder in checkpoints if 0 < epoch < last)
