"""What a model card says of a run, as data: `run.json` in the checkpoint, so that a checkpoint can tell its run wherever it is moved."""

import json
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ..comparison.run_directory import Run, read_experiment, read_run
from ..comparison.statistics import speed_up
from ..data import TaskInfo, list_tasks, task_info
from ..data.generation import tables, whole_split
from ..data.options import check_options
from ..experiments.experiment import Experiment
from ..experiments.presets import preset
from ..experiments.spec import RunSpec, mask_slug, spread_seed
from ..files import json_text, read_json, write_json
from ..training.checkpoints import missing_model_file

FORMAT = 1
FACTS = "run.json"
EXAMPLE_TOKENS = 64  # a longer row would fill a card's page
ARCHITECTURE = (
    "attention_form", "hidden_act", "hidden_size", "intermediate_size", "max_position_embeddings", "norm_position",
    "num_attention_heads", "num_hidden_layers", "pooling", "position_embedding_type",
)  # fmt: skip


def write_facts(folder: Path | str) -> Path:
    """Writes `model/run.json` of a finished run, from the files that the run left; returns the checkpoint, `folder/model`.

    The same run gives the same file: it holds no date and none of the user's paths.

    Args:
        folder: the run's folder, with `spec.json`, `history.jsonl`, `result.json` and `model/`.

    Raises:
        ValueError: there is no run, it failed or has not finished, its checkpoint is not complete, or a file is damaged.
    """
    folder = Path(folder)
    facts, path = run_facts(folder), folder / "model" / FACTS
    # A run that can only be read still has its card, once its facts are there.
    if not path.is_file() or path.read_bytes() != json_text(facts).encode():
        write_json(path, facts)
    return folder / "model"


def run_facts(folder: Path) -> dict[str, Any]:
    """The content of `run.json`: see `write_facts`."""
    run = read_run(folder)
    if run is None:
        raise ValueError(f"{folder} is not a run's folder: it has no spec.json; `semfocus train` makes one")
    if run.result is None:
        raise ValueError(f"the run in {folder} has not finished; start it again, and it goes on from its last epoch")
    if run.status == "failed":
        raise ValueError(f"the run in {folder} failed ({run.result.get('error')}); a failed run has no card")
    for name in ("data", "parameters", "versions"):
        if not run.result.get(name):
            raise ValueError(
                f"{folder / 'result.json'} is damaged: it has no {name!r}; restore it, or run the run anew"
            )
    checkpoint = folder / "model"
    missing = missing_model_file(checkpoint)
    if missing is not None:
        raise ValueError(
            f"the checkpoint {checkpoint} is not complete: it has no {missing}; run the same `semfocus train` again, or move "
            f"{folder} away and run the same `semfocus compare` again"
        )
    spec, result, info = _portable(run.spec), run.result, _info(run.spec)
    config = read_json(checkpoint / "config.json")
    name = f"{run.spec['task']}-{mask_slug(run.label)}-seed-{run.spec['seed']}"
    kept = kept_epoch(run)
    return {
        "format": FORMAT,
        "name": name,
        "task": {
            "name": info.name,
            "level": info.level,
            "kind": info.kind,
            "description": info.description,
            "vocabulary": list(info.vocabulary),
            "labels": list(info.labels),
            "in_paper": info.name in list_tasks("paper"),
        },
        "spec": spec,
        "architecture": {"class": config["architectures"][0], **{key: config.get(key) for key in ARCHITECTURE}},
        "own_code": sorted(path.name for path in checkpoint.glob("custom_*.py")),
        "torch_seed": spread_seed(run.spec["seed"]),
        "command": train_command(spec, f"runs/{name}"),
        "output": f"runs/{name}",
        "status": run.status,
        "diverged": run.diverged,
        "kept_epoch": kept,
        "accuracy": {key: value for key, value in run.history[kept - 1].items() if key.endswith("_accuracy")},
        "epochs_to_tau": run.convergence("train").text,
        "epochs_to_heldout_tau": run.convergence("heldout").text,
        "baselines": {key: value for key, value in result["data"].items() if key != "label_histogram"},
        **{key: result.get(key) for key in ("reach", "dispersion", "parameters", "processes", "versions", "machine")},
        "reduced": reduced(spec, config),
        "example": example(spec),
        "comparison": _comparison(folder, run),
        "history": list(run.history),
    }


def kept_epoch(run: Run) -> int:
    """The epoch, counted from 1, whose weights the checkpoint holds: the last, or with `keep="best"` the first of those with the best
    validation accuracy."""
    if run.spec["training"].get("keep", "last") == "last":
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


def reduced(spec: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """In what a run is smaller than the paper's (for a task that the paper has not: than this package's defaults); empty if in nothing.

    Args:
        spec: the run's specification.
        config: of its model, whole.
    """
    task = spec["task"]
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
        "input length": (longest(spec["length"]), longest(usual.length)),
        "training rows": (spec["train_size"], usual.train_size),
        "held-out rows": (spec["test_size"], usual.test_size),
        "blocks": (config["num_hidden_layers"], sizes.num_hidden_layers),
        "model width": (config["hidden_size"], sizes.hidden_size),
        "MLP width": (config["intermediate_size"], sizes.intermediate_size),
    }
    return [f"{name} {own:,} ({whose}: {other:,})" for name, (own, other) in compared.items() if own < other]


@cache
def _paper() -> Experiment:
    return preset("paper")


def example(spec: Mapping[str, Any]) -> dict[str, str]:
    """The first held-out row of a run as a `pipeline` takes it, and its right answer; a long one gives way to the task's worked example."""
    info = _info(spec)
    pooling = (spec.get("model") or {}).get("pooling", "mean")
    sizes = {f"{split}_size": 1 for split in ("train", "validation", "test")}
    options = {"length": spec["length"], "seed": spec["seed"], "pooling": pooling, **(spec.get("task_options") or {})}
    checked = check_options(spec["task"], {**options, **sizes})
    row = next(tables(checked, whole_split(checked, "test")[0])).slice(0, 1).to_pylist()[0]
    text, target = row["text"], row["target"]
    if len(text.split()) > EXAMPLE_TOKENS:
        text, target = info.example_text, info.example_target
    outputs = info.output_length(len(text.split())) or 0
    return {"text": " ".join([text, *["[Q]"] * outputs]), "target": target}


def _info(spec: Mapping[str, Any]) -> TaskInfo:
    return task_info(spec["task"], (spec.get("task_options") or {}).get("answer"))


def _portable(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The specification with the files of a user's own masks by name alone: where they lay is nobody else's business."""
    names = [Path(name).name if name.endswith(".py") else name for name in spec.get("imports") or ()]
    return {**spec, "imports": names}


def _comparison(folder: Path, run: Run) -> dict[str, Any] | None:
    """The comparison that a run belongs to, and how its paired baseline did; None for a run of its own."""
    runs = folder.absolute().parent.parent.parent
    out = runs.parent
    if runs.name != "runs" or not (out / "experiment.json").is_file():
        return None
    experiment = read_experiment(out)
    task, mask, seed = run.key
    baseline = experiment.get("baseline", "full")
    pair = None
    other = read_run(out / "runs" / task / mask_slug(baseline) / f"seed-{seed}") if mask != baseline else None
    if other is not None and other.counts and run.counts:
        theirs, ours = other.convergence("train"), run.convergence("train")
        pair = {"baseline_epochs": theirs.text, "epochs": ours.text, "speed_up": speed_up(theirs, ours).text}
    known = {key: experiment.get(key) for key in ("name", "note", "machine")}
    return {**known, "baseline": baseline, "runs": len(experiment.get("units") or ()), "pair": pair}
