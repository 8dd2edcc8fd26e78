"""What a run sets in its process: memory that tensors give back stays with it."""

import platform
import subprocess
import sys

import pytest

# A block below the largest that glibc can be told to keep: by default it is handed back as soon as it is free, whatever
# the heap looks like. (Of smaller blocks glibc keeps some, by what lies above them.)
CODE = """
import os, sys, torch
from hf_semfocus.training.environment import keep_freed_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

if sys.argv[1] == "keep":
    assert keep_freed_memory()
block = torch.ones(31 * 2**18)
before = resident()
del block
print(before - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
@pytest.mark.parametrize(("how", "low", "high"), [("keep", -1, 1), ("default", 30, 32)])
def test_freed_memory_stays_with_the_process(how, low, high):
    done = subprocess.run([sys.executable, "-c", CODE, how], capture_output=True, text=True, check=True)
    assert low <= float(done.stdout) <= high  # MiB that went back to the system
