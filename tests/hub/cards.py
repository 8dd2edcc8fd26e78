"""What the Hub refuses in the YAML head of a card: the rules of its card specification, in the words of its refusals."""

import math
import re
from collections.abc import Iterator
from typing import Any

import yaml

LICENSES = ("apache-2.0", "mit", "bsd-3-clause", "cc-by-4.0", "cc0-1.0", "other", "unknown")
DATASET = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
PIPELINES = ("text-classification", "token-classification", "fill-mask", "feature-extraction")


def card_problem(text: str, repo_type: str = "model") -> str | None:
    """What is wrong with the YAML head of a card, if anything."""
    if not text.startswith("---\n"):
        return None
    head, end, _ = text.removeprefix("---\n").partition("\n---")
    if not end:
        return "the YAML head has no end"
    try:
        data = yaml.safe_load(head)
    except yaml.YAMLError as error:
        return str(error)
    if data is None:
        return None
    if not isinstance(data, dict):
        return "the YAML head is not a mapping"
    return next(model_problems(data), None) if repo_type == "model" else None


def model_problems(data: dict[str, Any]) -> Iterator[str]:
    """Every broken rule of a model card's head."""
    for name in ("license", "library_name", "pipeline_tag"):
        if name in data and not isinstance(data[name], str):
            yield f'"{name}" must be a string'
    if data.get("license", "other") not in LICENSES:
        yield f'"license" must be one of {", ".join(LICENSES)}'
    if data.get("pipeline_tag", PIPELINES[0]) not in PIPELINES:
        yield f'"pipeline_tag" must be one of {", ".join(PIPELINES)}'
    for name in ("tags", "datasets", "metrics"):
        values = data.get(name, [])
        if not isinstance(values, list) or not all(isinstance(value, str) and value for value in values):
            yield f'"{name}" must be an array of strings'
        elif name == "datasets":
            wrong = [value for value in values if not DATASET.fullmatch(value)]
            yield from (f'"datasets" with value {value!r} is not valid: use a dataset id' for value in wrong)
    if "model-index" in data:
        yield from index_problems(data["model-index"])


def index_problems(index: Any) -> Iterator[str]:
    """Every broken rule of `model-index`."""
    if not isinstance(index, list) or len(index) != 1 or not isinstance(index[0], dict):
        yield '"model-index" must be an array of one model'
        return
    yield from _strings("model-index[0]", index[0], ("name",))
    for number, result in enumerate(index[0].get("results") or [None]):
        where = f"model-index[0].results[{number}]"
        if not isinstance(result, dict):
            yield f'"{where}" must be an object'
            continue
        for part, needed, optional in (
            ("task", ("type",), ("name",)),
            ("dataset", ("type", "name"), ("config", "split", "revision")),
        ):
            yield from _strings(f"{where}.{part}", result.get(part), needed, optional)
        dataset = result.get("dataset")
        if isinstance(dataset, dict) and not DATASET.fullmatch(str(dataset.get("type"))):
            yield f'"{where}.dataset.type" is not a dataset id'
        if isinstance(dataset, dict) and not isinstance(dataset.get("args", {}), dict):
            yield f'"{where}.dataset.args" must be an object'
        for place, metric in enumerate(result.get("metrics") or [None]):
            here = f"{where}.metrics[{place}]"
            yield from _strings(here, metric, ("type",), ("name", "config"))
            value = metric.get("value") if isinstance(metric, dict) else None
            plain = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not plain and not isinstance(value, str):
                yield f'"{here}.value" must be a finite number or a string'


def _strings(where: str, found: Any, needed: tuple[str, ...], optional: tuple[str, ...] = ()) -> Iterator[str]:
    if not isinstance(found, dict):
        yield f'"{where}" is required'
        return
    for name in (*needed, *(name for name in optional if name in found)):
        if not isinstance(found.get(name), str) or not found[name]:
            yield f'"{where}.{name}" must be a string'
