"""What Ray costs and what faults do to a comparison: what is stored of both, and a campaign of a few faults."""

import json
import os
import re
import subprocess
import sys

import pytest

from .test_recipes import RECIPES

ON_RAY = {"kill a worker", "kill a raylet", "kill the driver", "cut the storage"}


def lost_nothing(stored, faults, moments):
    rows = stored["rows"]
    assert sum(row["happened"] for row in rows) == len(rows) >= moments
    assert {row["fault"] for row in rows} == faults
    for name in ("lost", "duplicated", "differing", "epochs again"):
        assert [row[name] for row in rows] == [0] * len(rows)
    assert stored["left"] == {"processes": 0, "locks": 0, "scratch folders": 0}
    assert stored["note"] == ""


def test_the_stored_campaign_lost_nothing():
    stored = json.loads((RECIPES / "results" / "faults.json").read_text())
    lost_nothing(stored, ON_RAY | {"kill the parent", "fill the disk"}, 20)
    text = (RECIPES / "results" / "faults.txt").read_text()
    assert stored["command"] in text
    for row in stored["rows"]:
        assert re.search(rf"{row['comparison']} +{row['fault']} +{row['after epochs']} ", text)


def test_the_stored_overhead_is_below_a_tenth_and_the_driver_does_not_grow():
    text = (RECIPES / "results" / "ray_overhead.txt").read_text()
    seconds = {name: float(value) for name, value in re.findall(r"^(local|ray) +([\d.]+)", text, re.MULTILINE)}
    assert seconds["ray"] / seconds["local"] <= 1.1
    (memory,) = re.findall(r"^ray .*%  ([\d ]+)$", text, re.MULTILINE)
    megabytes = [int(value) for value in memory.split()]
    assert len(megabytes) == 5
    assert max(megabytes) <= 1.02 * megabytes[0]
    guide = (RECIPES.parent / "docs" / "guides" / "clusters.md").read_text()
    assert f"{100 * (seconds['ray'] / seconds['local'] - 1):.1f} % longer" in guide
    assert f"keeps its {megabytes[-1]} MB" in guide


@pytest.mark.long
def test_four_faults_on_two_nodes_and_object_storage_lose_nothing(tmp_path):
    """A killed driver goes on and trains nothing again, as do a lost node's runs; every bit is the undisturbed comparison's."""
    command = [
        sys.executable,
        str(RECIPES / "ray" / "faults.py"),
        "--on",
        "on_ray",
        "--moments",
        "4",
        "--minutes",
        "9",
    ]
    environment = {**os.environ, "PYTHONPATH": str(RECIPES.parent)}
    subprocess.run([*command, "--output", str(tmp_path / "few")], check=True, env=environment, timeout=600)
    lost_nothing(json.loads((tmp_path / "few.json").read_text()), ON_RAY, 4)
