"""What is done to comparisons on purpose, and what came of it: `python recipes/ray/faults.py --output recipes/results/faults`.

At moments that a seed draws: kill -9 of a worker, of a node's raylet, of the driver, of the local engine's parent; object storage cut for a
while; a disk that fills (it is mounted, which needs root). Then the same command goes on. At the end every history, result and model must
be that of an undisturbed comparison, bit for bit, with no run lost or there twice, no published epoch trained again, and no process, lock
or scratch folder left. Exit code 1 where one of these does not hold, or a fault did not happen.
"""

import argparse
import contextlib
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas
import psutil
from campaign import CAME, MARK, Campaign, CampaignError, Driver, begun, title

from hf_semfocus.comparison import storage as stores
from hf_semfocus.files import atomic_write, write_json

ROOT = Path(__file__).parents[2]
BUCKET = "campaign"
AWAY_SECONDS = 5.0
DISK = "8m"


def kills_worker(campaign: Campaign, workers: Callable[[Driver], list[psutil.Process]]) -> Callable:
    """kill -9 of a worker, as soon as there is one."""

    def act(driver: Driver) -> str | None:
        found = campaign.wait(driver, lambda: workers(driver))
        if not found:
            return None
        found[0].kill()
        return "worker killed"

    return act


def kills_driver(driver: Driver) -> str:
    """kill -9 of the process that the user started."""
    driver.process.kill()
    driver.process.wait()
    return "driver killed, started again"


def on_a_folder(campaign: Campaign, faults: list[str]) -> None:
    """The local engine."""

    def workers(driver: Driver) -> list[psutil.Process]:
        with contextlib.suppress(psutil.Error):
            return [child for child in psutil.Process(driver.process.pid).children() if "spawn_main" in title(child)]
        return []

    act = {"kill a worker": kills_worker(campaign, workers), "kill the parent": kills_driver}
    campaign.comparison("local", str(campaign.folder / "local"), ["--jobs", "2"], faults, act)


def on_a_small_disk(campaign: Campaign, faults: list[str]) -> None:
    """The local engine on a disk that is filled, and given room after it has stopped."""
    place = campaign.folder / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(place)], check=True)

    def fill(driver: Driver) -> str:
        filler = place / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        code = driver.process.wait(120)
        filler.unlink()
        return f"disk full, driver ended with exit code {code}; room made, started again"

    try:
        campaign.comparison("disk", str(place / "out"), ["--jobs", "2"], faults, {"fill the disk": fill})
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


@contextlib.contextmanager
def object_storage() -> Iterator[list[Any]]:
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
    with object_storage() as running:
        cluster = Cluster()
        try:
            cluster.add_node(num_cpus=1, include_dashboard=False)
            nodes = [cluster.add_node(num_cpus=1)]

            def workers(driver: Driver) -> list[psutil.Process]:
                return [process for process in begun() if title(process).startswith("ray::_task")]

            def kills_raylet(driver: Driver) -> str:
                (raylet,) = nodes.pop().all_processes["raylet"]
                raylet.process.kill()
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
                "kill a worker": kills_worker(campaign, workers),
                "kill a raylet": kills_raylet,
                "kill the driver": kills_driver,
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
    began, note = time.monotonic(), ""
    with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as folder:
        scratch = Path(folder) / "tmp"
        scratch.mkdir()
        os.environ |= {MARK: folder, "TMPDIR": str(scratch), "HF_HOME": f"{folder}/cache", "OMP_NUM_THREADS": "1"}
        os.environ["HF_DATASETS_CACHE"] = f"{folder}/data"
        tempfile.tempdir, stores.CACHE = str(scratch), Path(folder) / "cache" / "semfocus"
        campaign = Campaign(options.seed, Path(folder), began + 60 * options.minutes)
        try:
            campaign.make_undisturbed()
            for where in wanted:
                if mine := [fault for place, fault in chosen if place is where]:
                    where(campaign, mine)
        except (CampaignError, subprocess.SubprocessError) as error:
            note = str(error)
            for log in sorted(Path(folder).glob("*.log")):
                print(f"--- {log.name}\n{log.read_text()[-3000:]}", file=sys.stderr)
        left = campaign.left_behind()
    rows, minutes = campaign.rows, (time.monotonic() - began) / 60
    wrong = [row for row in rows if not row["happened"] or any(row[name] for name in CAME)]
    good = not (note or wrong or sum(left.values()))
    command = f"python recipes/ray/faults.py --seed {options.seed} --moments {options.moments}"
    if options.on:
        command += f" --on {' '.join(options.on)}"
    shown = pandas.DataFrame(rows).to_string(index=False)
    end = (
        "every history, result and model is that of the undisturbed comparison"
        if good
        else f"NOT as it should be {note}"
    )
    text = f"{len(rows)} faults in {minutes:.0f} minutes: {command}\n\n{shown}\n\nleft behind: {left}\n{end}\n"
    print(text)
    if options.output is not None:
        atomic_write(options.output.with_suffix(".txt"), text)
        write_json(options.output.with_suffix(".json"), {"command": command, "rows": rows, "left": left, "note": note})
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
