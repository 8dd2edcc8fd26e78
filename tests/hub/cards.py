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
    try:
        data = yaml.safe_load(text.split("\n---", 1)[0].removeprefix("---\n"))
    except yaml.YAMLError as error:
        return str(error)
    return next(_problems(data or {}), None) if repo_type == "model" else None


def _problems(data: dict[str, Any]) -> Iterator[str]:
    yield from _wrong("", data, {"license": LICENSES, "pipeline_tag": PIPELINES, "library_name": None}, needed=())
    for name in ("tags", "datasets", "metrics"):
        if not all(isinstance(value, str) and value for value in data.get(name, [])):
            yield f'"{name}" must be an array of strings'
        elif name == "datasets" and not all(map(DATASET.fullmatch, data.get(name, []))):
            yield '"datasets" is not valid: use a dataset id'
    (model,) = data.get("model-index", [{"name": "none"}])
    yield from _wrong("model-index", model, {"name": None})
    for result in model.get("results", []):
        yield from _wrong("task", result.get("task"), {"type": None})
        dataset = result.get("dataset") or {}
        yield from _wrong("dataset", dataset, {"type": None, "name": None})
        yield from _wrong("dataset", dataset, dict.fromkeys(("config", "split", "revision")), needed=())
        if not DATASET.fullmatch(str(dataset.get("type"))):
            yield '"dataset.type" is not a dataset id'
        for metric in result.get("metrics") or [None]:
            yield from _wrong("metric", metric, {"type": None})
            value = (metric or {}).get("value")
            if not isinstance(value, str) and (type(value) not in (int, float) or not math.isfinite(value)):
                yield '"metric.value" must be a finite number or a string'


def _wrong(where: str, found: Any, allowed: dict[str, Any], needed: Any = None) -> Iterator[str]:
    """The entries that are no texts, or not among those allowed; `needed` None: all of them are."""
    for name in allowed if needed is None else allowed.keys() & (found or {}).keys():
        value = (found or {}).get(name)
        if not isinstance(value, str) or not value or (allowed[name] and value not in allowed[name]):
            yield f'"{where}.{name}" must be {allowed[name] or "a string"}'.replace('".', '"')
