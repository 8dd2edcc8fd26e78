"""One run: from a specification to a history, a result and a model in a folder; stopped at any moment, it goes on from its last epoch."""

import contextlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model
from transformers import PreTrainedModel, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback

from ..analysis.initial_attention import TARGET_ENTROPY, choose_attention_gain, initial_attention
from ..analysis.probe import probe_dispersion
from ..analysis.reach import reach
from ..comparison.run_directory import read_run, wants_more
from ..data import build_tokenizer, label_statistics, load_task, task_info
from ..experiments.spec import AUTO, RunSpec, difference, spread_seed
from ..files import read_json, write_json
from ..model.configuration_semfocus import SemFocusConfig
from ..model.mask_strategies import parse_mask
from ..model.modeling_semfocus import SemFocusForSequenceClassification, SemFocusForTokenClassification
from ..model.shipping import check_ships
from ..products import use_fast_products
from .checkpoints import check_whole, latest_complete_checkpoint, missing_model_file
from .environment import (
    collector_leaves_libraries_alone,
    keep_freed_memory,
    machine,
    process_state,
    total_memory,
    versions,
)
from .locking import WAIT_SECONDS, held
from .recorder import BEST, EpochRecorder, OnEpoch, epoch_entries, finite, initial_analysis, why_stop
from .rows import TensorRows, already_batched
from .snapshots import ROWS, SnapshotCallback, snapshot_epochs
from .trainer import SemFocusTrainer

INITIAL_ROWS = 500
FINISHED = ("reached", "censored", "diverged")
PROBE_ROWS = (
    200  # held-out rows on which the dispersion is measured: enough for stable quantiles, small beside an epoch
)


def run_unit(spec: RunSpec, folder: Path | str, on_epoch: OnEpoch | None = None) -> dict[str, Any]:
    """Trains what `spec` says into `folder` and returns its result (also in `folder/result.json`).

    A finished run is not repeated; an unfinished one goes on from its last whole checkpoint and ends as it would have
    without the stop (bit-equal weights on CPU). A finished run whose budget `spec` raises goes on as well.

    Args:
        spec: what to run.
        folder: gets `spec.json`, `history.jsonl` (a line an epoch), `result.json`, and `model/` (model and tokenizer).
        on_epoch: called with each epoch's history entry, on the main process.

    Raises:
        ValueError: the folder holds a run with other settings, or a damaged file.
    """
    folder = Path(folder)
    main = process_state().is_main_process
    with held(folder, "another run", wait=WAIT_SECONDS) if main else contextlib.nullcontext():
        return _run_unit(spec, folder, on_epoch)


def _run_unit(spec: RunSpec, folder: Path, on_epoch: OnEpoch | None) -> dict[str, Any]:
    state = process_state()
    finished = finished_before(spec, folder)
    state.wait_for_everyone()
    if finished is not None:
        return finished
    check_memory(spec)
    check_tracker(spec)
    check_ships([parse_mask(spec.mask)])
    keep_freed_memory()
    use_fast_products()
    tokenizer, data, rows, model, inputs = _prepared(spec)
    start = _initial_attention(model, inputs)
    trainer = _make_trainer(spec, folder, model, rows, on_epoch)
    if spec.training.snapshots:
        trainer.add_callback(_snapshots(spec, folder, rows[spec.training.heldout_split], tokenizer))
    # Data, model and trainer could be made: only now may an earlier result go, and the folder be this run's.
    if state.is_main_process:
        write_json(folder / "spec.json", spec.to_dict())
        (folder / "result.json").unlink(missing_ok=True)
    state.wait_for_everyone()
    with collector_leaves_libraries_alone():
        log = _train(spec, folder, trainer)

    if spec.training.keep == "best":
        load_model(model, str(folder / BEST))
    result = _result(spec, model, rows, log, label_statistics(data["train"], spec.task, spec.answer))
    result["initial_attention"] = start
    if state.is_main_process:
        model.save_pretrained(folder / "model")
        tokenizer.save_pretrained(folder / "model")
        write_json(folder / "result.json", result)
        if result["stopped"] != "budget":  # nothing can go on from here, so the optimiser's state is of no use
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
            (folder / BEST).unlink(missing_ok=True)
    state.wait_for_everyone()
    return result


def check_memory(spec: RunSpec) -> None:
    """Refuses a model whose weights and gradients alone go over this machine's memory.

    Without it the system kills the process while it draws weights, and nobody is told why.

    Raises:
        ValueError: with the parameters, the memory that they need and the memory that there is.
    """
    config, memory = spec.config(), total_memory()
    width = config.hidden_size
    heads = config.num_attention_heads
    scores_and_values = 2 * heads * width**2 if config.attention_form == "bilinear" else 4 * width**2
    parameters = config.num_hidden_layers * (scores_and_values + 2 * width * config.intermediate_size)
    needed = 2 * 4 * parameters  # float32, weights and gradients
    if memory is not None and needed > memory:
        raise ValueError(
            f"not enough memory: a model of {parameters:.3g} parameters needs {needed / 1e9:.3g} GB to train, and this "
            f"machine has {memory / 1e9:.3g} GB; ask for a smaller one (hidden_size, intermediate_size, num_hidden_layers)"
        )


def check_tracker(spec: RunSpec) -> None:
    """Refuses a tracker that is not installed.

    Raises:
        ValueError: with the extra that brings it.
    """
    name = spec.training.report_to
    if name != "none" and find_spec(name) is None:
        raise ValueError(f"report_to is {name!r}, which is not installed: pip install {name}")


def _snapshots(spec: RunSpec, folder: Path, rows: TensorRows, tokenizer: Any) -> SnapshotCallback:
    batch = {name: value for name, value in rows.batch(slice(0, ROWS)).items() if name != "labels"}
    tokens = [tokenizer.convert_ids_to_tokens(ids) for ids in batch["input_ids"].tolist()]
    return SnapshotCallback(folder, batch, tokens, snapshot_epochs(spec.training.snapshots, spec.training.epochs))


def _prepared(spec: RunSpec) -> tuple[Any, Any, dict[str, TensorRows], PreTrainedModel, dict[str, torch.Tensor]]:
    """Tokenizer, data, the rows of each split, the untrained model, and the inputs on which its attention is measured."""
    tokenizer = build_tokenizer(spec.task, spec.model.get("pooling", "mean"), spec.answer)
    with process_state().main_process_first():  # one process prepares the rows, the others read its cache
        data = load_task(spec.task, **spec.data_options())
    splits = ("train", "validation", spec.training.heldout_split)
    rows = {name: TensorRows(data[name], tokenizer.pad_token_id) for name in dict.fromkeys(splits)}
    longest = max(split.input_ids.shape[1] for split in rows.values())
    batch = rows["train"].batch(slice(0, INITIAL_ROWS))
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    return tokenizer, data, rows, build_model(spec, tokenizer, longest, inputs), inputs


def untrained_attention(spec: RunSpec) -> dict[str, Any] | None:
    """What a run of `spec` records of its attention before training: ``initial_attention`` of its result.

    Returns:
        The fields of `InitialAttention`, ``attention_gain`` (the number, also where it is chosen) and ``rows``; None where no
        input has two tokens.
    """
    check_memory(spec)
    use_fast_products()
    *_, model, inputs = _prepared(spec)
    return _initial_attention(model, inputs)


def build_model(
    spec: RunSpec, tokenizer, longest: int, inputs: Mapping[str, torch.Tensor] | None = None
) -> PreTrainedModel:
    """The run's model with its initial weights, which `spec.seed` fixes whatever the mask.

    Args:
        spec: the run.
        tokenizer: gives the vocabulary's size and the padding id.
        longest: tokens of the longest row. There are as many positions as it takes with padding and global tokens, unless
            `spec.model` says another number; attended padding goes up to it, unless `spec.model` says how far.
        inputs: what the attention gain is chosen on, where `spec.model` leaves it to be chosen.

    Raises:
        ValueError: `spec.model` says a number of positions that has no room for it, or a target that no gain gives.
    """
    info = task_info(spec.task, spec.answer)
    if spec.config().attend_padding:
        spec = replace(spec, model={"pad_to_length": longest, **spec.model})
    spec.check_room(longest)
    fields = {"max_position_embeddings": spec.config().padded_length(longest), **spec.config_fields()}
    fields |= {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "id2label": dict(enumerate(info.labels)),
        "label2id": {label: index for index, label in enumerate(info.labels)},
    }
    token_task = info.kind == "token_classification"
    cls = SemFocusForTokenClassification if token_task else SemFocusForSequenceClassification
    seed = spread_seed(spec.seed)
    if spec.chooses_gain:
        if inputs is None:
            raise ValueError(f"attention_gain is {AUTO!r}; allowed where no inputs are at hand: a number")
        fields = {"target_entropy": TARGET_ENTROPY, **fields}

        def with_gain(gain: float) -> PreTrainedModel:
            return cls(SemFocusConfig(**fields, attention_gain=gain))

        fields["attention_gain"] = choose_attention_gain(with_gain, inputs, fields["target_entropy"], seed=seed)
    set_seed(seed)
    return cls(SemFocusConfig(**fields))


def training_arguments(spec: RunSpec, folder: Path) -> TrainingArguments:
    """Transformers' arguments for a run. `batch_size` counts all processes' examples, so a run is the same on one or two."""
    options, processes = spec.training, process_state().num_processes
    if options.batch_size % processes:
        raise ValueError(f"batch_size is {options.batch_size}; allowed: a multiple of the {processes} processes")
    optimizers = {"sgd": "sgd", "adam": "adamw_torch", "adamw": "adamw_torch"}  # Adam is AdamW without weight decay
    # Beside the run: its checkpoints, where the Trainer would put it, go when the run has ended.
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(folder / "tensorboard")
    os.environ.setdefault("WANDB_PROJECT", _project(folder))
    sgd = f"momentum={options.momentum}" if options.optimizer == "sgd" else None
    return TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        seed=spread_seed(spec.seed),
        num_train_epochs=options.epochs,
        per_device_train_batch_size=options.batch_size // processes,
        optim=optimizers[options.optimizer],
        optim_args=sgd,
        learning_rate=options.learning_rate,
        weight_decay=options.weight_decay,
        max_grad_norm=options.max_grad_norm,
        use_cpu=not torch.accelerator.is_available(),
        bf16=options.bf16,
        activation_checkpointing=options.gradient_checkpointing,
        ddp_find_unused_parameters=False,
        save_strategy="epoch",
        save_total_limit=2,  # the one before stays until the new one is whole
        logging_strategy="no",
        logging_nan_inf_filter=False,
        eval_strategy="no",
        report_to=options.report_to,
        run_name=spec.name,
        project=_project(folder),
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),
        disable_tqdm=True,
    )


def _project(folder: Path) -> str:
    """What a tracker groups runs by: the comparison's run directory, or the run's own folder."""
    folder = folder.absolute()
    return folder.parents[3].name if folder.parents[2].name == "runs" else folder.name


def _make_trainer(spec, folder, model, rows, on_epoch) -> SemFocusTrainer:
    heldout = rows[spec.training.heldout_split]
    recorder = EpochRecorder(folder, rows["train"], heldout, rows["validation"], spec.training, on_epoch)
    trainer = SemFocusTrainer(
        model=model,
        args=training_arguments(spec, folder),
        train_dataset=rows["train"],
        data_collator=already_batched,
        callbacks=[recorder],
        lr_decay=spec.training.lr_decay,
    )
    trainer.remove_callback(PrinterCallback)
    recorder.trainer = trainer
    return trainer


def _train(spec: RunSpec, folder: Path, trainer: SemFocusTrainer) -> list[dict[str, Any]]:
    """Trains from the start or from the last whole checkpoint, and returns the Trainer's log."""
    checkpoint = latest_complete_checkpoint(folder / "checkpoints")
    if checkpoint is None:
        trainer.train()
        return trainer.state.log_history
    check_whole(checkpoint)
    log = read_json(checkpoint / "trainer_state.json")["log_history"]
    if why_stop(epoch_entries(log), spec.training) is None:
        trainer.train(resume_from_checkpoint=str(checkpoint))
        return trainer.state.log_history
    # Killed after the last epoch and before the result: nothing is left to train.
    assert trainer.model is not None
    load_model(trainer.model, str(checkpoint / "model.safetensors"))
    return log


def finished_before(spec: RunSpec, folder: Path, model: bool = True) -> dict[str, Any] | None:
    """The result of an earlier, finished run in `folder`, or None where there is something to train.

    Args:
        spec: what to run.
        folder: of the run.
        model: the run's model is wanted too, so one whose model was taken away is trained again. Without, it is so only
            where a checkpoint is left to make the model from: the files of an unpacked archive count as a finished run.

    Raises:
        ValueError: `folder` holds a run with other settings, or a damaged specification, history, result or checkpoint.
    """
    if not (folder / "spec.json").exists():
        if folder.exists() and any(entry.name in ("history.jsonl", "result.json") for entry in folder.iterdir()):
            raise ValueError(f"{folder} holds a run without its spec.json; move it away, or choose another folder")
        return None
    earlier = read_json(folder / "spec.json", "restore it, or move the folder away")
    if not isinstance(earlier, dict):
        raise ValueError(f"{folder / 'spec.json'} is damaged: it holds no specification; move the folder away")
    differs = difference(earlier, json.loads(json.dumps(spec.to_dict())))
    if differs is not None:
        if not any((folder / name).exists() for name in ("history.jsonl", "checkpoints", "model")):
            return None  # it never came to its first epoch: nothing is lost
        raise ValueError(f"{folder} holds a run with other settings ({differs}); choose another folder")
    read_run(folder)
    checkpoint = latest_complete_checkpoint(folder / "checkpoints")
    if checkpoint is not None:
        check_whole(checkpoint)
    if not (folder / "result.json").exists():
        return None
    result = read_json(folder / "result.json")
    if result["status"] not in FINISHED:
        return None  # to be tried again
    if missing_model_file(folder / "model") is not None and (model or checkpoint is not None):
        return None  # its model is made again, from the last checkpoint if there is one
    if wants_more(result, spec.training.epochs):
        return None
    return result


def _result(spec: RunSpec, model, rows, log: list[dict[str, Any]], labels: dict[str, Any]) -> dict[str, Any]:
    options, history = spec.training, epoch_entries(log)

    def first(name: str, threshold: float) -> dict[str, Any] | None:
        return next((entry for entry in history if (entry[name] or 0.0) >= threshold), None)

    learnt, generalised = first("train_accuracy", options.tau), first("heldout_accuracy", options.heldout_tau)
    stopped = why_stop(history, options)
    last = history[-1]
    heldout = rows[options.heldout_split]
    probe = heldout.batch(slice(0, PROBE_ROWS))
    device = next(model.parameters()).device
    probe = {name: value.to(device) for name, value in probe.items() if name != "labels"}
    config = model.config
    masks = [config.mask_of_layer(index) for index in range(config.num_hidden_layers)]
    reached = reach(masks, config.padded_length(heldout.input_ids.shape[1]), config.num_hidden_layers)
    return {
        "status": "reached" if learnt else "diverged" if stopped == "diverged" else "censored",
        "stopped": stopped,
        "error": None,
        "epochs_trained": last["epoch"],
        "epochs_to_tau": learnt["epoch"] if learnt else None,
        "epochs_to_heldout_tau": generalised["epoch"] if generalised else None,
        "seconds_to_tau": learnt["train_seconds"] if learnt else None,
        "seconds": last["seconds"],
        "train_seconds": last["train_seconds"],
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "data": _baselines(rows["train"], labels),
        "reach": {"left": reached.left, "right": reached.right, "sees_all": reached.sees_all, "text": reached.text},
        "dispersion": _dispersion(model, probe) if stopped != "diverged" else None,
        "initial_analysis": initial_analysis(log),
        "processes": process_state().num_processes,
        "versions": versions(),
        "machine": machine(),
    }


def _baselines(train: TensorRows, labels: dict[str, Any]) -> dict[str, Any]:
    """What accuracy is to be compared with. For sequence tasks accuracy counts whole rows, and so do chance and majority here."""
    if not train.per_token:
        return {
            "chance": labels["chance"],
            "majority_accuracy": labels["majority_accuracy"],
            "label_histogram": labels["histogram"],
        }
    positions = (train.labels != -100).sum(-1).double()
    return {
        "chance": (labels["chance"] ** positions).mean().item(),
        "majority_accuracy": labels["majority_sequence_accuracy"],
        "token_chance": labels["chance"],
        "token_majority_accuracy": labels["majority_accuracy"],
        "label_histogram": labels["histogram"],
    }


def _initial_attention(model, inputs: Mapping[str, torch.Tensor]) -> dict[str, Any] | None:
    """`InitialAttention` of the untrained model, with its gain and the rows; None where no query has two keys to choose from."""
    with torch.random.fork_rng():  # training draws what it would have drawn without
        try:
            found = asdict(initial_attention(model, inputs))
        except ValueError:
            return None
    by_layer = [finite(value) for value in found.pop("entropy_by_layer")]
    told = {"attention_gain": model.config.attention_gain, "rows": len(inputs["input_ids"])}
    return {**told, **{name: finite(value) for name, value in found.items()}, "entropy_by_layer": by_layer}


def _dispersion(model, probe: dict[str, torch.Tensor]) -> dict[str, dict[str, float | None]]:
    measured = probe_dispersion(model, probe)
    return {part: {name: finite(value) for name, value in values.items()} for part, values in measured.items()}
