"""Options on their way to a specification: read from YAML, laid over each other, checked by pydantic."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ConfigDict, ValidationError

from ..text import did_you_mean

T = TypeVar("T")
PLAIN = {
    "dictionary": "mapping", "tuple": "list", "a valid string": "a text", "a valid integer": "a whole number", "a valid number": "a number",
}  # fmt: skip
"""pydantic's names of types as people write them."""
STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


def read_yaml(path: Path | str) -> dict[str, Any]:
    """A YAML or JSON file that holds a mapping; anything else raises `ValueError` naming the file."""
    if Path(path).is_dir():
        raise ValueError(f"{path} is a folder; allowed: a YAML or JSON file")
    try:
        values: Any = OmegaConf.to_container(OmegaConf.load(path))
    except (yaml.YAMLError, OmegaConfBaseException, ValueError) as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    except OSError as error:
        if error.errno is not None:  # OmegaConf's has none
            raise
        raise ValueError(f"{path} holds a single value; allowed: a mapping of options") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds a {type(values).__name__}; allowed: a mapping of options")
    return values


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """The layers, each over those before it: mappings are merged, everything else is replaced."""
    try:
        values: Any = OmegaConf.to_container(OmegaConf.merge(*layers))
    except OmegaConfBaseException as error:
        key, problem = f"{error.full_key}: " if error.full_key else "", str(error).splitlines()[0]
        raise ValueError(f"{key}{problem}; allowed: plain numbers, texts, lists and mappings") from None
    except TypeError:  # a list and a mapping meet
        raise ValueError(_clash(layers)) from None
    return values


def _clash(layers: Sequence[Mapping[str, Any]], above: str = "") -> str:
    """Where a list stands in the place of a mapping, or the other way round."""
    for key in dict.fromkeys(key for layer in layers for key in layer):
        values = [layer[key] for layer in layers if isinstance(layer.get(key), Mapping | Sequence)]
        maps = [value for value in values if isinstance(value, Mapping)]
        if 0 < len(maps) < len([value for value in values if not isinstance(value, str)]):
            allowed = "a mapping" if isinstance(values[0], Mapping) else "a list"
            return f"{above}{key} is {values[-1]}; allowed: {allowed}"
        if below := _clash(maps, f"{above}{key}."):
            return below
    return ""


def nested(named: Mapping[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """Values by dotted names, and over them KEY=VALUE texts with YAML values.

    >>> nested({"length": 40, "training.epochs": 3}, ["training.learning_rate=1e-3"])
    {'length': 40, 'training': {'epochs': 3, 'learning_rate': 0.001}}
    """
    try:
        over = OmegaConf.from_dotlist(list(settings))
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ValueError(f"--set {' '.join(settings)}: {' '.join(str(error).split())}") from None
    config = OmegaConf.create()
    for name, value in named.items():
        OmegaConf.update(config, name, value)
    return merged(config, over)


def parse(cls: type[T], values: Any, what: str) -> T:
    """An instance of a class with :func:`one_line_errors` from a mapping; one that is an instance already comes back as it is."""
    if isinstance(values, cls):
        return values
    if not isinstance(values, Mapping):
        raise ValueError(f"{what} is {values!r}; allowed: a mapping of options")
    return cls(**{str(name): value for name, value in values.items()})


def one_line_errors(what: str) -> Callable[[type[T]], type[T]]:
    """Class decorator for a pydantic dataclass: what it refuses is a `ValueError` in one line, as everywhere.

    The line has the field, its value and what is allowed; for an unknown field the nearest known one.
    """

    def decorate(cls: type[T]) -> type[T]:
        made: Any = cls
        make = made.__init__

        @functools.wraps(make)
        def init(self: T, *given: Any, **named: Any) -> None:
            try:
                make(self, *given, **named)
            except ValidationError as error:
                # A mistyped name may be why another is missing.
                first = min(error.errors(), key=lambda one: one["type"] != "unexpected_keyword_argument")
                raise ValueError(_one_line(first, [entry.name for entry in fields(cls)], what)) from None  # type: ignore[arg-type]

        made.__init__ = init
        return cls

    return decorate


def _one_line(error: Any, known: list[str], what: str) -> str:
    where = ".".join(map(str, error["loc"]))
    if error["type"] == "unexpected_keyword_argument":
        hint = did_you_mean(where, known) or f"; allowed: {', '.join(known)}"
        return f"unknown {what} option {where!r}{hint}"
    if error["type"] == "missing":
        return f"the {what} has no {where}"
    if error["type"] == "value_error":
        text = str(error["ctx"]["error"])
        return text if text.startswith(where) else f"{where}: {text}"
    allowed = error["msg"].removeprefix("Input should be ")
    if error["type"] == "too_short":
        allowed = f"at least {error['ctx']['min_length']}"
    for name, plain in PLAIN.items():
        allowed = allowed.replace(name, plain)
    return f"{where} is {error['input']!r}; allowed: {allowed}"
