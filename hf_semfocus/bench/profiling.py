"""Where the time of one case goes: torch's profiler over forward and backward passes of ours."""

from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

from ..model.attention_sparse import choose_path
from ..model.mask_registry import parse_mask
from .cases import Case, Setting
from .implementations import ours
from .measure import step_of
from .memory import quiet_profiler

PASSES = 10


@dataclass(frozen=True)
class Operator:
    """An operator's part.

    Attributes:
        name: as torch calls it.
        calls: calls in one forward and backward pass.
        milliseconds: CPU time of its own (without what it calls) in one pass.
        share: that of all operators' own time.
    """

    name: str
    calls: float
    milliseconds: float
    share: float


@dataclass(frozen=True)
class CaseProfile:
    """A case's profile.

    Attributes:
        case: what was run.
        path: the path that it takes.
        milliseconds: own CPU time of all operators in one pass, the profiler's overhead included.
        operators: the longest first.
    """

    case: Case
    path: str
    milliseconds: float
    operators: tuple[Operator, ...]


def profile_attention(case: Case, setting: Setting, most: int = 10) -> CaseProfile:
    """Profile ten passes of our attention.

    Args:
        case: the mask and the shape.
        setting: heads, dim, dtype, device and threads.
        most: operators to list.

    Raises:
        ValueError: on another device than the CPU.

    Example:
        >>> profile_attention(Case("topk:2", 1, 16), Setting(threads=1)).case.shape
        '1x16'
    """
    if setting.device != "cpu":
        raise ValueError(f"a profile counts CPU time; device {setting.device!r} has none to show, allowed: cpu")
    device = torch.device(setting.device)
    mask = parse_mask(case.mask)
    threads = torch.get_num_threads()
    torch.set_num_threads(setting.threads)
    try:
        step = step_of(case, setting, ours(mask, case.length, device))
        step()
        quiet_profiler()
        with profile(activities=[ProfilerActivity.CPU]) as record:
            for _ in range(PASSES):
                step()
    finally:
        torch.set_num_threads(threads)
    found = sorted(record.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in found)
    operators = tuple(
        Operator(
            event.key,
            event.count / PASSES,
            event.self_cpu_time_total / PASSES / 1000,
            event.self_cpu_time_total / total,
        )
        for event in found[:most]
    )
    path = choose_path(mask, case.batch, setting.heads, case.length, case.length)
    return CaseProfile(case, path, total / PASSES / 1000, operators)
