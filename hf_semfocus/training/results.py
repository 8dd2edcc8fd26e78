"""What a run leaves in `result.json`: how it ended, what its model looks like, and what its numbers are to be compared with."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from ..analysis.initial_attention import initial_attention
from ..analysis.probe import probe_dispersion
from ..analysis.reach import reach
from ..experiments.spec import RunSpec
from ..products import use_fast_products
from ..schema import RESULT_FORMAT, AttentionRecord, DataRecord, Dispersion, ReachRecord, RunResult
from .environment import machine, process_state, versions
from .recorder import epoch_entries, initial_analysis, why_stop
from .rows import TensorRows
from .run_files import epochs_to
from .setup import check_memory, prepared

# Held-out rows on which the dispersion is measured: enough for stable quantiles, small beside an epoch.
PROBE_ROWS = 200


def run_result(spec: RunSpec, model, rows: Mapping[str, TensorRows], log: list[dict[str, Any]], labels: dict[str, Any],
               start: AttentionRecord | None) -> RunResult:  # fmt: skip
    """The result of a run that has ended.

    Args:
        spec: the run.
        model: as it was trained.
        rows: of each split.
        log: the Trainer's.
        labels: `label_statistics` of the training rows.
        start: see `attention_of`.
    """
    options, history = spec.training, epoch_entries(log)
    learnt = epochs_to(history, "train_accuracy", options.tau)
    stopped = why_stop(history, options)
    last = history[-1]
    heldout = rows[options.heldout_split]
    probe = heldout.batch(slice(0, PROBE_ROWS))
    device = next(model.parameters()).device
    probe = {name: value.to(device) for name, value in probe.items() if name != "labels"}
    config = model.config
    masks = [config.mask_of_layer(index) for index in range(config.num_hidden_layers)]
    reached = reach(masks, config.padded_length(heldout.input_ids.shape[1]), config.num_hidden_layers)
    return RunResult(
        format=RESULT_FORMAT,
        status="reached" if learnt else "diverged" if stopped == "diverged" else "censored",
        stopped=stopped,
        error=None,
        epochs_trained=last.epoch,
        epochs_to_tau=learnt,
        epochs_to_heldout_tau=epochs_to(history, "heldout_accuracy", options.heldout_tau),
        seconds_to_tau=history[learnt - 1].train_seconds if learnt else None,
        seconds=last.seconds,
        train_seconds=last.train_seconds,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        data=_baselines(rows["train"], labels),
        reach=ReachRecord(**asdict(reached)),
        dispersion=Dispersion.model_validate(probe_dispersion(model, probe)) if stopped != "diverged" else None,
        initial_analysis=initial_analysis(log),
        initial_attention=start,
        processes=process_state().num_processes,
        versions=versions(),
        machine=machine(),
    )


def _baselines(train: TensorRows, labels: dict[str, Any]) -> DataRecord:
    """What accuracy is to be compared with. For sequence tasks accuracy counts whole rows, and so do chance and majority here."""
    # Labels are numbers where there are no names for them, and JSON has no such keys.
    histogram = {str(label): count for label, count in labels["histogram"].items()}
    chance, majority = labels["chance"], labels["majority_accuracy"]
    if not train.per_token:
        return DataRecord(chance=chance, majority_accuracy=majority, label_histogram=histogram)
    positions = (train.labels != -100).sum(-1).double()
    return DataRecord(
        chance=(chance**positions).mean().item(),
        majority_accuracy=labels["majority_sequence_accuracy"],
        token_chance=chance,
        token_majority_accuracy=majority,
        label_histogram=histogram,
    )


def attention_of(model, inputs: Mapping[str, torch.Tensor]) -> AttentionRecord | None:
    """`InitialAttention` of the untrained model, with its gain and the rows; None where no query has two keys to choose from."""
    if model.config.padded_length(inputs["input_ids"].shape[1]) < 2:
        return None
    with torch.random.fork_rng():  # training draws what it would have drawn without
        measured = asdict(initial_attention(model, inputs))
    by_layer = list(measured.pop("entropy_by_layer"))
    rows = len(inputs["input_ids"])
    return AttentionRecord(
        attention_gain=model.config.attention_gain, rows=rows, entropy_by_layer=by_layer, **measured
    )


def untrained_attention(spec: RunSpec) -> AttentionRecord | None:
    """What a run of `spec` records of its attention before training: ``initial_attention`` of its result.

    Returns:
        The fields of `InitialAttention`, ``attention_gain`` (the number, also where it is chosen) and ``rows``; None where no
        input has two tokens.
    """
    check_memory(spec)
    use_fast_products()
    *_, model, inputs = prepared(spec)
    return attention_of(model, inputs)
