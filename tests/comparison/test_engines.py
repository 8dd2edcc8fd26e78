"""Engines: the same run wherever it is trained, what is tried again and what is not, and what a cluster lacks."""

import argparse
import io
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from hf_semfocus.cli import status
from hf_semfocus.comparison import compare as comparison
from hf_semfocus.comparison import storage
from hf_semfocus.comparison.compare import compare
from hf_semfocus.comparison.engines import engine_names, make_engine
from hf_semfocus.comparison.engines.base import Job, LostRunError, Outcome, Wanted

from ..cli.test_cli import run
from .clusters import ray_cluster, s3_server, tiny, train_here, trained


@pytest.fixture(scope="module")
def cluster():
    one = {"labels": {"semfocus-kind": "one"}}
    two = {"labels": {"semfocus-kind": "two"}, "num_cpus": 4, "num_gpus": 1}  # nobody looks whether there is one
    import ray

    with ray_cluster(one, two) as cluster:
        # One job for all tests: each would start workers of its own.
        ray.init(cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        try:
            yield cluster
        finally:
            ray.shutdown()


@pytest.fixture
def on_ray(cluster):
    def make(**wanted):
        return make_engine("ray", Wanted(**wanted))

    return make


def job(index, **spec):
    return Job(index, {"imports": [], **spec}, "nowhere")


def where(job, cpus, tell):
    import torch

    tell({"epoch": 1})
    if job.spec.get("seconds"):
        time.sleep(job.spec["seconds"])
    return Outcome(
        {"process": os.getpid(), "threads": torch.get_num_threads(), "variable": os.environ["OMP_NUM_THREADS"]}
    )


def dies_once(job, cpus, tell):
    """Killed at its first try; at its second it is done."""
    path = Path(job.spec["file"])
    path.write_text((path.read_text() if path.exists() else "") + "tried\n")
    if path.read_text().count("tried") == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return Outcome({})


def fails(job, cpus, tell):
    with open(job.spec["file"], "a") as file:
        file.write("tried\n")
    raise ValueError("an error of ours")


def outcomes(engine, work, jobs):
    with engine:
        engine.prepare(len(jobs))
        return {event[0].index: event[1] for event in engine.outcomes(work, iter(jobs)) if event is not None}


def test_a_local_run_gets_as_many_threads_as_it_asks_for():
    with make_engine("local", Wanted(jobs=1, cpus=2)) as engine:
        engine.prepare(1)
        (found,) = [event for event in engine.outcomes(threads, iter([job(0)])) if event is not None]
    assert found[1].result == {"variable": "2", "threads": 2}
    assert os.environ.get("OMP_NUM_THREADS") != "2"


def threads(job, cpus, tell):
    import torch

    return Outcome({"variable": os.environ["OMP_NUM_THREADS"], "threads": torch.get_num_threads()})


def test_engines_take_no_more_jobs_than_they_have_room_for():
    """A hundred thousand runs must not lie in memory at once."""
    taken = []

    def jobs():
        for index in range(50):
            taken.append(index)
            yield job(index)

    with make_engine("inline", Wanted()) as engine:
        for number, _ in enumerate(event for event in engine.outcomes(lambda *_: Outcome({}), jobs()) if event):
            assert len(taken) <= number + 2
    assert engine_names() == ["inline", "local", "ray"]


@pytest.mark.slow
def test_ray_runs_on_both_nodes_and_uses_its_workers_again(on_ray):
    found = outcomes(on_ray(cpus=2), where, [job(index, seconds=0.2) for index in range(8)])
    assert len(found) == 8
    assert len({outcome.result["process"] for outcome in found.values()}) <= 4
    assert {(outcome.result["threads"], outcome.result["variable"]) for outcome in found.values()} == {(2, "2")}


@pytest.mark.slow
def test_ray_tries_a_lost_worker_again_and_an_error_of_ours_not(on_ray, tmp_path):
    found = outcomes(on_ray(), dies_once, [job(0, file=str(tmp_path / "dies"))])
    assert found == {0: Outcome({})}
    with pytest.raises(ValueError, match="an error of ours"):
        outcomes(on_ray(), fails, [job(0, file=str(tmp_path / "fails"))])
    assert (tmp_path / "fails").read_text() == "tried\n"


@pytest.mark.slow
def test_more_than_any_node_has_is_one_line_with_what_there_is(on_ray, tmp_path, capsys):
    there = "1 with 2 CPUs and 0 GPUs, 1 with 4 CPUs and 1 GPUs"
    with pytest.raises(ValueError, match=rf"5 CPUs and 0 GPUs, which no node has; .*{there}"):
        on_ray(cpus=5)
    options = ["--engine", "ray", "--cpus-per-run", "5", "--gpus-per-run", "0.5", "--output", tmp_path / "out"]
    assert run("compare", "--preset", "quickstart", *options) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "5 CPUs and 0.5 GPUs, which no node has" in line
    assert there in line
    assert not (tmp_path / "out").exists()


def meets(job, cpus, tell):
    """Ends when as many are at work at once as there should be."""
    place = Path(job.spec["folder"])
    (place / str(job.index)).touch()
    until = time.monotonic() + 180
    while time.monotonic() < until:
        if len(list(place.iterdir())) == job.spec["of"]:
            return Outcome({"gpu": os.environ["CUDA_VISIBLE_DEVICES"]})
        time.sleep(0.05)
    return Outcome({"gpu": "alone"})


@pytest.mark.slow
def test_four_runs_of_a_quarter_share_a_gpu(on_ray, tmp_path):
    found = outcomes(on_ray(gpus=0.25), meets, [job(index, folder=str(tmp_path), of=4) for index in range(4)])
    assert [outcome.result["gpu"] for outcome in found.values()] == ["0"] * 4


@pytest.mark.slow
def test_no_worker_gets_an_environment_of_its_own_under_uv_run():
    """Ray reads the variable when it is imported."""
    code = (
        "from hf_semfocus.comparison.engines import Wanted, make_engine\n"
        "try: make_engine('ray', Wanted(address='127.0.0.1:1'))\n"
        "except ValueError: from ray._private import ray_constants as ray\n"
        "assert ray.RAY_ENABLE_UV_RUN_RUNTIME_ENV is False"
    )
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ENABLE_UV_RUN_RUNTIME_ENV"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=120)


@pytest.mark.slow
def test_a_pair_stays_on_one_kind_of_node(on_ray, tmp_path):
    asked = tiny(epochs=1, seeds=(0, 1))
    compare(asked, tmp_path / "out", engine=on_ray())
    kinds = json.loads((tmp_path / "out" / "placements.json").read_text())
    assert sorted(kinds.values()) == ["one", "two"]
    for unit in asked.units():
        result = json.loads((tmp_path / "out" / "runs" / unit.name / "result.json").read_text())
        assert result["placement"] == kinds[f"{unit.task}/seed-{unit.seed}"]
    (tmp_path / "out" / "placements.json").write_text(json.dumps({**kinds, next(iter(kinds)): "three"}))
    with pytest.raises(ValueError, match=r"kind 'three'.*one, two"):
        compare(asked, tmp_path / "out", engine=on_ray())


@pytest.mark.slow
def test_ray_trains_what_one_machine_trains(on_ray, tmp_path):
    asked = tiny()
    expected = train_here(asked, tmp_path / "here")
    compare(asked, tmp_path / "folder", engine=on_ray())
    assert trained(tmp_path / "folder", asked) == expected


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "CACHE", tmp_path / "cache")


@pytest.mark.long
def test_two_nodes_and_object_storage_train_what_one_machine_trains(tmp_path, own_cache, monkeypatch):
    """`semfocus status` tells of it while it is at work."""
    import fsspec

    monkeypatch.setattr(comparison, "PROGRESS_SECONDS", 0.0)
    asked, seen = tiny(epochs=120), []  # some seconds, so that looks meet them at work
    ended = threading.Event()
    expected = train_here(asked, tmp_path / "here")
    with s3_server(), ray_cluster() as cluster:
        fsspec.filesystem("s3", skip_instance_cache=True).mkdir("bucket")
        place = "s3://bucket/some/comparison"

        def look():
            while not ended.wait(0.1):
                seen.append(status_of(place, monkeypatch))

        # Beside the comparison, as a user does: the comparison itself looks rarely where looking takes long.
        watch = threading.Thread(target=look)
        engine = make_engine("ray", Wanted(address=cluster.address))
        try:
            results = compare(asked, place, engine=engine, on_progress=lambda rows: watch.ident or watch.start())
        finally:
            ended.set()
        watch.join()
        seen.append(status_of(place, monkeypatch))
        assert [result["status"] for result in results] == [results[0]["status"]] * 2
        assert trained(place, asked) == expected
        assert any("1 running" in text or "2 running" in text for text in seen)
        assert "2 of 2 runs done" in seen[-1]
        # a driver that begins again has nothing to do
        assert compare(asked, place, jobs=2) == results


def test_a_lost_run_is_recorded_as_failed_and_stops_no_other(tmp_path):
    class Loses(type(make_engine("inline", Wanted()))):
        def outcome(self, handle):
            if handle.result().result["status"] == "failed":
                raise LostRunError("its node is gone")
            return super().outcome(handle)

    from unittest import mock

    asked = tiny(epochs=1)
    work = comparison.train

    def lost(job, cpus, tell):
        return Outcome({"status": "failed"}) if job.index == 0 else work(job, cpus, tell)

    with mock.patch.object(comparison, "train", lost):
        dead, fine = compare(asked, tmp_path, engine=Loses(Wanted()))
    assert (dead["status"], dead["error"]) == ("failed", "its node is gone")
    assert fine["epochs_trained"] == 1
    assert compare(asked, tmp_path, jobs=1)[0]["epochs_trained"] == 1


def status_of(place, monkeypatch):
    console = Console(record=True, width=100, file=io.StringIO())
    monkeypatch.setattr(status, "console", lambda: console)
    assert status.run(argparse.Namespace(directory=str(place))) == 0
    return console.export_text()


def test_status_tells_how_far_a_comparison_is(tmp_path, monkeypatch):
    asked, seen = tiny(epochs=1), []

    def told():
        return status_of(tmp_path, monkeypatch)

    compare(asked, tmp_path, engine=make_engine("inline", Wanted()), on_progress=lambda rows: seen.append(told()))
    assert "0 of 2 runs done (2 waiting)" in seen[1]
    assert "2 of 2 runs done" in told()
    path = tmp_path / "progress.json"
    ended = json.loads(path.read_text())
    running = {"run": "even_pairs/full/seed-0", "node": "far", "epoch": 7, "of": 9}
    now = {"ended": False, "nodes": {"far": 1}, "running": [running], "states": {"running": 1, "reached": 1}}
    path.write_text(json.dumps({**ended, **now, "seconds_left": 7300}))
    for words in ("1 of 2 runs done (1 reached, 1 running)", "time left: 2 h", "far: 1 running", "epoch 7/9  on far"):
        assert words in told()
    path.write_text(json.dumps({**ended, **now, "updated": "2020-01-01T00:00:00+00:00"}))
    assert "no word from the comparison" in told()
    path.write_text(json.dumps(ended))
    shutil.rmtree(tmp_path / "runs" / asked.units()[0].name)
    assert "1 of 2 runs done" in told()
    path.unlink()
    assert "1 of 2 runs done" in told()
