"""The YAML head of a model card: what the Hub indexes, by its rules (no nulls, plain finite numbers, names where it wants names)."""

import math
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from ..schema import SpecRecord
from ..text import accuracy, length_text
from .run_json import RunFacts

PAPER = "arxiv:2506.14095"
PIPELINES = {
    "SemFocusForSequenceClassification": "text-classification",
    "SemFocusForTokenClassification": "token-classification",
}


def model_name(facts: RunFacts, repo: str | None) -> str:
    """What the model is called: the repository's own name, or the run's."""
    return repo.rpartition("/")[2] if repo else facts.name


def metadata(facts: RunFacts, *, repo: str | None = None, dataset: str | None = None) -> ModelCardData:
    """The card's YAML head: what the Hub indexes. No nulls, plain finite numbers.

    Raises:
        ValueError: an accuracy is missing or no finite number: such a checkpoint has no result to show.
    """
    task, spec, found, base = facts.task, facts.spec, facts.accuracy, facts.baselines
    pipeline = PIPELINES[facts.architecture["class"]]
    data = dataset or task.name
    measured = [("Held-out accuracy", "heldout_accuracy", "chance", "majority_accuracy")]
    if task.kind == "token_classification":
        measured = [
            ("Held-out whole-sequence accuracy", "heldout_accuracy", "chance", "majority_accuracy"),
            ("Held-out per-token accuracy", "heldout_token_accuracy", "token_chance", "token_majority_accuracy"),
        ]
    results = [
        EvalResult(
            task_type=pipeline,
            task_name=task.name,
            dataset_type=data,
            dataset_name=f"{task.name}, length {length_text(spec.length)}",
            dataset_split="test",
            dataset_args=data_arguments(spec),
            metric_type="accuracy",
            metric_value=_finite(found[key], key),
            # The Hub shows the name beside the number, so what the number is to be compared with stands there too.
            metric_name=f"{name} (chance {accuracy(base[chance])}, majority class {accuracy(base[majority])})",
        )
        for name, key, chance, majority in measured
    ]
    tags = ["semfocus", "custom_code", "synthetic", f"mask:{spec.mask}", PAPER]
    tags += [f"variant:{spec.variant}"] if spec.variant else []
    tags += ["sparse-attention"] if spec.mask != "full" else []
    return ModelCardData(
        license="apache-2.0",
        library_name="transformers",
        pipeline_tag=pipeline,
        base_code=f"hf-semfocus {facts.versions['hf-semfocus']}",
        datasets=[data],
        metrics=["accuracy"],
        tags=[
            *tags,
            *(["reduced-size"] if facts.reduced else []),
            *([facts.status] if not facts.train.reached else []),
        ],
        model_name=model_name(facts, repo),
        eval_results=results,
    )


def data_arguments(spec: SpecRecord) -> dict[str, Any]:
    """The options of `load_task` that make a run's rows."""
    pooling = spec.model.get("pooling")
    sizes = {name: spec[name] for name in ("length", "train_size", "validation_size", "test_size", "seed")}
    return {**sizes, **({"pooling": pooling} if pooling else {}), **spec.task_options}


def data_call(spec: SpecRecord) -> str:
    """The Python call that makes a run's rows."""
    arguments = {
        name: tuple(value) if isinstance(value, list) and name == "length" else value
        for name, value in data_arguments(spec).items()
    }
    return f"load_task({spec.task!r}, {', '.join(f'{name}={value!r}' for name, value in arguments.items())})"


def _finite(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} of the kept epoch is {value!r}: a card needs a finite number")
    return float(value)
