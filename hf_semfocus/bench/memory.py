"""Peak extra memory of a call, exactly: the most that it held at once of what torch's allocator gave out during it.

The process's own size says less: it is counted in pages, keeps what was freed, and depends on what ran before. Not counted is
what a kernel takes past torch's allocator (packed blocks of a matrix library, a vector a row in ``topk``), a few megabytes
whatever the length.
"""

import os
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile


def peak_extra_bytes(call: Callable[[], object], device: torch.device) -> int:
    """Runs `call` once and says how many bytes it held at most beyond those that were held before.

    On a CPU the profiler records every allocation and release; on CUDA the allocator keeps the figure.

    Args:
        call: what to run; what it returns is released after the measurement.
        device: where it allocates.

    Example:
        >>> peak_extra_bytes(lambda: torch.ones(1000) + 1, torch.device("cpu")) // 1000
        8
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        result = call()
        torch.cuda.synchronize(device)
        del result
        return torch.cuda.max_memory_allocated(device) - before
    quiet_profiler()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        result = call()
    del result
    held = most = 0
    recorded = record.profiler.kineto_results.events()
    for event in sorted(
        (event for event in recorded if event.name() == "[memory]"), key=lambda event: event.start_ns()
    ):
        held += event.nbytes()
        most = max(most, held)
    return most


def quiet_profiler() -> None:
    """Keeps the profiler's own log, which goes past Python, off the terminal; it is asked before the first profile."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
