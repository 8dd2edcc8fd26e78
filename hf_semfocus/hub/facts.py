"""What a model card says of a run, made from the files that the run left."""

import json
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ..comparison.run_directory import RunDirectory, read_experiment
from ..data import TaskInfo, list_tasks
from ..data.generation import tables, whole_split
from ..data.options import check_options
from ..experiments.experiment import Experiment
from ..experiments.imports import known_task
from ..experiments.presets import preset
from ..experiments.spec import RunSpec, mask_slug, spread_seed
from ..files import check_not_newer, json_text, read_json, write_json
from ..schema import (
    SpecRecord,
)
from ..training.checkpoints import missing_model_file
from ..training.run_files import Run, read_run
from .run_json import FACTS, ComparisonFacts, PairFacts, RunFacts, TaskFacts

EXAMPLE_TOKENS = 64  # a longer row would fill a card's page
ARCHITECTURE = (
    "attention_form", "hidden_act", "hidden_size", "intermediate_size", "max_position_embeddings", "norm_position",
    "num_attention_heads", "num_hidden_layers", "pooling", "position_embedding_type",
)  # fmt: skip


def write_facts(run: Run | Path | str, directory: RunDirectory | None = None) -> Path:
    """Writes `model/run.json` of a finished run, from the files that the run left; returns the checkpoint, `folder/model`.

    The same run gives the same file: it holds no date and none of the user's paths.

    Args:
        run: the run or its folder, with `spec.json`, `history.jsonl`, `result.json` and `model/`.
        directory: the comparison that it belongs to, where that has been read.

    Raises:
        ValueError: there is no run, it failed or has not finished, its checkpoint is not complete, or a file is damaged.
    """
    facts, folder = run_facts(run, directory), run.folder if isinstance(run, Run) else Path(run)
    assert folder is not None
    path = folder / "model" / FACTS
    check_not_newer(path, 2)
    # A run that can only be read still has its card, once its facts are there.
    if not path.is_file() or path.read_bytes() != json_text(facts.to_json()).encode():
        write_json(path, facts.to_json())
    return folder / "model"


def run_facts(run: Run | Path | str, directory: RunDirectory | None = None) -> RunFacts:
    """The content of `run.json`: see `write_facts`."""
    if not isinstance(run, Run):
        found = read_run(Path(run))
        if found is None:
            raise ValueError(f"{Path(run)} is not a run's folder: it has no spec.json; `semfocus train` makes one")
        return run_facts(found, directory)
    folder, result = run.folder, run.result
    assert folder is not None
    if result is None:
        raise ValueError(f"the run in {folder} has not finished; start it again, and it goes on from its last epoch")
    if result.status == "failed":
        raise ValueError(f"the run in {folder} failed ({result.error}); a failed run has no card")
    missing = next((name for name in ("data", "parameters", "versions") if not result[name]), None)
    if missing is not None or result.data is None or result.parameters is None:
        raise ValueError(
            f"{folder / 'result.json'} is damaged: {missing} is missing; restore it, or run the run again"
        )
    checkpoint = folder / "model"
    missing = missing_model_file(checkpoint)
    if missing is not None:
        raise ValueError(
            f"the checkpoint {checkpoint} is not complete: it has no {missing}; run the same `semfocus train` again, or move "
            f"{folder} away and run the same `semfocus compare` again"
        )
    config = read_json(checkpoint / "config.json")
    if not isinstance(config, dict) or not config.get("architectures"):
        raise ValueError(f"{checkpoint / 'config.json'} is damaged: it names no architecture; run the run again")
    spec, info = _portable(run.spec), _info(run.spec)
    name = f"{spec.task}-{mask_slug(spec.label)}-seed-{spec.seed}"
    kept = kept_epoch(run)
    return RunFacts(
        format=2,
        name=name,
        task=TaskFacts(**vars(info), in_paper=info.name in list_tasks("paper")),
        spec=spec,
        architecture={"class": config["architectures"][0], **{key: config.get(key) for key in ARCHITECTURE}},
        own_code=sorted(path.name for path in checkpoint.glob("custom_*.py")),
        torch_seed=spread_seed(spec.seed),
        command=train_command(spec.to_json(), f"runs/{name}"),
        output=f"runs/{name}",
        status=result.status,
        diverged=run.diverged,
        kept_epoch=kept,
        accuracy={key: value for key, value in run.history[kept - 1].to_json().items() if key.endswith("_accuracy")},
        train=run.convergence("train"),
        heldout=run.convergence("heldout"),
        baselines=result.data.model_copy(update={"label_histogram": None}),
        reach=result.reach,
        dispersion=result.dispersion,
        parameters=result.parameters,
        processes=result.processes,
        versions=result.versions,
        machine=result.machine,
        reduced=reduced(spec, config),
        example=example(spec),
        comparison=_comparison(run, directory),
        history=list(run.history),
    )


def kept_epoch(run: Run) -> int:
    """The epoch, counted from 1, whose weights the checkpoint holds: the last, or with `keep="best"` the first of those with the best
    validation accuracy."""
    if run.spec.training.keep == "last":
        return len(run.history)
    accuracies = run.values("validation_accuracy")
    if len(accuracies) != len(run.history):
        raise ValueError(f"{run.folder} keeps the best weights, and its history lacks validation accuracies")
    return accuracies.index(max(accuracies)) + 1


def train_command(spec: Mapping[str, Any], output: str) -> str:
    """The `semfocus train` command line that makes a run with this specification.

    >>> train_command(RunSpec("even_pairs", length=20, model={"num_hidden_layers": 3}).to_dict(), "runs/one")
    'semfocus train even_pairs --mask topk:5 --seed 0 --length 20 --layers 3 --output runs/one'
    """
    length, defaults = spec["length"], RunSpec(spec["task"]).to_dict()
    variant = spec.get("variant")
    words = ["semfocus", "train", spec["task"], "--mask", spec["mask"], "--seed", spec["seed"]]
    words += ["--length", "-".join(map(str, length)) if isinstance(length, list | tuple) else length]
    for name in ("train_size", "validation_size", "test_size"):
        if spec[name] != defaults[name]:
            words += [f"--{name.replace('_', '-')}", spec[name]]
    flags = {"epochs": "--epochs", "optimizer": "--optimizer", "learning_rate": "--learning-rate"}
    flags |= {"batch_size": "--batch-size", "num_hidden_layers": "--layers"}
    settings = [f"variant={json.dumps(variant)}"] if variant else []
    for part in ("training", "model", "task_options"):
        for name, value in (spec.get(part) or {}).items():
            if value == defaults[part].get(name, ...):
                continue
            if name in flags:
                words += [flags[name], value]
            else:
                text = value if isinstance(value, str) and value.isidentifier() else json.dumps(value)
                settings.append(f"{part}.{name}={text}")
    words += ["--set", *settings] if settings else []
    words += ["--import", *spec["imports"]] if spec.get("imports") else []
    return shlex.join(map(str, [*words, "--output", output]))


def reduced(spec: SpecRecord, config: Mapping[str, Any]) -> list[str]:
    """In what a run is smaller than the paper's (for a task that the paper has not: than this package's defaults); empty if in nothing.

    Args:
        spec: the run's specification.
        config: of its model, whole.
    """
    task = spec.task
    paper = _paper()
    usual, whose = (
        (paper.spec(task, "full", 0), "the paper")
        if task in paper.tasks
        else (RunSpec(task).resolved(), "the default")
    )
    sizes = usual.config()

    def longest(length: Any) -> int:
        return length[-1] if isinstance(length, list | tuple) else length

    compared = {
        "input length": (longest(spec.length), longest(usual.length)),
        "training rows": (spec.train_size, usual.train_size),
        "held-out rows": (spec.test_size, usual.test_size),
        "blocks": (config["num_hidden_layers"], sizes.num_hidden_layers),
        "model width": (config["hidden_size"], sizes.hidden_size),
        "MLP width": (config["intermediate_size"], sizes.intermediate_size),
    }
    return [f"{name} {own:,} ({whose}: {other:,})" for name, (own, other) in compared.items() if own < other]


@cache
def _paper() -> Experiment:
    return preset("paper")


def example(spec: SpecRecord) -> dict[str, str]:
    """The first held-out row of a run as a `pipeline` takes it, and its right answer; a long one gives way to the task's worked example."""
    info = _info(spec)
    pooling = spec.model.get("pooling", "mean")
    sizes = {f"{split}_size": 1 for split in ("train", "validation", "test")}
    options = {"length": spec.length, "seed": spec.seed, "pooling": pooling, **spec.task_options}
    checked = check_options(spec.task, {**options, **sizes})
    row = next(tables(checked, whole_split(checked, "test")[0])).slice(0, 1).to_pylist()[0]
    text, target = row["text"], row["target"]
    if len(text.split()) > EXAMPLE_TOKENS:
        text, target = info.example_text, info.example_target
    outputs = info.output_length(len(text.split())) or 0
    return {"text": " ".join([text, *["[Q]"] * outputs]), "target": target}


def _info(spec: SpecRecord) -> TaskInfo:
    return known_task(spec.task, spec.task_options.get("answer"), spec.imports)


def _portable(spec: SpecRecord) -> SpecRecord:
    """The specification with the files of a user's own masks by name alone: where they lay is nobody else's business."""
    names = [Path(name).name if name.endswith(".py") else name for name in spec.imports]
    return SpecRecord.model_validate({**spec.to_json(), "imports": names})


def _comparison(run: Run, directory: RunDirectory | None) -> ComparisonFacts | None:
    """The comparison that a run belongs to, and how its paired baseline did; None for a run of its own."""
    assert run.folder is not None
    runs = run.folder.absolute().parent.parent.parent
    if directory is None and (runs.name != "runs" or not (runs.parent / "experiment.json").is_file()):
        return None
    experiment = directory.experiment if directory else read_experiment(runs.parent)
    task, mask, seed = run.key
    baseline, other = experiment.baseline, None
    if mask != baseline:
        folder = runs / task / mask_slug(baseline) / f"seed-{seed}"
        other = directory.run(task, baseline, seed) if directory else read_run(folder)
    pair = None
    if other is not None and other.counts and run.counts:
        pair = PairFacts(baseline=other.convergence("train"), mask=run.convergence("train"))
    known = {key: experiment[key] for key in ("name", "note", "machine")}
    return ComparisonFacts(**known, baseline=baseline, runs=len(experiment.units), pair=pair)
