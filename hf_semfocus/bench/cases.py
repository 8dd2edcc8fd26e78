"""What `semfocus bench attention` measures when nothing else is asked for, under which setting, and the goals."""

import re
from dataclasses import dataclass

import torch

from ..model.mask_registry import parse_mask

DTYPES = ("float32", "bfloat16", "float16", "float64")
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Case:
    """A mask on inputs of one shape.

    Attributes:
        mask: the specification.
        batch: sequences.
        length: queries and keys of each.
    """

    mask: str
    batch: int
    length: int

    def __post_init__(self) -> None:
        parse_mask(self.mask)

    @property
    def shape(self) -> str:
        """As on the command line: ``"4x2048"``."""
        return f"{self.batch}x{self.length}"


@dataclass(frozen=True)
class Setting:
    """What all cases of a run share.

    Attributes:
        heads: attention heads H ≥ 1.
        dim: head dim T ≥ 1.
        dtype: one of `DTYPES`.
        device: ``"cpu"`` or ``"cuda"``.
        threads: torch threads on the CPU ≥ 1.

    Raises:
        ValueError: for another value, or for ``"cuda"`` where torch sees no GPU.
    """

    heads: int = 1
    dim: int = 64
    dtype: str = "float32"
    device: str = "cpu"
    threads: int = 2

    def __post_init__(self) -> None:
        for name in ("heads", "dim", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name, allowed in (("dtype", DTYPES), ("device", DEVICES)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} {getattr(self, name)!r} is not known; allowed: {', '.join(allowed)}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device 'cuda': torch sees no CUDA GPU here; allowed: cpu")


@dataclass(frozen=True)
class Goal:
    """The most that ours may cost of another implementation: a ratio of medians, or of peaks.

    Attributes:
        case: on what.
        quantity: ``"time"`` or ``"memory"``.
        against: the other implementation.
        most: the ratio.
    """

    case: Case
    quantity: str
    against: str
    most: float


GOALS_HOLD_FOR = Setting()
GOALS = (
    Goal(Case("topk:5", 100, 40), "time", "dense", 1.3),
    Goal(Case("topk:5", 16, 600), "time", "dense", 0.50),
    Goal(Case("topk:5", 4, 2048), "time", "dense", 0.35),
    Goal(Case("topk:5", 1, 8192), "time", "dense", 0.35),
    Goal(Case("topk:32", 4, 2048), "time", "dense", 0.60),
    Goal(Case("banded:5", 4, 2048), "time", "dense", 0.10),
    Goal(Case("block:5", 4, 2048), "time", "dense", 0.05),
    Goal(Case("topk:5", 16, 600), "time", "x-transformers", 0.50),
    Goal(Case("topk:5", 4, 2048), "time", "x-transformers", 0.25),
    Goal(Case("topk:5", 1, 8192), "memory", "mask-then-softmax", 1 / 8),
)

_ONE_LENGTH = (4, 2048)
_TOKENS = 8192  # of a call, where lengths are compared: a picture of what length alone does
_LENGTHS = (64, 256, 1024, 2048, 4096, 8192)
MASKS = (
    "topk:5",
    "topk:32",
    "topk:5+sink:1",
    "banded:5",
    "block:5",
    "banded:5+global:1",
    "strided:64",
    "random:5",
)
SHAPES = ((100, 40), (16, 600), (4, 2048), (1, 8192))
QUICK_SHAPES = ((4, 40), (1, 256))


def default_cases() -> list[Case]:
    """The cases that have goals; other masks at one length; ``topk:5`` and ``banded:5`` over the length."""
    shapes = {mask: {_ONE_LENGTH} for mask in MASKS}
    for goal in GOALS:
        shapes[goal.case.mask].add((goal.case.batch, goal.case.length))
    for mask in ("topk:5", "banded:5"):
        shapes[mask] |= {(_TOKENS // length, length) for length in _LENGTHS}
    return [Case(mask, *shape) for mask in MASKS for shape in sorted(shapes[mask], key=lambda shape: shape[1])]


def cases_of(masks: list[str] | None, shapes: list[tuple[int, int]] | None, quick: bool = False) -> list[Case]:
    """Every mask at every shape; the default cases if neither is given.

    Args:
        masks: specifications; None: `MASKS`.
        shapes: (batch, length) pairs; None: `SHAPES`, or `QUICK_SHAPES`.
        quick: small shapes.

    Raises:
        ValueError: for an unknown mask.

    Example:
        >>> [case.shape for case in cases_of(["topk:5"], [(4, 2048)])]
        ['4x2048']
    """
    if masks is None and shapes is None and not quick:
        return default_cases()
    if shapes is None:
        shapes = list(QUICK_SHAPES if quick else SHAPES)
    masks = list(MASKS) if masks is None else masks
    return [Case(mask.strip(), *shape) for mask in dict.fromkeys(masks) for shape in dict.fromkeys(shapes)]


def parse_shape(text: str) -> tuple[int, int]:
    """Batch and length of ``"4x2048"``.

    Raises:
        ValueError: if it is something else.
    """
    match = re.fullmatch(r"([1-9]\d*)[x×]([1-9]\d*)", text.strip())
    if match is None:
        raise ValueError(f"shape {text!r} is not BATCHxLENGTH, two positive integers such as 16x600")
    return int(match[1]), int(match[2])
