"""Where the time of one case goes: torch's profiler over forward and backward passes of ours."""

import torch
from torch.profiler import ProfilerActivity, profile

from ..model.mask_registry import parse_mask
from .cases import Case, Setting
from .implementations import ours
from .measure import step_of
from .memory import quiet_profiler

PASSES = 10


def profile_attention(case: Case, setting: Setting) -> list[tuple[str, float, float]]:
    """Profile ten passes of our attention.

    Args:
        case: the mask and the shape.
        setting: heads, dim, dtype, device and threads.

    Returns:
        Name, calls and milliseconds of each operator in one forward and backward pass, the longest first: CPU time of its own,
        without what it calls, the profiler's overhead included.

    Raises:
        ValueError: on another device than the CPU.

    Example:
        >>> len(profile_attention(Case("topk:2", 1, 16), Setting(threads=1))) > 10
        True
    """
    if setting.device != "cpu":
        raise ValueError(f"a profile counts CPU time; device {setting.device!r} has none to show, allowed: cpu")
    threads = torch.get_num_threads()
    torch.set_num_threads(setting.threads)
    try:
        step = step_of(case, setting, ours(parse_mask(case.mask), case.length, torch.device("cpu")))
        step()
        quiet_profiler()
        with profile(activities=[ProfilerActivity.CPU]) as record:
            for _ in range(PASSES):
                step()
    finally:
        torch.set_num_threads(threads)
    seen = [
        (event.key, event.count / PASSES, event.self_cpu_time_total / PASSES / 1000) for event in record.key_averages()
    ]
    return sorted(seen, key=lambda operator: -operator[2])
