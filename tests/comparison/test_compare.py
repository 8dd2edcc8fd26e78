"""The comparison: several at once, killed and started again, with failures that stay where they happened."""

import io
import json
import logging
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from hf_semfocus.cli.analyze_sources import names_of, source_of
from hf_semfocus.cli.progress import ComparisonBars
from hf_semfocus.comparison import compare as comparison
from hf_semfocus.comparison.compare import compare, unit_folder
from hf_semfocus.comparison.engines.local import worker_pool
from hf_semfocus.comparison.summary import write_summary
from hf_semfocus.comparison.workers import output_to, train
from hf_semfocus.experiments.experiment import Experiment
from hf_semfocus.files import read_json_lines
from hf_semfocus.hub.facts import run_facts
from hf_semfocus.report.html import write_report
from hf_semfocus.training.locking import folder_lock
from tests.small import TINY


def experiment(masks=("full", "topk:3"), seeds=(0,), tasks=None, **defaults):
    return Experiment("tiny", tasks or {"even_pairs": {}}, tuple(masks), tuple(seeds), {**TINY, **defaults})


def curves(out, asked):
    return {
        unit.name: [
            {key: value for key, value in row.items() if "seconds" not in key}
            for row in read_json_lines(unit_folder(out, unit) / "history.jsonl")
        ]
        for unit in asked.units()
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A comparison of two runs by two workers: its folder, its results, and what was heard of it."""
    folder, seen = tmp_path_factory.mktemp("trained") / "out", []
    return folder, compare(experiment(), folder, jobs=2, on_progress=seen.append), seen


@pytest.fixture
def finished(trained, tmp_path):
    """A copy of it."""
    return shutil.copytree(trained[0], tmp_path / "out")


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def test_units_run_in_workers_and_are_not_repeated(trained, finished, no_workers):
    _, results, seen = trained
    assert [result["epochs_trained"] for result in results] == [3, 3]
    assert {row.state for row in seen[-1]} <= {"reached", "censored"}
    assert [row.entry["epoch"] for row in seen[-1]] == [3, 3]
    stamps = {path: path.stat().st_mtime_ns for path in (finished / "runs").rglob("*") if path.is_file()}
    assert compare(experiment(), finished) == results
    # more seeds may join; what is there stays as it is
    wider = compare(experiment(seeds=(0, 1)), finished)
    assert wider[:2] == results
    assert len(wider) == 4
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())


def test_a_comparison_that_goes_on_elsewhere_keeps_where_it_was(finished, monkeypatch, no_workers):
    first = json.loads((finished / "experiment.json").read_text())
    assert "earlier" not in first
    monkeypatch.setattr(comparison, "machine", lambda: {"processor": "another", "cores": 3})
    for _ in range(2):
        compare(experiment(), finished)
    now = json.loads((finished / "experiment.json").read_text())
    assert now["machine"] == {"processor": "another", "cores": 3}
    assert now["earlier"] == [{name: first[name] for name in ("created", "versions", "machine")}]
    summary = write_summary(finished)
    assert [place.to_json() for place in summary.earlier] == now["earlier"]
    assert f"started {first['created']}" in write_report(finished).read_text()


def test_variants_are_an_axis_from_the_folders_to_the_report(tmp_path, no_workers):
    """Two variants of one mask are told apart everywhere; what they differ in is no warning."""
    variants = {"two": {"mask": "full", "num_attention_heads": 2}, "one": {"mask": "full"}}
    asked = Experiment(
        "x", {"even_pairs": {}}, ("one", "two", "topk:3"), (0,), TINY, baseline="one", variants=variants
    )
    compare(asked, tmp_path)
    assert sorted(path.name for path in (tmp_path / "runs" / "even_pairs").iterdir()) == ["one", "topk-3", "two"]
    summary = write_summary(tmp_path)
    assert summary["masks"] == ["one", "two", "topk:3"]
    assert [run["status"] != "unfinished" for run in summary["runs"]] == [True] * 3
    assert {(entry["mask"], entry["n_pairs"]) for entry in summary["speedups"]} == {("two", 1), ("topk:3", 1)}
    assert {name: fields.to_json() for name, fields in summary.variants.items()} == variants
    assert summary.tasks[0].differing == []
    assert "num_attention_heads 2" in write_report(tmp_path).read_text()
    folder = tmp_path / "runs" / "even_pairs" / "two" / "seed-0"
    facts = run_facts(folder)
    assert (facts["name"], facts["comparison"]["baseline"]) == ("even_pairs-two-seed-0", "one")
    assert facts["comparison"]["pair"] is not None
    assert "variant=" in facts["command"]
    sources = [source_of(folder.parents[1] / name / "seed-0") for name in ("one", "two")]
    assert names_of(sources) == ["one", "two"]
    path = tmp_path / "experiment.json"
    assert Experiment.from_yaml(path) == asked
    path.write_text(json.dumps({**json.loads(path.read_text()), "variants": {"one": 3}}))
    with pytest.raises(ValueError, match=r"experiment\.json is damaged: variants"):
        write_summary(tmp_path)


def test_runs_of_an_unpacked_archive_are_kept_and_more_join_them(trained, finished, no_workers):
    """An archive holds no models; the masks that somebody adds to it are trained, and nothing else."""
    folder, added = (unit_folder(finished, unit) for unit in experiment().units())
    for place in (folder / "model", folder / "checkpoints", added):
        shutil.rmtree(place)
    history = (folder / "history.jsonl").stat()
    wider = compare(experiment(), finished)
    assert wider[:1] == trained[1][:1]
    assert wider[1]["epochs_trained"] == 3
    assert (folder / "history.jsonl").stat().st_mtime_ns == history.st_mtime_ns
    assert not (folder / "model").exists()
    # half a model is none
    (folder / "model").mkdir()
    shutil.copy(added / "model" / "config.json", folder / "model")
    assert compare(experiment(), finished) == wider
    # a budget that goes beyond the archive's has nothing to go on from: the run is restarted
    seen = []
    asked = experiment(training={**TINY["training"], "epochs": 4})
    console = Console(file=io.StringIO(), width=200)
    with ComparisonBars(2, console) as bars:
        longer = compare(asked, finished, on_progress=lambda rows: (seen.append(rows), bars.update(rows)))
    assert [row.restarted for row in seen[0]] == [True, False]
    assert "1 of 2 runs have epochs and no checkpoint to go on from" in console.file.getvalue()
    assert [result["epochs_trained"] for result in longer] == [4, 4]
    assert (folder / "model" / "model.safetensors").is_file()
    # a smaller budget cuts nothing off, and that is said
    shorter = experiment(training={**TINY["training"], "epochs": 2})
    console = Console(file=io.StringIO(), width=200)
    with ComparisonBars(2, console) as bars:
        assert compare(shorter, finished, on_progress=bars.update) == longer
    assert "2 of them had more epochs than the budget that is now asked for" in console.file.getvalue()


def test_a_failed_unit_stops_no_other_and_is_tried_again(tmp_path):
    # A mask that raises once it is used: the run itself fails, not its making.
    (tmp_path / "breaks.py").write_text(
        "from hf_semfocus import MaskStrategy, register_mask_strategy\n"
        "@register_mask_strategy('breaks')\n"
        "class Breaks(MaskStrategy):\n"
        "    def keep(self, *_):\n"
        "        raise RuntimeError('no such mask')\n"
    )
    asked = experiment(masks=("breaks", "full"), imports=[str(tmp_path / "breaks.py")])
    broken, fine = compare(asked, tmp_path, jobs=1)
    assert broken["status"] == "failed"
    assert "no such mask" in broken["error"]
    assert fine["epochs_trained"] == 3
    log = unit_folder(tmp_path, asked.units()[0]) / "log.txt"
    assert "Traceback" in log.read_text()
    again, _ = compare(asked, tmp_path, jobs=1)
    assert again["status"] == "failed"
    assert log.read_text().count("Traceback (most recent call last)") >= 2


def _dies(job, cpus, tell):
    """Stands in a worker's place and is killed as the kernel kills a process that takes too much memory."""
    if job.spec["mask"] == "full":
        os.kill(os.getpid(), signal.SIGKILL)
    return train(job, cpus, tell)


@pytest.mark.slow
def test_a_killed_worker_fails_its_own_unit_only(tmp_path, monkeypatch, request):
    with monkeypatch.context() as patch:
        patch.setattr(comparison, "train", _dies)
        dead, fine = compare(experiment(), tmp_path, jobs=2)
    assert (dead["status"], fine["epochs_trained"]) == ("failed", 3)
    assert "died" in dead["error"]
    request.getfixturevalue("no_workers")
    mended, _ = compare(experiment(), tmp_path)
    assert mended["epochs_trained"] == 3


def command_of(asked, tmp_path):
    """A folder, and the command that trains a comparison there."""
    (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(asked.to_dict()))
    out = tmp_path / "killed"
    words = f"-m hf_semfocus.cli.main compare --config {tmp_path}/experiment.yaml --output {out}"
    return out, [sys.executable, *words.split()]


@pytest.mark.long
def test_kill_minus_nine_and_start_again(tmp_path):
    """The whole process group is killed in mid-run; the second start ends where an undisturbed comparison ends."""
    asked = experiment(
        seeds=(0, 1), training={**TINY["training"], "epochs": 12}, model={**TINY["model"], "hidden_dropout": 0.1}
    )
    compare(asked, tmp_path / "whole", jobs=2)
    out, command = command_of(asked, tmp_path)
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not any((read_json_lines(path)[-1]["epoch"]) >= 3 for path in out.rglob("history.jsonl")):
        assert process.poll() is None, "ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not all((unit_folder(out, unit) / "result.json").exists() for unit in asked.units())
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert curves(out, asked) == curves(tmp_path / "whole", asked)
    assert (out / "report.html").stat().st_size > 10_000


@pytest.mark.long
def test_workers_end_with_a_killed_comparison_and_a_restart_at_once_is_safe(tmp_path):
    """Only the parent is killed, as an out-of-memory killer or a `kill -9` does it; its workers must not train on beside the next ones."""
    asked = experiment(masks=("full",), training={**TINY["training"], "epochs": 150})
    compare(asked, tmp_path / "whole", jobs=1)
    out, command = command_of(asked, tmp_path)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list(out.rglob("history.jsonl")):
        assert process.poll() is None, "ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.wait()
    unit = unit_folder(out, asked.units()[0])
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Traceback" not in (unit / "log.txt").read_text()
    assert curves(out, asked) == curves(tmp_path / "whole", asked)


@pytest.mark.slow
def test_a_terminated_comparison_ends_quietly_and_its_log_has_no_bars(tmp_path):
    """SIGTERM, as a batch system sends it: no worker is left, and nothing is printed of what was not cleaned up."""
    out = tmp_path / "out"
    asked = experiment(masks=("full",), training={**TINY["training"], "epochs": 10_000})
    (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(asked.to_dict()))
    command = [sys.executable, "-m", "hf_semfocus.cli.main", "compare", "--config", str(tmp_path / "experiment.yaml")]
    process = subprocess.Popen([*command, "--output", str(out)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 300
        while not any(read_json_lines(path)[-1]["epoch"] >= 2 for path in out.rglob("history.jsonl")):
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.terminate()
        assert (process.communicate(timeout=60)[1].decode(), process.returncode) == ("", 128 + signal.SIGTERM)
    finally:
        process.kill()
    assert "%|" not in (unit_folder(out, asked.units()[0]) / "log.txt").read_text()


def test_a_worker_that_is_still_starting_is_deaf_to_ctrl_c(capfd):
    """A terminal sends SIGINT to all processes; a worker in the midst of its imports must not answer with a traceback."""
    with worker_pool(1) as pool:
        future = pool.schedule(os.getpid)
        sent = 0
        while not future.done():
            for worker in multiprocessing.active_children():
                os.kill(worker.pid, signal.SIGINT)
                sent += 1
            time.sleep(0.02)
        assert future.result() != os.getpid()
    assert sent > 10  # it starts for a second or more
    assert capfd.readouterr().err == ""


def semaphores_of_a_bar():
    """How many the bars of the libraries make in the process that calls this."""
    from multiprocessing import synchronize

    from datasets.utils import tqdm

    made, begin = [], synchronize.SemLock.__init__

    def counted(self, *args, **options):
        made.append(args)
        begin(self, *args, **options)

    synchronize.SemLock.__init__ = counted
    list(tqdm(range(2)))
    return len(made)


def test_a_worker_makes_no_semaphore_that_it_could_leave_behind():
    with worker_pool(1) as pool:
        assert pool.schedule(semaphores_of_a_bar).result() == 0


def test_what_libraries_log_goes_to_the_unit_s_file(tmp_path):
    """Also through a handler that was made at import, with the terminal's stream in it."""
    logger = logging.getLogger("a_library")
    logger.propagate = False
    terminal = sys.stderr
    handler = logging.StreamHandler(terminal)
    logger.addHandler(handler)
    with (tmp_path / "log.txt").open("w") as log, output_to(log):
        logger.warning("from the library")
        logging.getLogger("another").warning("through the root")
    assert (tmp_path / "log.txt").read_text() == "from the library\nthrough the root\n"
    assert handler.stream is terminal
    logger.removeHandler(handler)


def test_two_comparisons_do_not_share_a_directory(tmp_path):
    with folder_lock(tmp_path, "a test"), pytest.raises(ValueError, match="another comparison is at work"):
        compare(experiment(), tmp_path)


def test_a_directory_with_other_runs_is_refused_before_anything_is_touched(finished):
    before = contents(finished)
    with pytest.raises(ValueError, match="would leave out"):
        compare(experiment(masks=("full", "banded:3")), finished)
    with pytest.raises(ValueError, match=r"train_size: 200 there, 150 asked"):
        compare(experiment(train_size=150), finished)
    assert contents(finished) == before


#: Of each file: no JSON, JSON of another kind, an entry of another kind, deep and shallow. The records' own tests have each entry.
DAMAGE = {
    "history.jsonl": ["", "[" * 100_000, "5"],
    "spec.json": [
        "null",
        '{"task": "even_pairs"}',
        {"length": {"low": 1}},
        {"seed": True},
        {"training": {"epochs": None}},
    ],
    "result.json": [
        "[]",
        {"epochs_trained": "3"},
        {"versions": {"torch": {}}},
        {"dispersion": {"full": "x", "mask": "y"}},
    ],
    "experiment.json": [
        "",
        "garbage",
        "[]",
        {"tasks": [[1]]},
        {"masks": "full"},
        {"seeds": ["a"]},
        {"baseline": "nope"},
    ],
}


@pytest.mark.parametrize("name", DAMAGE)
def test_any_damage_is_one_error_that_names_the_file_and_nothing_is_trained(finished, name):
    path = finished / name if name == "experiment.json" else unit_folder(finished, experiment().units()[0]) / name
    whole = path.read_text()
    for damage in DAMAGE[name]:
        path.write_text(damage if isinstance(damage, str) else json.dumps({**json.loads(whole), **damage}))
        before = contents(finished)
        for attempt in (lambda: compare(experiment(), finished), lambda: write_summary(finished)):
            with pytest.raises(ValueError, match=re.escape(name)):
                attempt()
        assert contents(finished) == before


def test_a_run_in_another_one_s_folder_is_named(finished):
    folder = unit_folder(finished, experiment().units()[0])
    folder.rename(folder.with_name("seed-7"))
    for attempt in (lambda: compare(experiment(), finished), lambda: write_summary(finished)):
        with pytest.raises(ValueError, match=r"seed-7 holds the run of even_pairs/full/seed-0"):
            attempt()


def test_an_experiment_that_was_moved_away_is_written_again_and_keeps_the_runs(finished):
    path, history = finished / "experiment.json", next(finished.rglob("history.jsonl"))
    whole, before = path.read_text(), history.read_bytes()
    path.unlink()
    with pytest.raises(ValueError, match="would leave out"):  # another comparison does not take the folder over
        compare(experiment(masks=("full",), seeds=(5,)), finished)
    compare(experiment(), finished)
    assert history.read_bytes() == before
    kept = (json.loads(text) for text in (whole, path.read_text()))
    assert len({json.dumps({**values, "created": ""}) for values in kept}) == 1


@pytest.mark.long
def test_two_processes_under_accelerate_train_as_one_does(tmp_path):
    """Same rates, every example counted once, the same curve up to the order of sums."""
    recipes = Path(__file__).parents[2] / "recipes"
    options = (
        "even_pairs --mask topk:3 --length 12 --layers 1 --train-size 230 --test-size 101 --epochs 3 --batch-size 46"
    )
    options += " --set validation_size=60 training.stop_early=false model.hidden_size=16"
    launch = f"-m accelerate.commands.launch --config_file {recipes}/accelerate/two.yaml"
    rows = {}
    for name, start in (("one", ""), ("two", launch)):
        words = f"{start} {recipes}/train.py {options} --output {tmp_path}/{name}"
        done = subprocess.run([sys.executable, *words.split()], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        assert json.loads((tmp_path / name / "result.json").read_text())["processes"] == (2 if name == "two" else 1)
        rows[name] = read_json_lines(tmp_path / name / "history.jsonl")
    for one, two in zip(rows["one"], rows["two"], strict=True):
        assert one["learning_rate"] == two["learning_rate"]
        for key, size in (("train_accuracy", 230), ("heldout_accuracy", 101)):
            assert two[key] * size == pytest.approx(round(two[key] * size), abs=1e-9)
            assert one[key] == pytest.approx(two[key], abs=0.05)
        assert one["heldout_loss"] == pytest.approx(two["heldout_loss"], rel=1e-2)
