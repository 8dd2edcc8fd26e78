"""Products go to oneDNN where the processor suits and the result is exact, and nowhere else."""

import subprocess
import sys

import pytest
import torch

from hf_semfocus import products
from hf_semfocus.attention import sparse_attention
from hf_semfocus.model import attention_sparse
from hf_semfocus.products import largest_error, products_by, products_in_use, suits_onednn, use_fast_products


@pytest.fixture(autouse=True)
def as_before():
    yield
    use_fast_products("pytorch")


@pytest.mark.parametrize(
    ("vendor", "flags", "suits"),
    [
        ("AuthenticAMD", "fpu avx2 avx512f avx512_bf16", True),
        ("AuthenticAMD", "fpu avx2", False),
        ("AuthenticAMD", "fpu avx512f amx_tile amx_bf16", False),
        ("GenuineIntel", "fpu avx512f avx512_bf16", False),
    ],
)
def test_the_processor_decides(vendor, flags, suits):
    assert suits_onednn({"vendor_id": vendor, "flags": flags}) is suits


def test_what_is_not_exact_is_not_used(monkeypatch):
    """The processor is taken for one that suits; on one with AMX the check against fp64 must refuse."""
    assert largest_error() < products.LARGEST_ERROR
    monkeypatch.setattr(products, "suits_onednn", lambda cpuinfo: True)
    used = use_fast_products("auto")
    assert products_in_use() == used
    assert largest_error() < products.LARGEST_ERROR
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    rounds = largest_error() > products.LARGEST_ERROR
    assert used == ("pytorch" if rounds else "onednn")
    if rounds:
        with pytest.raises(ValueError, match="relative error"):
            use_fast_products("onednn")
        assert products_in_use() == "pytorch"


def test_environment_and_choices(monkeypatch):
    monkeypatch.setenv("SEMFOCUS_PRODUCTS", "pytorch")
    assert use_fast_products() == products_in_use() == "pytorch"
    monkeypatch.setenv("SEMFOCUS_PRODUCTS", "mkl")
    with pytest.raises(ValueError, match="SEMFOCUS_PRODUCTS is 'mkl'; allowed: auto, onednn, pytorch"):
        use_fast_products()
    with products_by("onednn"):
        assert products_in_use() == "onednn"
    assert products_in_use() == "pytorch"


def test_full_attention_takes_plain_products_where_the_fused_kernel_is_slow():
    """With products by oneDNN short rows go another way than PyTorch's fused kernel, to the same result."""
    torch.manual_seed(0)
    query, key, value, gradient = (torch.randn(3, 2, 40, 16) for _ in range(4))
    found = []
    for library in ("pytorch", "onednn"):
        inputs = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
        with products_by(library):
            assert attention_sparse._plain_products_win(query, key, 0.0) is (library == "onednn")
            exact = largest_error() < products.LARGEST_ERROR
            output = sparse_attention(*inputs, "full")
            found.append([output.detach(), *torch.autograd.grad(output, inputs, gradient)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5 if exact else 0.1, rtol=1e-5 if exact else 0.1)
    assert attention_sparse._plain_products_win(query, key, 0.1)
    assert not attention_sparse._plain_products_win(query.double(), key.double(), 0.0)


def test_importing_changes_nothing():
    code = "import hf_semfocus, torch; print(torch.backends.mkldnn.matmul.fp32_precision)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "none"
