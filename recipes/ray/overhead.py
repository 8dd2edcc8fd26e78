"""What the Ray engine costs beside the local one, for the same slots: `python recipes/ray/overhead.py --runs 1000 --seconds 1`.

A run is simulated: it sleeps. Two nodes on this machine, a CPU each, against two local processes; both have begun their workers before the
clock starts. Beside the times: the driver's memory (resident set) while runs end. `--waiting 100000`: what so many waiting runs take of it.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import psutil

from hf_semfocus.comparison.compare import Progress
from hf_semfocus.comparison.engines import Wanted, make_engine
from hf_semfocus.comparison.engines.base import Engine, Job, Outcome
from hf_semfocus.experiments.experiment import Experiment
from hf_semfocus.files import atomic_write
from hf_semfocus.schema import RunResult

ROOT = Path(__file__).parents[2]
SLOTS = 2
LOOKS = 5


def sleeps(job: Job, cpus: int, tell) -> Outcome:
    """A run of so many seconds, with a result of the usual size."""
    time.sleep(job.spec["seconds"])
    return Outcome(RunResult(status="reached", epochs_trained=10, error="x" * 3000))


def measured(engine: Engine, runs: int, seconds: float) -> tuple[float, list[float]]:
    """Seconds for so many runs, and the driver's MB at `LOOKS` moments."""
    memory, process = [], psutil.Process()
    with engine:
        engine.prepare(runs)
        warm = [Job(index, {"imports": [], "seconds": 2.0}, "") for index in range(4 * SLOTS)]
        for _ in engine.outcomes(sleeps, warm):
            pass
        began, done = time.perf_counter(), 0
        for event in engine.outcomes(
            sleeps, (Job(index, {"imports": [], "seconds": seconds}, "") for index in range(runs))
        ):
            if event is not None:
                done += 1
                if done % max(1, runs // LOOKS) == 0:
                    memory.append(process.memory_info().rss / 1e6)
        return time.perf_counter() - began, memory


def waiting(runs: int) -> float:
    """The driver's MB for the specification, the progress and the job of each run."""
    process = psutil.Process()
    before = process.memory_info().rss
    asked = Experiment("many", {"even_pairs": {}}, ("full", "topk:5"), tuple(range(runs // 2)), {}).resolved()
    kept = [
        (Progress(unit), Job(at, {}, f"s3://bucket/many/runs/{unit.name}")) for at, unit in enumerate(asked.units())
    ]
    assert len(kept) == runs
    return (process.memory_info().rss - before) / 1e6


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a run")
    parser.add_argument("--waiting", type=int, metavar="RUNS", help="measure only this")
    parser.add_argument("--output", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.waiting is not None:
        print(f"{options.waiting} runs that wait take {waiting(options.waiting):.0f} MB of the driver")
        return 0
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": f"{ROOT}:{Path(__file__).parent}"}
    from ray.cluster_utils import Cluster

    local, local_memory = measured(make_engine("local", Wanted(jobs=SLOTS)), options.runs, options.seconds)
    cluster = Cluster()
    try:
        cluster.add_node(num_cpus=1, include_dashboard=False)
        cluster.add_node(num_cpus=1)
        ray, ray_memory = measured(make_engine("ray", Wanted(address=cluster.address)), options.runs, options.seconds)
    finally:
        cluster.shutdown()
    ideal = options.runs * options.seconds / SLOTS
    text = f"""{options.runs} runs of {options.seconds:g} s on {SLOTS} slots: python recipes/ray/overhead.py --runs {options.runs} \
--seconds {options.seconds:g}

          seconds  over the runs' own  driver's MB while runs end
no engine {ideal:7.1f}
local     {local:7.1f}  {local / ideal - 1:17.1%}  {" ".join(f"{mb:.0f}" for mb in local_memory)}
ray       {ray:7.1f}  {ray / ideal - 1:17.1%}  {" ".join(f"{mb:.0f}" for mb in ray_memory)}

ray over local: {ray / local - 1:.1%}
load of the machine at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores
"""
    print(text)
    if options.output is not None:
        atomic_write(options.output, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
