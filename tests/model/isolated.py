"""Run a piece of Python in a fresh process that has no `hf_semfocus` and no network.

The preamble makes `import hf_semfocus` fail, whether or not the package is installed, and refuses every connection
that does not go to this machine.
"""

import os
import subprocess
import sys
from pathlib import Path

PREAMBLE = """
import importlib.abc, ipaddress, socket, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "hf_semfocus":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())

def guard(connect):
    def guarded(self, address, *args):
        if self.family in (socket.AF_INET, socket.AF_INET6) and not ipaddress.ip_address(address[0]).is_loopback:
            raise OSError(f"blocked: connection to {address}")
        return connect(self, address, *args)
    return guarded

def no_names(host, *args, **kwargs):
    if host not in (None, "localhost", "127.0.0.1", "::1"):
        raise OSError(f"blocked: name lookup of {host}")
    return lookup(host, *args, **kwargs)

socket.socket.connect = guard(socket.socket.connect)
socket.socket.connect_ex = guard(socket.socket.connect_ex)
lookup, socket.getaddrinfo = socket.getaddrinfo, no_names
"""

OWN_STRATEGY = '''
"""A strategy of a user's own."""

import torch
from hf_semfocus import (
    MaskStrategy,
    parameter,
    register_mask_strategy,
)

@register_mask_strategy("even")
class Even(MaskStrategy):
    """Keys at an even distance of at most w."""

    w: int = parameter(minimum=0)

    def pattern(self, query_positions, key_positions):
        distance = (query_positions - key_positions).abs()
        return (distance % 2 == 0) & (distance <= self.w)
'''

WITH_PACKAGE = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"


def run(code: str, cache: Path, *, package: bool = False) -> str:
    """Standard output of `code`; the test fails with its error output if it fails.

    Args:
        cache: folder for the copies of remote code that Transformers makes; fresh for a fresh machine.
        package: let the process import `hf_semfocus` (from this checkout) and keep the network as it is.
    """
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "HF_HUB_OFFLINE")}
    environment |= {"HF_HOME": str(cache), "HF_MODULES_CACHE": str(cache / "modules"), "OMP_NUM_THREADS": "1"}
    cache.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", (WITH_PACKAGE if package else PREAMBLE) + code],
        cwd=cache,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
