"""A few moments of the fault campaign, `recipes/ray/faults.py`, which has them all."""

import json
import subprocess
import sys

import pytest

from .clusters import ROOT


@pytest.mark.long
def test_what_is_killed_cut_off_and_filled_goes_on_and_loses_nothing(tmp_path):
    command = [
        sys.executable,
        str(ROOT / "recipes" / "ray" / "faults.py"),
        "--moments",
        "6",
        "--minutes",
        "12",
        "--seed",
        "1",
    ]
    done = subprocess.run(
        [*command, "--output", str(tmp_path / "faults")], capture_output=True, text=True, check=False
    )
    told = json.loads((tmp_path / "faults.json").read_text())
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(told["rows"]) == 6
    assert not any(told["left behind"].values())
