"""The base class of every mask strategy: what a strategy is, and what it is given.

A strategy decides, for every query, which keys it keeps. It is a small frozen dataclass: its parameters are its
fields, and it has one method to write, :meth:`MaskStrategy.pattern` (fixed by positions) or
:meth:`MaskStrategy.keep` (looks at the scores, or at validity).

Shapes: B batch, H heads, Q queries, K keys. Rows are queries.
"""

import dataclasses
import math
from typing import Any, ClassVar, dataclass_transform, get_type_hints

import torch

from .mask_inputs import MaskContext, check_valid, first_valid_key, positions_of
from .mask_parameters import allowed_words, is_allowed, parameter
from .mask_state import MaskState
from .mask_structure import Structure


@dataclass_transform(frozen_default=True, field_specifiers=(parameter,))
class MaskStrategy:
    """A rule that says which keys each query keeps. Subclasses are frozen dataclasses without a decorator.

    Write one of two methods:

    - :meth:`pattern` for a rule fixed by positions (input-agnostic);
    - :meth:`keep` for a rule that looks at the scores (input-dependent), or at validity (then set
      ``input_dependent = False`` in the class).

    A rule that looks at the scores of *some* keys writes both: :meth:`pattern` says which keys it may choose from, and
    :meth:`keep` is given no other (their scores are −inf and they are not valid).

    Register the class with :func:`register_mask_strategy` to give it a name in specifications.

    Example:
        >>> @register_mask_strategy("even")
        ... class Even(MaskStrategy):
        ...     '''Keys at an even distance of at most w.'''
        ...     w: int = parameter(minimum=0)
        ...     def pattern(self, query_positions, key_positions):
        ...         distance = (query_positions - key_positions).abs()
        ...         return (distance % 2 == 0) & (distance <= self.w)
    """

    name: ClassVar[str] = ""
    #: Whether the kept keys depend on the scores. Fixed-position strategies are False.
    input_dependent: ClassVar[bool] = False
    #: Whether each call draws other keys, from torch's global generator: then nothing may remember or share them.
    redrawn: ClassVar[bool] = False
    #: Whether the kept keys of a query depend on no other query. Long inputs are then taken a part of the queries at a
    #: time. A class that writes :meth:`pattern` alone is so; one that writes :meth:`keep` has to say it.
    row_by_row: ClassVar[bool] = True
    #: Whether the kept keys depend on where queries and keys are in the text. A class that writes neither :meth:`pattern`
    #: nor :meth:`keep` has what its parent has; one that writes either counts both, unless it says otherwise. A mask
    #: that does not count queries can choose among the keys of another text (cross-attention).
    counts_queries: ClassVar[bool] = True
    counts_keys: ClassVar[bool] = True
    #: Name and type of every parameter, in order; the first one is written after the colon.
    parameter_types: ClassVar[dict[str, type]] = {}
    #: The arguments of :func:`parameter` for each of them.
    parameter_limits: ClassVar[dict[str, dict[str, Any]]] = {}
    #: Defaults that the canonical specification does not write.
    omitted_defaults: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclasses.dataclass(frozen=True, repr=False)(cls)
        if "input_dependent" not in cls.__dict__ and "keep" in cls.__dict__:
            cls.input_dependent = True
        if "row_by_row" not in cls.__dict__ and "keep" in cls.__dict__:
            cls.row_by_row = False
        for declared in ("counts_queries", "counts_keys"):
            if declared not in cls.__dict__ and {"keep", "pattern"} & cls.__dict__.keys():
                setattr(cls, declared, True)
        hints = get_type_hints(cls)
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]  # the line above made it one
        cls.parameter_types = {field.name: hints[field.name] for field in fields}
        cls.parameter_limits = {field.name: field.metadata.get("limits", {}) for field in fields}
        cls.omitted_defaults = {field.name: field.default for field in fields if field.metadata.get("omit_default")}

    def __post_init__(self) -> None:
        for name, kind in self.parameter_types.items():
            value = getattr(self, name)
            if kind in (int, float, str) and not is_allowed(value, kind, self.parameter_limits[name]):
                who = self.name or type(self).__name__
                raise ValueError(f"mask strategy {who!r} needs {name}, {self.describe_parameter(name)}; got {value!r}")
            if kind is float:
                object.__setattr__(self, name, float(value))

    @classmethod
    def describe_parameter(cls, name: str) -> str:
        """Words for what the parameter `name` may be, such as ``an integer >= 1``."""
        return allowed_words(cls.parameter_types[name], cls.parameter_limits[name])

    def __str__(self) -> str:
        """The canonical specification, which :func:`parse_mask` turns back into an equal strategy."""
        text = self.name or type(self).__name__
        for index, name in enumerate(self.parameter_types):
            value = getattr(self, name)
            if name not in self.omitted_defaults or value != self.omitted_defaults[name]:
                written = str(value).replace("e+", "e")  # a plus would begin another part
                text += f":{written}" if index == 0 else f";{name}={written}"
        return text

    __repr__ = __str__

    def pattern(self, query_positions: torch.Tensor, key_positions: torch.Tensor) -> torch.Tensor:
        """Which keys are kept, from positions alone.

        Args:
            query_positions: int64, broadcastable to ``(B, 1, Q, 1)``.
            key_positions: int64, broadcastable to ``(B, 1, 1, K)``.

        Returns:
            bool, broadcastable to ``(B, H, Q, K)``.
        """
        raise NotImplementedError(f"{type(self).__name__} must define pattern() or keep()")

    def structure(self, keys: int) -> Structure | None:
        """Which pairs of positions may be kept at all, so that attention need not look at others; None: not known.

        Attention is exact without it, and as expensive as dense attention. A rule that says where its keys lie becomes
        as cheap as they are few. :meth:`pattern` is then also called with ``(B, 1, Q, n)`` key positions, n for each
        query, so it must work element by element.

        Args:
            keys: number of keys; their positions are below it.

        Example:
            >>> parse_mask("banded:5+global:1").structure(40)
            Structure(window=2, block=None, columns=(range(0, 1),), rows=1, selected=0, random=())
        """
        return None

    def known_structure(self, keys: int) -> Structure | None:
        """The structure, if attention can use it: which pairs inside are kept must follow from positions, top-k or a draw."""
        known = self.structure(keys)
        return known if known is None or self.fixed or known.selected or known.random else None

    def make_state(self, head_dim: int, heads: int) -> MaskState | None:
        """What one attention layer learns for the strategy, as a module with buffers; None: nothing.

        Args:
            head_dim: T.
            heads: G, the number of key heads.

        Example:
            >>> parse_mask("cluster:8").make_state(head_dim=64, heads=1).centroids.shape
            torch.Size([1, 8, 64])
        """
        return None

    def keep(self, scores: torch.Tensor, valid: torch.Tensor, context: MaskContext) -> torch.Tensor:
        """Which keys are kept. The default asks :meth:`pattern`; override it for a rule that needs more.

        Args:
            scores: ``(B, H, Q, K)``, −inf where a key is not valid. Never rounded below fp32 by our attention.
            valid: bool, broadcastable to `scores`: the keys that may be kept. What is returned for others is ignored.
            context: positions, and queries and keys where the caller has them.

        Returns:
            bool, broadcastable to `scores`.
        """
        return self.pattern(context.query_positions, context.key_positions)

    def __call__(
        self,
        scores: torch.Tensor,
        valid: torch.Tensor | None = None,
        query: torch.Tensor | None = None,
        key: torch.Tensor | None = None,
        query_positions: torch.Tensor | None = None,
        key_positions: torch.Tensor | None = None,
        state: Any = None,
    ) -> torch.Tensor:
        """Apply the strategy.

        Args:
            scores: ``(B, H, Q, K)`` floating point.
            valid: bool, broadcastable to `scores`; False forbids a key. None: every key is valid.
            query, key: ``(B, H, Q, T)`` and ``(B, H_kv, K, T)``, for strategies that hash or cluster them.
            query_positions: int ``(Q,)`` or ``(B, Q)``. None: the last Q of the K positions.
            key_positions: int ``(K,)`` or ``(B, K)``. None: counted from the first valid key.
            state: what :meth:`MaskState.read` gave, for strategies that learn.

        Returns:
            bool ``(B, H, Q, K)``; never True where `valid` is False.

        Raises:
            ValueError: if shapes do not fit.

        Example:
            >>> parse_mask("topk:1")(torch.tensor([[[[1.0, 3.0, 2.0]]]])).tolist()
            [[[[False, True, False]]]]
        """
        if scores.dim() != 4:
            raise ValueError(f"scores must have shape (batch, heads, queries, keys), got {tuple(scores.shape)}")
        kept = self.kept(scores, valid, query, key, query_positions, key_positions, state)
        return kept.expand(scores.shape)

    def kept(
        self,
        scores: torch.Tensor,
        valid: torch.Tensor | None = None,
        query: torch.Tensor | None = None,
        key: torch.Tensor | None = None,
        query_positions: torch.Tensor | None = None,
        key_positions: torch.Tensor | None = None,
        state: Any = None,
    ) -> torch.Tensor:
        """As :meth:`__call__`, but only broadcastable to `scores`: a rule fixed by positions stays ``(1, 1, Q, K)``."""
        scores = scores.detach()
        queries, keys = scores.shape[-2:]
        first = None
        if valid is not None:
            valid = check_valid(valid, scores.shape)
            if query_positions is None or key_positions is None:
                first = first_valid_key(valid)
        offset = max(keys - queries, 0)
        context = MaskContext(
            query=query,
            key=key,
            query_positions=positions_of(
                query_positions, "query_positions", queries, offset, first, scores.device
            ).unsqueeze(-1),
            key_positions=positions_of(key_positions, "key_positions", keys, 0, first, scores.device).unsqueeze(-2),
            state=state,
        )
        return self.kept_in(scores, valid, context)

    def kept_in(self, scores: torch.Tensor, valid: torch.Tensor | None, context: MaskContext) -> torch.Tensor:
        """What `keep` keeps among the valid keys that `pattern`, where both are defined, allows; `scores` without gradient."""
        if self.limited_to_pattern:
            pattern = self.pattern(context.query_positions, context.key_positions)
            valid = pattern if valid is None else valid & pattern
        if valid is not None and self.input_dependent:
            scores = scores.masked_fill(~valid, -math.inf)
        if valid is None:
            return self._checked(self.keep(scores, scores.new_ones((1, 1, 1, 1), dtype=torch.bool), context), scores)
        return self._checked(self.keep(scores, valid, context), scores) & valid

    @property
    def fixed(self) -> bool:
        """Whether positions and validity alone decide: equal inputs in any layer and call keep the same keys."""
        return not (self.input_dependent or self.redrawn)

    @property
    def limited_to_pattern(self) -> bool:
        """Whether the strategy chooses by scores among the keys of a pattern: its class writes both methods."""
        return self.input_dependent and type(self).pattern is not MaskStrategy.pattern

    def _checked(self, kept: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """What a strategy returned, if it can be a mask of these scores: a user's may be wrong."""
        fits = isinstance(kept, torch.Tensor) and kept.dtype == torch.bool and kept.dim() <= 4
        if not fits or any(
            size not in (1, full) for size, full in zip(kept.shape[::-1], scores.shape[::-1], strict=False)
        ):
            what = f"{kept.dtype} {tuple(kept.shape)}" if isinstance(kept, torch.Tensor) else type(kept).__name__
            raise ValueError(
                f"mask strategy {str(self)!r} returned {what}; allowed: torch.bool, broadcastable to "
                f"(batch, heads, queries, keys) = {tuple(scores.shape)}"
            )
        return kept

    def on_positions(self, queries: int, keys: int | None = None, device: Any = None) -> torch.Tensor:
        """The kept keys of a text without padding, for strategies that neither look at the scores nor draw again in each call.

        Args:
            queries: number of queries (the length, in self-attention).
            keys: number of keys; None: as many as queries. With fewer queries than keys, queries come last.
            device: where the result is made.

        Returns:
            bool ``(queries, keys)``.

        Raises:
            ValueError: if the strategy looks at the scores, or draws again in each call.

        Example:
            >>> parse_mask("banded:3").on_positions(3).int().tolist()
            [[1, 1, 0], [1, 1, 1], [0, 1, 1]]
        """
        if not self.fixed:
            why = "depends on the scores" if self.input_dependent else "draws again in each call"
            raise ValueError(f"mask {str(self)!r} {why}: it has no pattern fixed by positions")
        shape = (1, 1, queries, queries if keys is None else keys)
        return self(torch.zeros(shape, device=device))[0, 0]
