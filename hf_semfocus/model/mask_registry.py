"""Names of mask strategies, and the specifications made of them: ``topk:5+sink:1``.

Grammar: ``name[:value][;key=value]*``, several of them joined by ``+`` (a union keeps what any part keeps).
"""

import dataclasses
import difflib
import functools
import operator
import re
from collections.abc import Callable
from typing import TypeVar

import torch

from .mask_base import MaskStrategy
from .mask_inputs import MaskContext
from .mask_state import MaskState, UnionState
from .mask_structure import Structure

Strategy = TypeVar("Strategy", bound=type[MaskStrategy])

# `importlib.reload` runs this file again in the same namespace; the strategies that other files registered must stay.
_REGISTRY: dict[str, type[MaskStrategy]] = globals().get("_REGISTRY", {})


class MaskUnion(MaskStrategy):
    """The union of several strategies: a key is kept if any part keeps it.

    Args:
        parts: at least two strategies, none of them a union.
    """

    parts: tuple[MaskStrategy, ...]

    def __post_init__(self) -> None:
        # What the classes of other strategies say follows from the parts here.
        for name in ("input_dependent", "redrawn", "counts_queries", "counts_keys"):
            object.__setattr__(self, name, any(getattr(part, name) for part in self.parts))
        object.__setattr__(self, "row_by_row", all(part.row_by_row for part in self.parts))

    def structure(self, keys: int) -> Structure | None:
        """The union of the parts' structures; None if one of them is not known."""
        known = [part.known_structure(keys) for part in self.parts]
        return None if None in known else functools.reduce(operator.or_, known)

    def make_state(self, head_dim: int, heads: int) -> MaskState | None:
        """What the parts learn, if any does; see :meth:`MaskStrategy.make_state`."""
        states = [part.make_state(head_dim, heads) for part in self.parts]
        return None if all(state is None for state in states) else UnionState(states)

    def keep(self, scores: torch.Tensor, valid: torch.Tensor, context: MaskContext) -> torch.Tensor:
        """Keys that any part keeps; see :meth:`MaskStrategy.keep`."""
        states = (None,) * len(self.parts) if context.state is None else context.state
        kept = [
            (part.kept_in if part.limited_to_pattern else part.keep)(
                scores, valid, dataclasses.replace(context, state=state)
            )
            for part, state in zip(self.parts, states, strict=True)
        ]
        return functools.reduce(operator.or_, kept)

    def __str__(self) -> str:
        return "+".join(map(str, self.parts))

    __repr__ = __str__


def register_mask_strategy(name: str) -> Callable[[Strategy], Strategy]:
    """Class decorator that gives a :class:`MaskStrategy` its name in specifications.

    Args:
        name: lower-case letters, digits and underscores, starting with a letter.

    Raises:
        ValueError: if the name is malformed, or belongs to another class, or a parameter is no int, float or str. The same class (same
            module and qualified name) may be registered again, so that notebooks and reloads work.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ValueError(
            f"mask strategy name {name!r} must be lower-case letters, digits and underscores, starting with a letter"
        )

    def register(cls: Strategy) -> Strategy:
        if not (isinstance(cls, type) and issubclass(cls, MaskStrategy)):
            raise ValueError(f"mask strategy {name!r} must be a subclass of MaskStrategy, got {cls!r}")
        for parameter, kind in cls.parameter_types.items():
            if kind not in (int, float, str):
                raise ValueError(
                    f"mask strategy {name!r}: parameter {parameter} is {kind}; allowed: int, float or str, as specifications are text"
                )
        known = _REGISTRY.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(
                f"mask strategy {name!r} is already registered by {known.__module__}.{known.__qualname__}; "
                f"{cls.__module__}.{cls.__qualname__} needs another name"
            )
        cls.name = name
        _REGISTRY[name] = cls
        return cls

    return register


def list_mask_strategies() -> list[str]:
    """Names of all registered strategies, sorted.

    Example:
        >>> "topk" in list_mask_strategies()
        True
    """
    return sorted(_REGISTRY)


def mask_strategy_class(name: str) -> type[MaskStrategy]:
    """The class registered under `name`.

    Raises:
        ValueError: if there is none; the message has the nearest name.
    """
    if name not in _REGISTRY:
        nearest = difflib.get_close_matches(name, _REGISTRY, n=2, cutoff=0.5)
        hint = f" (did you mean {' or '.join(map(repr, nearest))}?)" if nearest else ""
        raise ValueError(f"unknown mask strategy {name!r}{hint}; `semfocus masks` lists them")
    return _REGISTRY[name]


def mask_parts(mask: MaskStrategy) -> tuple[MaskStrategy, ...]:
    """The strategies that a mask is made of: its parts if it is a union, itself if not."""
    return mask.parts if isinstance(mask, MaskUnion) else (mask,)


def fixed_parts(mask: MaskStrategy, keys: int) -> list[MaskStrategy]:
    """The parts of a mask with a known structure that positions alone decide: neither selected nor drawn at random."""
    parts = [(part, part.known_structure(keys)) for part in mask_parts(mask)]
    return [part for part, known in parts if known is not None and not (known.selected or known.random)]


def any_pattern(parts: list[MaskStrategy], query_positions: torch.Tensor, key_positions: torch.Tensor) -> torch.Tensor:
    """Whether any of `parts` keeps the key by its :meth:`~MaskStrategy.pattern`; False if there are none."""
    kept = torch.zeros((), dtype=torch.bool, device=key_positions.device)
    for part in parts:
        kept = kept | part.pattern(query_positions, key_positions)
    return kept


def parse_mask(spec: str | MaskStrategy) -> MaskStrategy:
    """The strategy that a specification names.

    Args:
        spec: such as ``full``, ``banded:5``, ``random:5;seed=0``, ``topk:5+sink:1``; a strategy is returned as it is.

    Raises:
        ValueError: for unknown names and for missing, extra or out-of-range values.

    Example:
        >>> str(parse_mask("topk:5 + sink:1"))
        'topk:5+sink:1'
    """
    if isinstance(spec, MaskStrategy):
        return spec
    if not isinstance(spec, str):
        raise ValueError(f"a mask must be a string such as 'topk:5' or a MaskStrategy, got {spec!r}")
    parts = [_parse_part(part.strip(), spec) for part in spec.split("+")]
    return parts[0] if len(parts) == 1 else MaskUnion(parts=tuple(parts))


def _parse_part(text: str, spec: str) -> MaskStrategy:
    head, *pairs = (piece.strip() for piece in text.split(";"))
    name, colon, value = (piece.strip() for piece in head.partition(":"))
    if not name:
        raise ValueError(
            f"empty part in mask {spec!r}; a mask is name[:value][;key=value], joined by '+', "
            f"with a name among {', '.join(list_mask_strategies())}"
        )
    try:
        cls = mask_strategy_class(name)
    except ValueError as error:
        raise ValueError(f"mask {spec!r}: {error}") from None
    names = list(cls.parameter_types)
    usage = _usage(cls)
    values: dict[str, str] = {}
    if colon:
        if not names:
            raise ValueError(f"mask {spec!r}: {name!r} takes no value, got {value!r}; write {usage}")
        values[names[0]] = value
    for pair in pairs:
        key, equals, value = (piece.strip() for piece in pair.partition("="))
        if not equals or key not in names:
            nearest = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
            hint = f"; did you mean {nearest[0]!r}?" if nearest and equals else ""
            raise ValueError(f"mask {spec!r}: {name!r} has no parameter {pair!r}; write {usage}{hint}")
        if key in values:
            raise ValueError(f"mask {spec!r}: {key} is given twice; write {usage}")
        values[key] = value
    typed = {key: _convert(cls, key, text, spec) for key, text in values.items()}
    try:
        return cls(**typed)
    except TypeError:
        missing = [key for key in names if key not in typed]
        raise ValueError(f"mask {spec!r}: {name!r} needs a value for {', '.join(missing)}; write {usage}") from None
    except ValueError as error:
        raise ValueError(f"mask {spec!r}: {error}") from None


def _convert(cls: type[MaskStrategy], key: str, text: str, spec: str) -> int | float | str:
    kind = cls.parameter_types[key]
    try:
        if kind is int:
            # int() would also take '5_0', ' 5' and digits of other scripts.
            if not re.fullmatch(r"-?[0-9]+", text):
                raise ValueError
            return int(text)
        return float(text) if kind is float else text
    except ValueError:
        raise ValueError(
            f"mask {spec!r}: mask strategy {cls.name!r} needs {key}, {cls.describe_parameter(key)}; got {text!r}"
        ) from None


def _usage(cls: type[MaskStrategy]) -> str:
    """How a strategy is written, such as ``'random:r;seed=…' (r: an integer >= 1; seed: an integer)``."""
    names = list(cls.parameter_types)
    if not names:
        return repr(cls.name)
    form = f"{cls.name}:{names[0]}" + "".join(f";{name}=…" for name in names[1:])
    return f"'{form}' ({'; '.join(f'{name}: {cls.describe_parameter(name)}' for name in names)})"
