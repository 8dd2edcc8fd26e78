"""Which library computes fp32 matrix products on this CPU: the fastest one that is exact.

PyTorch's x86 build asks MKL, which has AVX-512 kernels for Intel's processors only; on AMD's it takes those for AVX2. oneDNN, in the
same build, takes AVX-512 on both, and PyTorch sends products to it where its bf16 arithmetic is allowed. Without AMX oneDNN has no
faster bf16 arithmetic than fp32 and computes in full fp32; with AMX it rounds. So the processor decides what is tried, and a check
against fp64 whether it stays. No time is taken: equal machines give equal bits.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

VARIABLE = "SEMFOCUS_PRODUCTS"
CHOICES = ("auto", "onednn", "pytorch")
# Of the largest entry of a product: about 3e-7 in fp32, and above 5e-4 where inputs are rounded to bf16 or tf32.
LARGEST_ERROR = 1e-5


def cpu_facts() -> dict[str, str]:
    """The first processor of ``/proc/cpuinfo``; empty where there is none."""
    facts: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            facts.setdefault(name.strip(), value.strip())
    return facts


def total_memory() -> int | None:
    """Bytes of memory of this machine; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def suits_onednn(facts: Mapping[str, str]) -> bool:
    """Whether a processor with these `cpu_facts` is one on which oneDNN is faster and exact.

    >>> suits_onednn({"vendor_id": "AuthenticAMD", "flags": "fpu avx2 avx512f avx512_bf16"})
    True
    >>> suits_onednn({"vendor_id": "GenuineIntel", "flags": "fpu avx512f amx_bf16 amx_tile"})
    False
    """
    flags = facts.get("flags", "").split()
    return facts.get("vendor_id") == "AuthenticAMD" and "avx512f" in flags and "amx_tile" not in flags


def use_fast_products(choice: str | None = None) -> str:
    """Let this process compute fp32 products on the CPU by the fastest exact way.

    Args:
        choice: ``"auto"``, by the processor; ``"onednn"``; ``"pytorch"``, as PyTorch does by default. None: what the environment
            variable SEMFOCUS_PRODUCTS says, or auto.

    Returns:
        ``"onednn"`` or ``"pytorch"``: what is used from now on.

    Raises:
        ValueError: for another choice, and for ``"onednn"`` where it is not exact.
    """
    choice = choice or os.environ.get(VARIABLE) or "auto"
    if choice not in CHOICES:
        raise ValueError(f"{VARIABLE} is {choice!r}; allowed: {', '.join(CHOICES)}")
    _send_to_onednn(False)
    if choice == "pytorch" or (choice == "auto" and not suits_onednn(cpu_facts())):
        return "pytorch"
    _send_to_onednn(True)
    error = largest_error()
    if error <= LARGEST_ERROR:
        return "onednn"
    _send_to_onednn(False)
    if choice == "onednn":
        raise ValueError(
            f"{VARIABLE} is 'onednn', whose products have a relative error of {error:.1g} here; allowed: auto, pytorch"
        )
    return "pytorch"


def products_in_use() -> str:
    """``"onednn"`` or ``"pytorch"``."""
    return "onednn" if torch.backends.mkldnn.matmul.fp32_precision == "bf16" else "pytorch"  # type: ignore[attr-defined]


@contextlib.contextmanager
def products_by(library: str) -> Iterator[None]:
    """A context with products by ``"pytorch"`` or ``"onednn"``, unchecked: for benchmarks."""
    before = products_in_use()
    _send_to_onednn(library == "onednn")
    try:
        yield
    finally:
        _send_to_onednn(before == "onednn")


def largest_error() -> float:
    """The largest error of products in this process: linear layers, matrices, batches; relative to their largest entry in fp64."""
    generator = torch.Generator().manual_seed(0)
    rows, weight, bias, batch = (
        torch.randn(shape, generator=generator) for shape in ((1000, 64), (64, 64), (64,), (25, 40, 64))
    )
    asked = (
        (torch.nn.functional.linear, (rows, weight, bias)),
        (torch.mm, (rows.t(), rows)),
        (torch.bmm, (batch, batch.transpose(1, 2))),
    )
    errors = []
    for operation, given in asked:
        exact = operation(*(tensor.double() for tensor in given))
        errors.append(float((operation(*given).double() - exact).abs().max() / exact.abs().max()))
    return max(errors)


def _send_to_onednn(wanted: bool) -> None:
    torch.backends.mkldnn.matmul.fp32_precision = "bf16" if wanted else "none"  # type: ignore[attr-defined]
