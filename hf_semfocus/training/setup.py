"""What a run begins with: its data, its model with the initial weights, and Transformers' arguments."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, TrainingArguments, set_seed

from ..analysis.initial_attention import TARGET_ENTROPY, choose_attention_gain
from ..data import build_tokenizer, load_task, task_info
from ..experiments.spec import AUTO, RunSpec, spread_seed
from ..model.configuration_semfocus import SemFocusConfig
from ..model.modeling_semfocus import SemFocusForSequenceClassification, SemFocusForTokenClassification
from ..products import total_memory
from .environment import process_state
from .rows import TensorRows

INITIAL_ROWS = 500


def check_memory(spec: RunSpec) -> None:
    """Refuses a model whose weights and gradients alone go over this machine's memory.

    Without it the system kills the process while it draws weights, and gives no reason.

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


def prepared(spec: RunSpec) -> tuple[Any, Any, dict[str, TensorRows], PreTrainedModel, dict[str, torch.Tensor]]:
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


def check_tracker(spec: RunSpec) -> None:
    """Refuses a tracker that is not installed.

    Raises:
        ValueError: it is not.
    """
    name = spec.training.report_to
    if name != "none" and find_spec(name) is None:
        raise ValueError(f"report_to is {name!r}, which is not installed: pip install {name}")


def _project(folder: Path) -> str:
    """What a tracker groups runs by: the comparison's run directory, or the run's folder."""
    parents = folder.absolute().parents
    return parents[3].name if len(parents) > 3 and parents[2].name == "runs" else folder.absolute().name


@contextlib.contextmanager
def tracked(spec: RunSpec, folder: Path) -> Iterator[None]:
    """A run of its own in W&B, whose project Transformers reads from the environment; the next run of this process has another."""
    if spec.training.report_to != "wandb":
        yield
        return
    import wandb

    given = "WANDB_PROJECT" in os.environ
    os.environ.setdefault("WANDB_PROJECT", _project(folder))
    try:
        yield
    finally:
        wandb.finish()  # the Trainer would log the next run of this process into the one that is open
        if not given:
            del os.environ["WANDB_PROJECT"]


def training_arguments(spec: RunSpec, folder: Path) -> TrainingArguments:
    """Transformers' arguments for a run. `batch_size` counts all processes' examples, so a run is the same on one or two."""
    options, processes = spec.training, process_state().num_processes
    if options.batch_size % processes:
        raise ValueError(f"batch_size is {options.batch_size}; allowed: a multiple of the {processes} processes")
    optimizers = {"sgd": "sgd", "adam": "adamw_torch", "adamw": "adamw_torch"}  # Adam is AdamW without weight decay
    # Beside the run: its checkpoints, where the Trainer would put it, go when the run has ended.
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(folder / "tensorboard")
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
        save_total_limit=2,  # the one before stays until the new one is complete
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
