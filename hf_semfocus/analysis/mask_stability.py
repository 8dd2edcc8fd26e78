"""Mask stability: how many of a query's kept keys stay kept when the embedded tokens are disturbed (DESIGN §2)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..model.mask_base import MaskStrategy
from .capture import CHUNK_ELEMENTS, LayerScores, attention_layers, real_positions, visit_scores
from .separation import separation


@dataclass(frozen=True)
class MaskStability:
    """What stays kept under noise. E sizes of noise, N layers.

    Args:
        eps: the sizes of noise, E.
        kept_share: fp64 (E, N), on the CPU: mean over queries and heads of the share of kept keys that stay kept; NaN
            where nothing is kept. 1 for a mask that does not look at the scores.
        by_query: for each layer fp32 (E, n): the same for each query that keeps a key, n of them.
        separation: for each layer fp32 (n,): Δ of those queries without noise; NaN where nothing is left out.
    """

    eps: tuple[float, ...]
    kept_share: torch.Tensor
    by_query: list[torch.Tensor]
    separation: list[torch.Tensor]


def mask_stability(
    model: torch.nn.Module,
    batch: Mapping[str, Any],
    eps: float | Sequence[float],
    generator: torch.Generator,
    mask: str | MaskStrategy | None = None,
) -> MaskStability:
    """The share of each query's kept keys that stay kept when noise is added to the embedded tokens.

    The noise is Gaussian, of standard deviation ε × RMS, RMS the root mean square of all entries of the embedded tokens
    that are not padding. One draw is scaled by every ε, so sizes differ in size alone. Padding gets no noise and is
    counted neither as key nor as query. Weights and modes of the model are as they were afterwards.

    Args:
        model: see :func:`capture_scores`; its forward takes `inputs_embeds`.
        batch: with `input_ids` or `inputs_embeds`, and an `attention_mask` where there is padding; labels are not used.
        eps: one size of noise or several, ≥ 0.
        generator: draws the noise; the same state gives the same result.
        mask: look at what this mask would keep of the model's scores. None: its own masks.

    Raises:
        ValueError: for a negative ε or none, or a model without our attention.

    Example:
        >>> found = mask_stability(model, {"input_ids": ids}, 0.1, torch.Generator().manual_seed(0))  # doctest: +SKIP
        >>> found.kept_share  # doctest: +SKIP
        tensor([[0.93, 0.88, 0.85]], dtype=torch.float64)
    """
    sizes = (float(eps),) if isinstance(eps, int | float) else tuple(map(float, eps))
    if not sizes or not all(0 <= size < float("inf") for size in sizes):
        raise ValueError(f"eps is {eps!r}; allowed: one finite number of at least 0, or several")
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    real_BL = real_positions(inputs)
    embedded = inputs.pop("inputs_embeds", None)
    ids = inputs.pop("input_ids", None)
    if embedded is None:
        with torch.no_grad():
            embedded = model.get_input_embeddings()(ids)  # type: ignore[operator]
    noise = torch.randn(embedded.shape, generator=generator, device=generator.device).to(embedded)
    scale = embedded[real_BL].double().pow(2).mean().sqrt().to(embedded.dtype)
    noise = noise * scale * real_BL[..., None]
    by_query: dict[int, list[torch.Tensor]] = {}
    gaps: dict[int, list[torch.Tensor]] = {}
    for some in _parts(model, embedded):
        rows = {name: some_rows(value, some, len(embedded)) for name, value in inputs.items()}
        _compare(model, rows, embedded[some], noise[some], sizes, mask, by_query, gaps)
    shares = [torch.cat(by_query[index], dim=1) for index in sorted(by_query)]
    return MaskStability(
        eps=sizes,
        kept_share=torch.stack([share.double().mean(1) for share in shares], dim=1),
        by_query=shares,
        separation=[torch.cat(gaps[index]) for index in sorted(gaps)],
    )


def _compare(
    model: torch.nn.Module,
    inputs: dict[str, Any],
    embedded: torch.Tensor,
    noise: torch.Tensor,
    sizes: tuple[float, ...],
    mask: str | MaskStrategy | None,
    by_query: dict[int, list[torch.Tensor]],
    gaps: dict[int, list[torch.Tensor]],
) -> None:
    """One forward without noise and one for each size; adds what some rows give to `by_query` and `gaps`."""
    clean: list[tuple[int, torch.Tensor]] = []

    def remember(index: int, part: LayerScores) -> None:
        clean.append((index, part.keep))
        gap = separation(part.scores, part.keep, part.valid)
        gaps.setdefault(index, []).append(gap[part.keep.any(-1)].float().cpu())

    visit_scores(model, {**inputs, "inputs_embeds": embedded}, remember, mask)
    shares: list[list[torch.Tensor]] = [[] for _ in clean]
    for size in sizes:
        number = 0

        def look(index: int, part: LayerScores) -> None:
            nonlocal number
            keep = clean[number][1]
            count = keep.sum(-1)
            share = (keep & part.keep).sum(-1) / count
            shares[number].append(share[count > 0].float().cpu())
            number += 1

        visit_scores(model, {**inputs, "inputs_embeds": embedded + size * noise}, look, mask)
    for (index, _), of_layer in zip(clean, shares, strict=True):
        by_query.setdefault(index, []).append(torch.stack(of_layer))


def _parts(model: torch.nn.Module, embedded: torch.Tensor) -> list[slice]:
    """Rows of the batch at a time, so that the kept keys of all layers, a byte each, take as much as a part's scores."""
    rows, length = embedded.shape[:2]
    config: Any = getattr(model, "config", None)
    layers = len(attention_layers(model)) or getattr(config, "num_hidden_layers", 1)
    heads = getattr(config, "num_attention_heads", 1)
    step = max(1, 4 * CHUNK_ELEMENTS // (layers * heads * length**2))
    return [slice(first, first + step) for first in range(0, rows, step)]


def some_rows(value: Any, some: slice, rows: int) -> Any:
    """The rows `some` of a model's input for `rows` rows; what is not given row by row stays as it is."""
    # A mask with one row serves all rows.
    has_rows = isinstance(value, torch.Tensor) and value.ndim > 0 and len(value) == rows and rows > 1
    return value[some] if has_rows else value
