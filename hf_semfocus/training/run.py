"""One run: from a specification to a history, a result and a model in a folder; stopped at any moment, it goes on from its last epoch."""

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_model
from transformers.trainer_callback import PrinterCallback

from ..data import label_statistics
from ..experiments.spec import RunSpec, difference
from ..files import read_json, write_json
from ..model.mask_strategies import parse_mask
from ..model.shipping import check_ships
from ..products import use_fast_products
from ..schema import FINISHED, RunResult
from .checkpoints import check_manifest, latest_complete_checkpoint, missing_model_file
from .environment import collector_leaves_libraries_alone, keep_freed_memory, process_state
from .locking import WAIT_SECONDS, folder_lock
from .recorder import BEST, EpochRecorder, OnEpoch, epoch_entries, why_stop
from .results import attention_of, run_result
from .rows import already_batched
from .run_files import Run, read_run, wants_more
from .setup import check_memory, check_tracker, prepared, tracked, training_arguments
from .snapshots import run_snapshots
from .trainer import AfterCheckpoint, SemFocusTrainer


def train_run(
    spec: RunSpec,
    folder: Path | str,
    on_epoch: OnEpoch | None = None,
    on_checkpoint: Callable[[], None] | None = None,
    placement: str | None = None,
) -> RunResult:
    """Trains what `spec` says into `folder` and returns its result (also in `folder/result.json`).

    A finished run is not repeated; an unfinished one goes on from its last complete checkpoint and ends as it would have
    without the stop (bit-equal weights on CPU). A finished run whose budget `spec` raises goes on as well.

    Args:
        spec: what to run.
        folder: gets `spec.json`, `history.jsonl` (a line an epoch), `result.json`, and `model/` (model and tokenizer).
        on_epoch: called with each epoch's history entry, on the main process.
        on_checkpoint: called when an epoch's checkpoint is complete, on the main process.
        placement: the kind of machine that a comparison has chosen for the run and its pairs, for the result.

    Raises:
        ValueError: the folder holds a run with other settings, or a file that cannot be read.
    """
    spec, folder, state = spec.resolved(), Path(folder), process_state()
    lock = folder_lock(folder, "another run", wait=WAIT_SECONDS) if state.is_main_process else contextlib.nullcontext()
    with lock:
        finished = finished_before(spec, folder)
        state.wait_for_everyone()
        if finished is not None:
            return finished
        check_memory(spec)
        check_tracker(spec)
        check_ships([parse_mask(spec.mask)])
        keep_freed_memory()
        use_fast_products()
        tokenizer, data, rows, model, inputs = prepared(spec)
        start = attention_of(model, inputs)
        trainer = _make_trainer(spec, folder, model, rows, on_epoch)
        if on_checkpoint is not None:
            trainer.add_callback(AfterCheckpoint(on_checkpoint))
        if spec.training.snapshots:
            trainer.add_callback(run_snapshots(spec, folder, rows[spec.training.heldout_split], tokenizer))
        # Data, model and trainer could be made: only now may an earlier result go, and the folder be this run's.
        if state.is_main_process:
            write_json(folder / "spec.json", spec.to_dict())
            (folder / "result.json").unlink(missing_ok=True)
        state.wait_for_everyone()
        with tracked(spec, folder), collector_leaves_libraries_alone():
            log = _train(spec, folder, trainer)
        if spec.training.keep == "best":
            load_model(model, str(folder / BEST))
        result = run_result(spec, model, rows, log, label_statistics(data["train"], spec.task, spec.answer), start)
        if placement is not None:
            result.placement = placement
        if state.is_main_process:
            model.save_pretrained(folder / "model")
            tokenizer.save_pretrained(folder / "model")
            write_json(folder / "result.json", result.to_json())
            if result.stopped != "budget":  # nothing can go on from here, so the optimiser's state is of no use
                shutil.rmtree(folder / "checkpoints", ignore_errors=True)
                (folder / BEST).unlink(missing_ok=True)
        state.wait_for_everyone()
        return result


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
    """Trains from the start or from the last complete checkpoint, and returns the Trainer's log."""
    checkpoint = latest_complete_checkpoint(folder / "checkpoints")
    if checkpoint is None:
        trainer.train()
        return trainer.state.log_history
    check_manifest(checkpoint)
    log = read_json(checkpoint / "trainer_state.json")["log_history"]
    if why_stop(epoch_entries(log), spec.training) is None:
        trainer.train(resume_from_checkpoint=str(checkpoint))
        return trainer.state.log_history
    # Killed after the last epoch and before the result: nothing is left to train.
    assert trainer.model is not None
    load_model(trainer.model, str(checkpoint / "model.safetensors"))
    return log


def finished_before(spec: RunSpec, run: Run | Path | None, model: bool = True) -> RunResult | None:
    """The result of an earlier, finished run, or None where there is something to train.

    Args:
        spec: what to run.
        run: as it was read, or its folder.
        model: the run's model is wanted too, so one whose model was taken away is trained again. Without, it is so only
            where a checkpoint is left to make the model from: the files of an unpacked archive count as a finished run.

    Raises:
        ValueError: the folder holds a run with other settings, or a file of it cannot be read.
    """
    run = read_run(run) if isinstance(run, Path) else run
    if run is None or run.folder is None:
        return None
    folder = run.folder
    differs = difference(run.spec.to_json(), json.loads(json.dumps(spec.to_dict())))
    if differs is not None:
        if not any((folder / name).exists() for name in ("history.jsonl", "checkpoints", "model")):
            return None  # it never came to its first epoch: nothing is lost
        raise ValueError(f"{folder} holds a run with other settings ({differs}); choose another folder")
    checkpoint = latest_complete_checkpoint(folder / "checkpoints")
    finished = run.result is not None and run.result.status in FINISHED  # a failed run is tried again
    # A finished run's model is made again where it is missing, from the last checkpoint if there is one.
    whole = missing_model_file(folder / "model") is None or not (model or checkpoint is not None)
    if finished and whole and run.result is not None and not wants_more(run.result, spec.training.epochs):
        return run.result  # also where a kill left half of the checkpoints that it needs no more
    if checkpoint is not None:
        check_manifest(checkpoint)
    return None
