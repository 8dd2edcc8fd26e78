"""What is done to comparisons on purpose, and what came of it: `python recipes/ray/faults.py` (about 20 minutes on two cores).

At moments that a seed draws: kill -9 of a worker, of a node's raylet, of the driver, of the local engine's parent; object storage cut for a
while; a disk that fills. Then the same command goes on. At the end every history and result must be that of an undisturbed comparison, bit
for bit, with no run lost or there twice, and no process, lock or scratch folder left. Exit code 1 where one of these does not hold.
"""

import argparse
import contextlib
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml
from filelock import FileLock, Timeout

from hf_semfocus.comparison.storage import UrlStore, is_url, local_copy
from hf_semfocus.files import atomic_write, read_json, read_json_lines, write_json

ROOT = Path(__file__).parents[2]
MARK = "SEMFOCUS_FAULT_CAMPAIGN"
BUCKET = "campaign"
AWAY_SECONDS = 5.0
DISK = "6m"
EPOCHS_OF_A_RUN = 40
ASKED = {
    "name": "faults",
    "tasks": ["even_pairs"],
    "masks": ["full", "topk:3"],
    "seeds": [0],
    "defaults": {
        "length": 12,
        "train_size": 200,
        "validation_size": 60,
        "test_size": 100,
        "model": {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "hidden_dropout": 0.1},
        "training": {"epochs": EPOCHS_OF_A_RUN, "batch_size": 25, "stop_early": False},
    },
}
RUNS = ["even_pairs/full/seed-0", "even_pairs/topk-3/seed-0"]
EPOCHS = len(RUNS) * EPOCHS_OF_A_RUN


UNKNOWN = dict.fromkeys(("lost", "unasked", "differing", "starts"), "?")


@dataclass
class Driver:
    """`semfocus compare`, started again whenever it ended before its time."""

    output: str
    config: Path
    options: list[str]
    log: Path
    process: subprocess.Popen | None = None
    starts: int = 0

    def run(self) -> None:
        """Starts it, unless it runs."""
        if self.process is None or self.process.poll() is not None:
            command = [sys.executable, "-m", "hf_semfocus.cli.main", "compare", "--config", str(self.config)]
            with self.log.open("a") as log:
                self.process = subprocess.Popen(
                    [*command, "--output", self.output, *self.options], stdout=log, stderr=log, start_new_session=True
                )
            self.starts += 1

    def ended(self) -> bool:
        """Whether it has ended with every run done; one that ended without is started again."""
        assert self.process is not None
        if self.process.poll() == 0:
            return True
        self.run()
        return False


def epochs_of(output: str) -> int:
    """How many epochs others could go on from."""
    if is_url(output):
        with contextlib.suppress(OSError):
            names = UrlStore(output).bucket.listed("manifests")
            best: dict[str, int] = {}
            for name in names:
                run, _, file = name.rpartition("/")
                if file.endswith(".json"):
                    best[run] = max(best.get(run, 0), int(file[:6]))
            return sum(best.values())
        return 0
    histories = (Path(output) / "runs" / run / "history.jsonl" for run in RUNS)
    return sum(len(read_json_lines(path)) for path in histories if path.exists())


def trained(output: str) -> dict[str, Any]:
    """Histories and results, without what is of a moment or a machine."""
    folder = local_copy(output, models=False)
    left_out = ("machine", "versions", "placement")
    return {
        path.parent.relative_to(folder / "runs").as_posix(): (
            [
                {k: v for k, v in row.items() if "seconds" not in k}
                for row in read_json_lines(path.parent / "history.jsonl")
            ],
            {k: v for k, v in read_json(path).items() if "seconds" not in k and k not in left_out},
        )
        for path in sorted((folder / "runs").glob("*/*/seed-*/result.json"))
    }


def title(process: psutil.Process) -> str:
    """What it calls itself."""
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def begun(token: str) -> list[psutil.Process]:
    """All processes that this campaign has begun, by a variable that they inherit; Ray's, which lose theirs, by their names."""
    found, started = [], psutil.Process().create_time()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            ours = process.environ().get(MARK) == token
            rays = process.create_time() >= started and title(process).startswith("ray::")
            if (ours or rays) and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def descendants(process: subprocess.Popen) -> list[psutil.Process]:
    """Workers of the local engine."""
    with contextlib.suppress(psutil.Error):
        return [child for child in psutil.Process(process.pid).children() if "spawn_main" in title(child)]
    return []


@dataclass
class Campaign:
    """Everything that is done in one go."""

    seed: int
    moments: int
    folder: Path
    deadline: float
    rows: list[dict[str, Any]] = field(default_factory=list)

    def comparison(
        self, name: str, output: str, options: list[str], faults: list[str], act: dict[str, Callable]
    ) -> None:
        """One comparison with its faults, at moments that the seed draws."""
        draw = random.Random(f"{self.seed} {name}")
        draw.shuffle(faults)
        moments = sorted(draw.uniform(0.02, 0.9) for _ in faults)
        driver = Driver(output, self.folder / "asked.yaml", options, self.folder / f"{name}.log")
        driver.run()
        done: list[dict[str, Any]] = []
        for fault, moment in zip(faults, moments, strict=True):
            while epochs_of(output) < moment * EPOCHS and not driver.ended():
                self.check_time()
                time.sleep(0.1)
            reached = epochs_of(output)
            what = act[fault](driver) if not driver.ended() else "too late: all runs were done"
            done.append({"comparison": name, "fault": fault, "epochs before": reached, "what": what, **UNKNOWN})
            self.rows.append(done[-1])
            print(f"{name}: {fault} after {reached} of {EPOCHS} epochs: {what}", flush=True)
            driver.ended()
        while not driver.ended():
            self.check_time()
            time.sleep(0.2)
        expected, found = self.undisturbed, trained(output)
        came = {
            "lost": len(expected.keys() - found.keys()),
            "unasked": len(found.keys() - expected.keys()),
            "differing": sum(found[run] != expected[run] for run in expected.keys() & found.keys()),
            "starts": driver.starts,
        }
        for row in done:
            row.update(came)

    def check_time(self) -> None:
        """Ends a campaign that has gone on for too long."""
        if time.monotonic() > self.deadline:
            raise TimeoutError("the campaign ran out of time")

    def make_undisturbed(self) -> None:
        """The comparison to which nothing is done."""
        out = self.folder / "undisturbed"
        driver = Driver(str(out), self.folder / "asked.yaml", ["--jobs", "2"], self.folder / "undisturbed.log")
        driver.run()
        assert driver.process is not None
        assert driver.process.wait() == 0, (self.folder / "undisturbed.log").read_text()[-2000:]
        self.undisturbed = trained(str(out))
        assert sorted(self.undisturbed) == sorted(RUNS)


def killed_driver(driver: Driver) -> str:
    """kill -9 of the process that the user started."""
    assert driver.process is not None
    driver.process.kill()
    driver.process.wait()
    return "driver killed, started again"


def on_a_folder(campaign: Campaign, faults: list[str]) -> None:
    """The local engine."""

    def killed_worker(driver: Driver) -> str:
        assert driver.process is not None
        workers = descendants(driver.process)
        if not workers:
            return "no worker at that moment"
        workers[0].kill()
        return "worker killed"

    act = {"kill a worker": killed_worker, "kill the parent": killed_driver}
    campaign.comparison("local", str(campaign.folder / "local"), ["--jobs", "2"], faults, act)


def on_a_small_disk(campaign: Campaign, faults: list[str]) -> None:
    """The local engine on a disk that is filled, and given room after it has stopped."""
    place = campaign.folder / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(place)], check=True)

    def fill(driver: Driver) -> str:
        assert driver.process is not None
        filler = place / "filler"
        with contextlib.suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(b"x" * 4096)
                file.flush()
        code = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = driver.process.wait(120)
        filler.unlink()
        return f"disk full, driver ended with {code}; room made, started again"

    try:
        campaign.comparison("disk", str(place / "out"), ["--jobs", "2"], faults, {"fill the disk": fill})
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


@contextlib.contextmanager
def storage() -> Iterator[list[Any]]:
    """An S3 server; the list holds it, so that it can be stopped and another put in its place on the same port."""
    import fsspec
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = [ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)]
    running[0].start()
    host, port = running[0].get_host_and_port()
    os.environ |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ["AWS_ENDPOINT_URL"] = f"http://{host}:{port}"
    fsspec.filesystem("s3").mkdir(BUCKET)
    try:
        yield running
    finally:
        running[0].stop()


def on_ray(campaign: Campaign, faults: list[str]) -> None:
    """Two nodes, and object storage."""
    from moto.server import ThreadedMotoServer
    from ray.cluster_utils import Cluster

    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT)}
    with storage() as running:
        cluster = Cluster()
        try:
            cluster.add_node(num_cpus=1, include_dashboard=False)
            nodes = [cluster.add_node(num_cpus=1)]

            def killed_worker(driver: Driver) -> str:
                workers = [process for process in begun(os.environ[MARK]) if title(process).startswith("ray::_task")]
                if not workers:
                    return "no worker at that moment"
                workers[0].kill()
                return "worker killed"

            def killed_raylet(driver: Driver) -> str:
                (raylet,) = nodes.pop().all_processes["raylet"]
                os.kill(raylet.process.pid, signal.SIGKILL)
                nodes.append(cluster.add_node(num_cpus=1))
                return "raylet killed, another node joined"

            def cut(driver: Driver) -> str:
                host, port = running[0].get_host_and_port()
                running[0].stop()
                time.sleep(AWAY_SECONDS)
                running[0] = ThreadedMotoServer(ip_address=host, port=port, verbose=False)
                running[0].start()
                return f"storage away for {AWAY_SECONDS:g} s"

            act = {
                "kill a worker": killed_worker,
                "kill a raylet": killed_raylet,
                "kill the driver": killed_driver,
                "cut the storage": cut,
            }
            options = ["--engine", "ray", "--address", cluster.address]
            campaign.comparison("ray", f"s3://{BUCKET}/ray", options, faults, act)
        finally:
            cluster.shutdown()


COMPARISONS = {
    on_ray: ("kill a worker", "kill a raylet", "kill the driver", "cut the storage"),
    on_a_folder: ("kill a worker", "kill the parent"),
    on_a_small_disk: ("fill the disk",),
}


def left_behind(campaign: Campaign) -> dict[str, int]:
    """Processes, locks and scratch folders that nobody needs any more."""
    for _ in range(100):
        if not (processes := begun(os.environ[MARK])):
            break
        time.sleep(0.2)
    held = 0
    for path in campaign.folder.rglob("*.lock"):
        lock = FileLock(path)
        try:
            lock.acquire(timeout=0)
            lock.release()
        except Timeout:
            held += 1
    scratch = [path for path in Path(tempfile.gettempdir()).glob("semfocus-*/*") if path.is_dir()]
    return {"processes": len(processes), "locks": held, "scratch folders": len(scratch)}


def table(rows: list[dict[str, Any]]) -> str:
    """The rows in columns."""
    names = list(rows[0])
    widths = {name: max(len(name), *(len(str(row[name])) for row in rows)) for name in names}
    lines = [names, *([str(row[name]) for name in names] for row in rows)]
    return "\n".join(
        "  ".join(cell.ljust(widths[n]) for cell, n in zip(line, names, strict=True)).rstrip() for line in lines
    )


def main() -> int:
    """Runs the campaign; 1 where something was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--moments", type=int, default=20, help="faults in all")
    parser.add_argument(
        "--on", nargs="+", choices=[where.__name__ for where in COMPARISONS], help="only these comparisons"
    )
    parser.add_argument("--minutes", type=float, default=30, help="the most that it may take")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write FILE.txt and FILE.json")
    options = parser.parse_args()
    wanted = [where for where in COMPARISONS if options.on is None or where.__name__ in options.on]
    faults = [(where, fault) for where in wanted for fault in COMPARISONS[where]]
    chosen = [faults[index % len(faults)] for index in range(options.moments)]
    with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as folder:
        scratch = Path(folder) / "tmp"
        scratch.mkdir()
        os.environ |= {MARK: folder, "TMPDIR": str(scratch), "HF_HOME": str(Path(folder) / "cache")}
        os.environ |= {"HF_DATASETS_CACHE": str(Path(folder) / "data"), "OMP_NUM_THREADS": "1"}
        tempfile.tempdir = str(scratch)
        (Path(folder) / "asked.yaml").write_text(yaml.safe_dump(ASKED))
        began = time.monotonic()
        campaign = Campaign(options.seed, options.moments, Path(folder), began + 60 * options.minutes)
        note = ""
        try:
            campaign.make_undisturbed()
            for where in COMPARISONS:
                if mine := [fault for place, fault in chosen if place is where]:
                    where(campaign, mine)
        except TimeoutError as error:
            note = str(error)
        left = left_behind(campaign)
        for process in begun(folder):
            process.kill()
        if note:
            for log in sorted(Path(folder).glob("*.log")):
                print(f"--- {log.name}\n{log.read_text()[-1500:]}", file=sys.stderr)
    told = {"seed": options.seed, "rows": campaign.rows, "left behind": left, "note": note}
    minutes = (time.monotonic() - began) / 60
    bad = (
        note
        or sum(left.values())
        or any(row[name] != 0 for row in campaign.rows for name in ("lost", "unasked", "differing"))
    )
    command = f"python recipes/ray/faults.py --seed {options.seed} --moments {options.moments}"
    if options.on:
        command += f" --on {' '.join(options.on)}"
    text = (
        f"{len(campaign.rows)} faults in {minutes:.0f} minutes: {command}\n\n{table(campaign.rows) if campaign.rows else 'none'}\n\n"
        f"left behind: {', '.join(f'{count} {what}' for what, count in left.items())}\n"
        + (f"{note}\n" if note else "")
        + ("something was lost\n" if bad else "every history and result is that of the undisturbed comparison\n")
    )
    print(text)
    if options.output is not None:
        atomic_write(options.output.with_suffix(".txt"), text)
        write_json(options.output.with_suffix(".json"), told)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
