"""What a result depends on beside its specification: versions, the machine, threads."""

import contextlib
import ctypes
import gc
import os
import platform
from collections.abc import Iterator
from importlib.metadata import version

import torch
from accelerate import PartialState

from ..products import cpu_facts, products_in_use
from ..schema import Machine

PACKAGES = ("hf-semfocus", "torch", "transformers", "datasets", "accelerate", "numpy")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide a result."""
    return {"python": platform.python_version(), **{package: version(package) for package in PACKAGES}}


def process_state() -> PartialState:
    """Accelerate's view of the processes: one, or those that a launcher started, on CPUs where there is no accelerator.

    Said at the first call, since the state is shared: without it, processes that torchrun starts on a machine without a GPU would
    each take themselves for the only one.
    """
    return PartialState(cpu=not torch.accelerator.is_available())


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine() -> Machine:
    """The machine, and who computes its products, for reports: seconds mean nothing without it."""
    return {
        "platform": platform.platform(),
        "processor": cpu_facts().get("model name") or platform.processor() or platform.machine(),
        "cores": available_cores(),
        "products": products_in_use(),
    }


def use_threads(threads: int) -> None:
    """So many torch threads in this process: a worker of the comparison has its cores to itself."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    torch.set_num_threads(threads)


def keep_freed_memory() -> bool:
    """Lets this process keep the memory that tensors give back, and says whether the C library can be set so.

    A training step frees some hundred activations of about 1 MB and asks for as many again. glibc hands such blocks back to the
    system, which then fills each page with zeros once more, a page fault each. Blocks of up to 32 MiB, glibc's own limit, are kept
    here instead. Other C libraries are left as they are.
    """
    mmap_threshold, trim_threshold = -3, -1  # mallopt's M_MMAP_THRESHOLD and M_TRIM_THRESHOLD
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    # The second is the free space on top of the heap that is kept: the largest number that fits, since mallopt takes an int.
    return bool(mallopt(mmap_threshold, 32 * 2**20) and mallopt(trim_threshold, 2**31 - 1))


@contextlib.contextmanager
def collector_leaves_libraries_alone() -> Iterator[None]:
    """A context in which Python's garbage collector passes over all objects of before: those of the libraries, above all.

    A training step makes and drops thousands of objects, so the collector runs often, and each full run would walk over all
    those that stay.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
