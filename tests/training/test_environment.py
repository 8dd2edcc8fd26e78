"""What a run sets in its process: memory that tensors give back stays with it."""

import subprocess
import sys

import pytest

from hf_semfocus.training.environment import keep_freed_memory

# Two tensors of 2 MB each time, as the activations of a layer come and go.
CODE = """
import resource, sys, torch
from hf_semfocus.training.environment import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def step():
    first = torch.ones(2**19)
    return (first + torch.ones(2**19)).sum()
for _ in range(5): step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20): step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not keep_freed_memory(), reason="only glibc can be told")
def test_a_step_s_memory_is_not_asked_for_again():
    kept, handed_back = (
        int(subprocess.run([sys.executable, "-c", CODE, how], capture_output=True, text=True, check=True).stdout)
        for how in ("keep", "default")
    )
    assert kept < 200  # a page is 4 kB: one round's blocks alone are 1,500 of them
    assert handed_back > 10 * max(kept, 1)
