"""A comparison to which things are done on purpose, at moments that a seed draws, and what it comes to in the end; for `faults.py`."""

import contextlib
import hashlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import yaml
from filelock import FileLock, Timeout

from hf_semfocus.comparison.bucket import is_url
from hf_semfocus.comparison.storage import UrlStore, local_copy
from hf_semfocus.experiments.experiment import Experiment
from hf_semfocus.files import read_json, read_json_lines

MARK = "SEMFOCUS_FAULT_CAMPAIGN"
EPOCHS_OF_A_RUN = 60
ASKED = {
    "name": "faults",
    "tasks": ["even_pairs"],
    "masks": ["full", "topk:3"],
    "seeds": [0, 1, 2],
    "defaults": {
        "length": 12,
        "train_size": 1000,
        "validation_size": 60,
        "test_size": 100,
        "model": {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "hidden_dropout": 0.1},
        "training": {"epochs": EPOCHS_OF_A_RUN, "batch_size": 25, "stop_early": False},
    },
}
RUNS = [unit.name for unit in Experiment.from_dict(ASKED).units()]
EPOCHS = len(RUNS) * EPOCHS_OF_A_RUN
OF_A_MOMENT = ("machine", "versions", "placement")
CAME = ("lost", "duplicated", "differing", "epochs again")


class CampaignError(Exception):
    """The campaign did not come to its end."""


@dataclass
class Driver:
    """`semfocus compare`, started again whenever it ended before its time; more often than `most` means that it cannot go on."""

    output: str
    config: Path
    options: list[str]
    log: Path
    most: int
    process: subprocess.Popen = field(init=False)
    starts: int = 0

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Starts it."""
        if self.starts == self.most:
            raise CampaignError(f"`semfocus compare` has ended {self.most} times before its time")
        command = [sys.executable, "-m", "hf_semfocus.cli.main", "compare", "--config", str(self.config)]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [*command, "--output", self.output, *self.options], stdout=log, stderr=log, start_new_session=True
            )
        self.starts += 1

    def ended(self) -> bool:
        """Whether it has ended with every run done; one that ended without is started again."""
        code = self.process.poll()
        if code not in (None, 0):
            self.start()
        return code == 0


def histories(output: str) -> dict[str, list[dict[str, Any]]]:
    """The rows of each run's history, as far as others could go on from them; none while there is nothing, or it is away."""
    with contextlib.suppress(OSError, ValueError):
        runs = local_copy(output, models=False) / "runs"
        paths = sorted(runs.glob("*/*/seed-*/history.jsonl"))
        return {path.parent.relative_to(runs).as_posix(): read_json_lines(path) for path in paths}
    return {}


def epochs_of(rows: dict[str, list]) -> int:
    """How many they are."""
    return sum(map(len, rows.values()))


def histories_from(output: str, least: float) -> dict[str, list]:
    """All histories once they have so many epochs; none before."""
    rows = histories(output)
    return rows if epochs_of(rows) >= least else {}


def trained(output: str) -> dict[str, Any]:
    """History, result and weights of each run that has ended, without what is of a moment or a machine."""
    runs, found = local_copy(output) / "runs", {}
    for run, rows in histories(output).items():
        if (runs / run / "result.json").exists():
            found[run] = (
                [{k: v for k, v in row.items() if "seconds" not in k} for row in rows],
                {
                    k: v
                    for k, v in read_json(runs / run / "result.json").items()
                    if "seconds" not in k and k not in OF_A_MOMENT
                },
                hashlib.sha256((runs / run / "model" / "model.safetensors").read_bytes()).hexdigest(),
            )
    return found


def title(process: psutil.Process) -> str:
    """What it calls itself."""
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def begun() -> list[psutil.Process]:
    """All processes of this campaign: by a variable that they inherit, or, as Ray's workers write over theirs, by their logs."""
    found, token = [], os.environ[MARK]
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            ours = process.environ().get(MARK) == token or (
                title(process).startswith("ray::")
                and any(file.path.startswith(token) for file in process.open_files())
            )
            if ours and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@dataclass
class Campaign:
    """Everything that is done in one go.

    Args:
        seed: draws the moments.
        folder: where all of it is.
        deadline: of `time.monotonic`.
    """

    seed: int
    folder: Path
    deadline: float
    rows: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.config = self.folder / "asked.yaml"
        self.config.write_text(yaml.safe_dump(ASKED))

    def make_undisturbed(self) -> None:
        """The comparison to which nothing is done."""
        output, log = str(self.folder / "undisturbed"), self.folder / "undisturbed.log"
        driver = Driver(output, self.config, ["--jobs", "2"], log, most=1)
        self.wait(driver, lambda: False)
        self.undisturbed = trained(output)
        assert sorted(self.undisturbed) == sorted(RUNS)

    def wait(self, driver: Driver, until: Callable[[], Any]) -> Any:
        """What `until` gives once it gives something; None when all runs are done before."""
        while not (found := until()):
            if driver.ended():
                return None
            if time.monotonic() > self.deadline:
                raise CampaignError("the campaign ran out of time")
            time.sleep(0.1)
        return found

    def comparison(
        self, name: str, output: str, options: list[str], faults: list[str], act: dict[str, Callable]
    ) -> None:
        """One comparison with its faults. `act` does one to a driver and says what it did; None where nothing could be done."""
        draw = random.Random(f"{self.seed} {name}")
        draw.shuffle(faults)
        moments = sorted(draw.uniform(0.02, 0.75) for _ in faults)
        driver = Driver(output, self.config, options, self.folder / f"{name}.log", most=3 * len(faults) + 3)
        begin, published = len(self.rows), list[dict[str, list]]()
        for fault, moment in zip(faults, moments, strict=True):
            rows = self.wait(driver, partial(histories_from, output, moment * EPOCHS))
            published.append(rows or {})
            reached = epochs_of(published[-1])
            what = act[fault](driver) if rows else None
            row = {"comparison": name, "fault": fault, "after epochs": reached, "happened": what is not None}
            self.rows.append(
                {**row, "what": what or "nothing: all runs were done", **dict.fromkeys((*CAME, "starts"))}
            )
            print(f"{name}: {fault} after {reached} of {EPOCHS} epochs: {what}", flush=True)
        self.wait(driver, lambda: False)
        expected, found, rows = self.undisturbed, trained(output), histories(output)
        twice = sum(len(rows[run]) - len({row["epoch"] for row in rows[run]}) for run in found)
        if is_url(output):
            files = [path for path in UrlStore(output).bucket.listed("manifests") if path.endswith(".json")]
            twice += len(files) - len(rows)
        came = (
            len(expected.keys() - found.keys()),
            len(found.keys() - expected.keys()) + twice,
            sum(found[run] != expected[run] for run in expected.keys() & found.keys()),
            # Seconds and all: an epoch that was trained again took others. The last may not have had its checkpoint yet.
            sum(
                row not in rows.get(run, ())
                for before in published
                for run, known in before.items()
                for row in known[:-1]
            ),
        )
        for row in self.rows[begin:]:
            row |= {**dict(zip(CAME, came, strict=True)), "starts": driver.starts}

    def left_behind(self) -> dict[str, int]:
        """Processes, locks and scratch folders that nobody needs any more; the processes are ended."""
        until = time.monotonic() + 20
        while (processes := begun()) and time.monotonic() < until:
            time.sleep(0.5)
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()
        locks = 0
        for path in self.folder.rglob("*.lock"):
            try:
                with FileLock(path, timeout=0):
                    pass
            except Timeout:
                locks += 1
        scratch = [path for path in Path(tempfile.gettempdir()).glob("semfocus-*/*") if path.is_dir()]
        return {"processes": len(processes), "locks": locks, "scratch folders": len(scratch)}
