"""The registry of the theory's quantities. Whatever measures (analyze, the probe, a run) takes them from here.

A new quantity is a file with its function, and a line in `QUANTITIES`.
"""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch

from .bounds import is_vacuous
from .capture import LayerScores
from .dispersion import checked, dispersion
from .queries_per_key import queries_per_key
from .separation import separation
from .stability import log_stability


class Seen(dict[str, torch.Tensor]):
    """The quantities of a part of a layer, by name; each is computed when it is first asked for.

    Args:
        part: the scores that they are measured on.
    """

    def __init__(self, part: LayerScores) -> None:
        super().__init__()
        self.part = part

    def __missing__(self, name: str) -> torch.Tensor:
        self[name] = value = QUANTITIES[name].of(self)
        return value


class Quantity(NamedTuple):
    """How a quantity is computed.

    Args:
        of: gives a value a query, (B, H, Q), or a key, (B, H, K); NaN where it is not defined.
        per_key: whether the values are the keys'. A layer that is looked at some queries at a time adds them up.
        holds: whether it is a condition, that holds (1) or not (0): its share is reported, and not its quantiles.
    """

    of: Callable[[Seen], torch.Tensor]
    per_key: bool = False
    holds: bool = False


#: The quantities by name; a new one is a file with its function and a line here.
QUANTITIES: dict[str, Quantity] = {
    "kept_keys": Quantity(lambda seen: _defined(seen.part.keep.sum(-1), seen["dispersion_full"])),
    "dispersion_full": Quantity(lambda seen: dispersion(seen.part.scores, seen.part.valid)),
    "dispersion_mask": Quantity(lambda seen: dispersion(seen.part.scores, seen.part.keep)),
    "dispersion_ratio": Quantity(
        lambda seen: (seen["dispersion_mask"] / seen["dispersion_full"]).masked_fill(
            seen["dispersion_full"] == 0, math.nan
        )
    ),
    "separation": Quantity(lambda seen: separation(seen.part.scores, seen.part.keep, seen.part.valid)),
    "queries_per_key": Quantity(lambda seen: queries_per_key(seen.part.keep, seen.part.valid), per_key=True),
    "log_stability_full": Quantity(lambda seen: log_stability(seen["dispersion_full"], seen.part.valid.sum(-1))),
    "log_stability_mask": Quantity(
        lambda seen: log_stability(
            seen["dispersion_mask"], seen.part.keep.sum(-1), seen["separation"] if seen.part.input_dependent else None
        )
    ),
    # Where nothing is left out both are the same softmax, and there is nothing to improve: neither met nor missed.
    "improvement": Quantity(
        lambda seen: (seen["log_stability_full"] - seen["log_stability_mask"]).masked_fill(
            seen["separation"].isnan(), math.nan
        )
    ),
    "vacuous_full": Quantity(
        lambda seen: _defined(is_vacuous(seen["dispersion_full"], seen.part.valid.sum(-1)), seen["dispersion_full"]),
        holds=True,
    ),
    "vacuous_mask": Quantity(
        lambda seen: _defined(is_vacuous(seen["dispersion_mask"], seen.part.keep.sum(-1)), seen["dispersion_mask"]),
        holds=True,
    ),
}


class Collected:
    """Quantities of every query and key of a model: the `visit` of :func:`visit_scores`, for one batch or several.

    Args:
        names: of `QUANTITIES`.

    Attributes:
        layers: for each layer and name the values of its parts, (B, H, Q) or (B, H, K), as they were seen.
        input_dependent: whether some mask chose by the scores.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self.layers: list[dict[str, list[torch.Tensor]]] = []
        self.input_dependent = False

    def __call__(self, index: int, part: LayerScores) -> None:
        """Takes in a part of layer `index`."""
        self.input_dependent = self.input_dependent or part.input_dependent
        while len(self.layers) <= index:
            self.layers.append({name: [] for name in self.names})
        seen = Seen(part)
        for name in self.names:
            parts = self.layers[index][name]
            if QUANTITIES[name].per_key and part.first_query:
                parts[-1] = _added(parts[-1], seen[name])
            else:
                parts.append(seen[name])

    def joined(self, name: str) -> torch.Tensor:
        """All values of a quantity, flat, in the order in which they were seen."""
        return torch.cat([value.flatten() for layer in self.layers for value in layer[name]])


def improvement(
    scores: torch.Tensor, keep: torch.Tensor, valid: torch.Tensor | None = None, input_dependent: bool = True
) -> torch.Tensor:
    """log ξ_s − log ξ per query: positive where the mask is more stable than full attention on the same scores.

    The paper's improvement condition is ξ_h < ξ_s (its Corollary 1 compares the λ built on them), so
    `(improvement(…) > 0)` over the queries that are not NaN is the share that meets it.

    Args:
        scores: (B, H, Q, K) scaled scores D.
        keep: bool, broadcastable to `scores`: kept keys. Those that are not valid do not count.
        valid: bool, broadcastable to `scores`. None: every key.
        input_dependent: whether the mask chose its keys by the scores (and so pays log(1 + 1/Δ)).

    Returns:
        (B, H, Q). −∞ with Δ = 0; NaN for a query without kept keys or with Δ < 0, and where no valid key is left out: there
        the mask is full attention.

    Example:
        >>> scores = torch.tensor([[[[3.0, 0.0, 0.0, -1.0]]]])
        >>> keep = torch.tensor([[[[True, False, False, False]]]])
        >>> round(improvement(scores, keep).item(), 4)   # (4 − log 4) − (0 − log 1 + log(1 + 1/3))
        2.326
    """
    scores, keep, valid = checked(scores, keep, valid)
    return Seen(LayerScores(scores, keep & valid, valid, input_dependent))["improvement"]


def _defined(values: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
    """`values` as numbers, NaN where `where` is."""
    return values.to(where.dtype).masked_fill(where.isnan(), math.nan)


def _added(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """The sum of what is defined: a causal mask hides a key from some queries and shows it to others."""
    return torch.where(first.isnan(), second, first + second.nan_to_num())
