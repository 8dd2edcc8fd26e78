"""Forward and backward of every implementation, in turn, so that what else the machine does touches all alike."""

import functools
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..model.attention_sparse import choose_path
from ..model.mask_registry import parse_mask
from ..products import products_by, total_memory
from .cases import Case, Setting
from .implementations import IMPLEMENTATIONS, Attend, NotInstalledError
from .memory import peak_extra_bytes
from .others import OtherWork

SECONDS_A_CASE = 12.0
FEWEST_ROUNDS, MOST_ROUNDS = 7, 41
# Matrices of scores that an implementation which writes all of them holds at once, seen at most; with it, cases that would
# need more than the machine has are left out, instead of being killed by the system.
SCORES_HELD = {"mask-then-softmax": 5, "x-transformers": 6}


@dataclass(frozen=True)
class Cost:
    """What one implementation costs on one case.

    Attributes:
        case: the mask and the shape.
        implementation: a name among `IMPLEMENTATIONS`.
        note: empty if it was measured, else why it was not.
        path: the path that ours takes; None for others.
        seconds: forward and backward, in each round.
        peak_bytes: the most that a forward and backward pass held at once beyond the inputs (outputs and gradients included).
        others_cores: cores that other processes kept busy during the case's rounds; None if it is not known.
    """

    case: Case
    implementation: str
    note: str = ""
    path: str | None = None
    seconds: tuple[float, ...] = ()
    peak_bytes: int | None = None
    others_cores: float | None = None


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """First quartile, median and third quartile.

    Example:
        >>> quartiles([1.0, 2.0, 3.0, 4.0, 5.0])
        (2.0, 3.0, 4.0)
    """
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    return low, middle, high


def time_ratio(cost: Cost, other: Cost) -> tuple[float, float, float] | None:
    """Seconds of `cost` over those of `other`; None unless both were measured.

    Returns:
        The first quartile of the rounds' ratios, the ratio of the medians, the third quartile of the rounds' ratios. A round
        pairs runs that followed each other.
    """
    if not cost.seconds or not other.seconds:
        return None
    low, _, high = quartiles([a / b for a, b in zip(cost.seconds, other.seconds, strict=True)])
    return low, quartiles(cost.seconds)[1] / quartiles(other.seconds)[1], high


def memory_ratio(cost: Cost, other: Cost) -> float | None:
    """Peak bytes of `cost` over those of `other`; None unless both were measured."""
    return None if not cost.peak_bytes or not other.peak_bytes else cost.peak_bytes / other.peak_bytes


def bench_attention(
    cases: Sequence[Case],
    setting: Setting,
    rounds: int | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> Iterator[dict[str, Cost]]:
    """Measure each case: seconds round by round, then the peak memory of one call each.

    A round runs every implementation once, each after each other equally often (what ran before leaves caches and allocator
    as it likes), after two runs each that do not count. Inputs and the output's gradient are the same standard normal numbers
    for all.

    Args:
        cases: what to measure.
        setting: what all share.
        rounds: how many; None: as many as take about 12 seconds, at least 7 and at most 41.
        progress: called with the case's index and the share of it that is done.

    Yields:
        For each case the :class:`Cost` of each implementation, by name.

    Example:
        >>> (costs,) = bench_attention([Case("topk:2", 2, 16)], Setting(threads=1), rounds=3)
        >>> len(costs["ours"].seconds)
        3
    """
    if rounds is not None and rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")
    threads = torch.get_num_threads()
    torch.set_num_threads(setting.threads)
    try:
        for index, case in enumerate(cases):
            yield _case(case, setting, rounds, functools.partial(progress or (lambda index, done: None), index))
    finally:
        torch.set_num_threads(threads)


def order_of(names: Sequence[str], number: int) -> list[str]:
    """The order of a round: rows of a Latin square in which each name follows each other equally often (Williams, 1949).

    With an even count of names a square of as many rounds does it, with an odd one that and its mirror image.

    Example:
        >>> ["".join(order_of("abcd", number)) for number in range(4)]
        ['abdc', 'bcad', 'cdba', 'dacb']
    """
    count = len(names)
    steps = [(index + 1) // 2 if index % 2 else -index // 2 for index in range(count)]
    order = [names[(step + number) % count] for step in steps]
    return order[::-1] if count % 2 and number // count % 2 else order


def step_of(case: Case, setting: Setting, attend: Attend) -> Callable[[], tuple[torch.Tensor, ...]]:
    """A function that runs `attend` forward and backward and returns the gradients of query, key and value."""
    shape = (case.batch, setting.heads, case.length, setting.dim)
    generator = torch.Generator().manual_seed(0)
    made = [
        torch.randn(shape, generator=generator).to(setting.device, getattr(torch, setting.dtype)) for _ in range(4)
    ]
    *inputs, gradient = made
    for tensor in inputs:
        tensor.requires_grad_()
    return lambda: torch.autograd.grad(attend(*inputs), inputs, gradient)


def _case(case: Case, setting: Setting, rounds: int | None, progress: Callable[[float], None]) -> dict[str, Cost]:
    device = torch.device(setting.device)
    mask = parse_mask(case.mask)
    notes: dict[str, str] = {}
    steps: dict[str, Callable[[], object]] = {}
    for name, prepare in IMPLEMENTATIONS.items():
        try:
            attend = prepare(mask, case.length, device)
        except NotInstalledError:
            notes[name] = "not installed"
            continue
        if attend is None:
            notes[name] = "no such mask"
        elif (needed := _too_much(name, case, setting)) is not None:
            notes[name] = f"needs {needed / 2**30:.3g} GiB"
        else:
            steps[name] = step_of(case, setting, attend)
            if name == "dense":
                steps[name] = _with_pytorch_products(steps[name])
    warm = 0.0
    for name in list(steps):
        try:
            for _ in range(2):
                last = _timed(steps[name], device)
            warm += last
        except torch.OutOfMemoryError:
            notes[name] = "out of memory"
            del steps[name]
    if rounds is None:
        rounds = max(FEWEST_ROUNDS, min(MOST_ROUNDS, round(SECONDS_A_CASE / warm)))
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    clock = OtherWork()
    for number in range(rounds):
        for name in order_of(list(steps), number):
            seconds[name].append(_timed(steps[name], device))
        progress((number + 1) / (rounds + 1))
    others = clock.cores()
    costs = {}
    for name in IMPLEMENTATIONS:
        path = None
        if name == "ours":
            path = choose_path(mask, case.batch, setting.heads, case.length, case.length)
        if name in steps:
            gc.collect()
            peak = peak_extra_bytes(steps[name], device)
            costs[name] = Cost(case, name, "", path, tuple(seconds[name]), peak, others)
        else:
            costs[name] = Cost(case, name, notes[name], path)
    progress(1.0)
    return costs


def _with_pytorch_products(step: Callable[[], object]) -> Callable[[], object]:
    """`step` with the products that PyTorch takes by default, whatever this process uses."""

    def run() -> object:
        with products_by("pytorch"):
            return step()

    return run


def _timed(step: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call, what it started on the device included."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _too_much(name: str, case: Case, setting: Setting) -> int | None:
    """The bytes that an implementation would need, if the machine has fewer; None if it has enough, or is not known."""
    size = torch.empty((), dtype=getattr(torch, setting.dtype)).element_size()
    needed = SCORES_HELD.get(name, 0) * case.batch * setting.heads * case.length**2 * size
    cuda = setting.device == "cuda"
    has = torch.cuda.get_device_properties(setting.device).total_memory if cuda else total_memory()
    return needed if has is not None and needed > has else None
