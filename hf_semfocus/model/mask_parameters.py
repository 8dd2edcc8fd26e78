"""How the parameters of mask strategies are declared, and which values they may take."""

import dataclasses
import re
import sys
from typing import Any

# Whole numbers meet int64 positions, and are added to them.
LARGEST = {int: 2**62, float: sys.float_info.max}


def parameter(
    default: Any = dataclasses.MISSING,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    odd: bool = False,
    choices: tuple[Any, ...] | None = None,
    omit_default: bool = False,
) -> Any:
    """Declare a parameter of a mask strategy, with the values that it may take.

    The parameter's annotation gives its type: ``int``, ``float`` or ``str``. The first parameter of a strategy is the
    one written after the colon (``topk:5``), the others are written by name (``random:5;seed=0``).

    Args:
        default: value when the specification does not give one; without it the parameter is required.
        minimum, maximum: inclusive bounds.
        above: exclusive lower bound.
        odd: whether only odd integers are allowed.
        choices: the only values allowed.
        omit_default: whether the canonical specification leaves the parameter out where it has its default: a parameter
            that came later then changes no name that was written before.

    Example:
        >>> class Near(MaskStrategy):
        ...     w: int = parameter(minimum=1, odd=True)
    """
    limits = {"minimum": minimum, "maximum": maximum, "above": above, "odd": odd, "choices": choices}
    return dataclasses.field(default=default, metadata={"limits": limits, "omit_default": omit_default})


def allowed_words(kind: type, limits: dict[str, Any]) -> str:
    """Words for the values that a parameter may take, such as ``an odd integer >= 1``."""
    if limits.get("choices"):
        return "one of " + ", ".join(map(repr, limits["choices"]))
    words = {int: "an odd integer" if limits.get("odd") else "an integer", float: "a number", str: "a word"}[kind]
    bounds = []
    if limits.get("above") is not None:
        bounds.append(f"> {limits['above']}")
    if limits.get("minimum") is not None:
        bounds.append(f">= {limits['minimum']}")
    if limits.get("maximum") is not None:
        bounds.append(f"<= {limits['maximum']}")
    return " ".join([words, " and ".join(bounds)]).strip()


def is_allowed(value: Any, kind: type, limits: dict[str, Any]) -> bool:
    """Whether a parameter of this type and with these limits may take a value."""
    if limits.get("choices") and value not in limits["choices"]:
        return False
    if kind is str:
        return isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9_.-]+", value) is not None
    # bool is an int to Python, not to a reader of `topk:True`.
    if isinstance(value, bool) or not isinstance(value, int if kind is int else (int, float)):
        return False
    return (
        abs(value) <= LARGEST[kind]
        and (limits.get("minimum") is None or value >= limits["minimum"])
        and (limits.get("maximum") is None or value <= limits["maximum"])
        and (limits.get("above") is None or value > limits["above"])
        and not (limits.get("odd") and value % 2 == 0)
    )
