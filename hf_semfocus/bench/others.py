"""What other processes took of the machine during a measurement: a time measured beside other work is not worth much."""

import os
import time
from pathlib import Path

_STAT = Path("/proc/stat")


class OtherWork:
    """A clock of the CPU time that went to others: other processes, and other machines on the same host.

    Example:
        >>> clock = OtherWork()
        >>> clock.cores() is None or clock.cores() >= 0
        True
    """

    def __init__(self) -> None:
        self._start = _now()

    def cores(self) -> float | None:
        """Cores that others kept busy on average since the clock was made; None where the system does not say."""
        now = _now()
        if now is None or self._start is None or now[0] <= self._start[0]:
            return None
        wall, busy, process = (after - before for after, before in zip(now, self._start, strict=True))
        return max(0.0, busy - process) / wall


def _now() -> tuple[float, float, float] | None:
    """Seconds: of the clock, of all busy CPUs, of this process."""
    try:
        line = _STAT.read_text(encoding="ascii").partition("\n")[0]
        ticks = os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError):
        return None
    # user, nice, system, idle, iowait, irq, softirq, steal
    counts = [int(count) for count in line.split()[1:9]]
    busy = (sum(counts) - counts[3] - counts[4]) / ticks
    return time.perf_counter(), busy, time.process_time()
