"""The command line: help with an example, one line and exit code 2 for bad input, nothing half-written."""

import errno
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.model.isolated import OWN_STRATEGY
from tests.report.synthetic import write_run_directory
from tests.small import run

ROOT = Path(__file__).parents[2]
TINY = shlex.split("--length 12 --train-size 200 --test-size 100 --layers 1 --epochs 2 --batch-size 50")
TINY += ["--set", "validation_size=60", "model.hidden_size=16", "training.stop_early=false"]


@pytest.mark.parametrize(
    "command", ["tasks", "masks", "generate", "train", "compare", "report", "card", "advise", "bench"]
)
def test_every_command_has_help_with_an_example(command, capsys):
    assert run(command, "--help") == 0
    out = capsys.readouterr().out
    assert f"example:\n  semfocus {command}" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("trian", ["trian", "train"]),
        ("train parity_chek --output OUT", ["parity_chek", "parity_check"]),
        ("train even_pairs --output OUT --mask topk:0", ["topk", "0"]),
        ("train even_pairs --output OUT --mask tpok:5", ["tpok", "topk"]),
        ("train even_pairs --output OUT --epochs none", ["epochs", "none"]),
        ("train even_pairs --output OUT --set model.hidden_act=rleu", ["rleu"]),
        ("train even_pairs --output OUT --length long", ["length", "long"]),
        ("train even_pairs --output OUT --config missing.yaml", ["missing.yaml"]),
        ("train even_pairs", ["--output"]),
        ("train even_pairs --output ''", ["empty"]),
        ("masks ''", ["mask"]),
        ("train even_pairs --output OUT --set training=5", ["training", "5"]),
        ("compare --preset quickstart --output OUT --epochs 3 --set training.x=5", ["x"]),
        ("train even_pairs --output OUT --length 6", ["even_pairs", "allow_duplicates"]),
        ("compare --preset quikstart --output OUT", ["quikstart", "quickstart"]),
        ("compare --output OUT", ["--preset", "--config"]),
        ("compare --output OUT --config ''", ["--config", "empty"]),
        ("train even_pairs --output OUT --set mask_source=abc", ["mask_source", "abc"]),
        (
            "compare --preset paper-nnch --output OUT --masks full bnad:5",
            ["'bnad:5'", "did you mean 'band:5'"],
        ),
        ("compare --preset paper-nnch --output OUT --length 8", ["band:9", "9", "1 … 8"]),
        (
            "compare --preset paper-nnch --output OUT --set model.max_position_embeddings=45",
            ["max_position_embeddings", "45", "at least 46"],
        ),
        (
            "train even_pairs TINY --output OUT --set model.num_global_tokens=3 model.max_position_embeddings=9",
            ["max_position_embeddings", "9", "at least"],
        ),
        ("generate stack_manipulation --output OUT --answer botom", ["answer", "stack, top", "botom"]),
        ("train even_pairs TINY --output OUT --set task_options.answer=top", ["even_pairs: answer"]),
        ("compare --preset quickstart --output OUT --jobs 0", ["jobs", "0"]),
        ("compare --preset quickstart --output OUT --masks topk:5", ["baseline", "full"]),
        ("compare --preset quickstart --output OUT --masks full full", ["masks", "full twice"]),
        ("compare --preset quickstart --output OUT --tasks even_pairs even_pairs", ["even_pairs twice"]),
        ("compare --preset quickstart --output OUT --seeds 0 0", ["seeds", "0 twice"]),
        ("report OUT", ["OUT"]),
        ("masks banded:4", ["banded", "4", "odd"]),
        ("masks full --length 1000000", ["length", "1000000", "500"]),
        ("train even_pairs --output OUT --set length=4-", ["length", "4-", "500-600"]),
        (
            "train even_pairs TINY --output OUT --set validation_size=60 model.hidden_size=1000000000",
            ["not enough memory", "smaller"],
        ),
        ("generate parity_check --output OUT --format csv", ["csv", "parquet"]),
        ("generate parity_check --output OUT --train-size -1", ["train_size", "-1"]),
        ("generate listops --output OUT --length 2-3", ["listops", "2"]),
        ("bench speed", ["speed", "data"]),
        ("bench data parity", ["parity", "parity_check"]),
        ("bench data parity_check --repeats 0", ["repeats", "at least 1", "0"]),
        ("compare --preset quickstart --output OUT --mask topk:5", ["'--mask'", "did you mean --masks"]),
        ("compare --preset quickstart --output OUT --epoch=3", ["--epoch=3", "did you mean --epochs"]),
        ("tasks even_pairs ''", ["unknown argument ''"]),
        ("compare --preset quickstart --output OUT --masks full,topk:5", ["full,topk:5", "full topk:5"]),
        ("compare --preset quickstart --output OUT --seeds 0,1", ["--seeds", "0,1", "0 1"]),
        ("bench attention --shapes 1x8,1x16", ["1x8,1x16", "1x8 1x16"]),
        ("train even_pairs --output OUT --threads 0", ["threads", "0", "at least 1"]),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(*shlex.split(arguments.replace("TINY", shlex.join(TINY)))) == 2
    captured = capsys.readouterr()
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1, captured.err
    assert len(lines[0]) < 600
    for word in words:
        assert word in lines[0]
    assert not (tmp_path / "OUT").exists() or not any((tmp_path / "OUT").rglob("result.json"))


@pytest.mark.parametrize("text", ["training: abc", "training: null", "model: [1]", "task: parity_check", "task: 5"])
def test_a_configuration_that_says_something_else_is_not_passed_over(text, tmp_path, capsys):
    (tmp_path / "c.yaml").write_text(text)
    assert run("train", "even_pairs", *TINY, "--config", tmp_path / "c.yaml", "--output", tmp_path / "OUT") == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not (tmp_path / "OUT").exists()


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("file", "a file"),
        ("file/below", "a file is in the way"),
        pytest.param(
            "/proc/below",
            "no such file",
            marks=pytest.mark.skipif(
                not Path("/proc/self").exists(), reason="needs a folder that nobody can write in"
            ),
        ),
    ],
)
@pytest.mark.parametrize(
    "command",
    [
        ["compare", "--preset", "quickstart"],
        ["train", "even_pairs", *TINY],
        ["generate", "parity_check", "--train-size", "30"],
    ],
    ids=lambda command: command[0],
)
def test_an_unwritable_directory_is_one_line_that_says_which_and_why(command, place, why, tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    assert run(*command, "--output", tmp_path / place) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert str(tmp_path / place) in lines[0]
    assert why in lines[0]
    assert "Errno" not in lines[0]
    assert (tmp_path / "file").read_text() == "in the way"


def test_an_unreadable_file_elsewhere_is_not_blamed_on_the_output():
    from hf_semfocus.cli.errors import one_line

    error = PermissionError(errno.EACCES, "Permission denied", "/data/masks.py")
    assert one_line(error, None) == one_line(error, "runs/out") == "/data/masks.py: permission denied"
    assert one_line(error, "/data").startswith("the folder /data cannot be used (/data/masks.py: permission denied)")
    # What names no file, or no reason, stays as it is.
    assert one_line(OSError("the Hub refused"), "runs/out") == "the Hub refused"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_full_disk_is_one_line_with_the_path_and_leaves_nothing(tmp_path, monkeypatch, capsys):
    import tempfile

    from hf_semfocus.files import write_json

    # Every temporary file stands on the full device: what is written to it is refused when it is flushed.
    monkeypatch.setattr(tempfile, "mkstemp", lambda **_: (os.open("/dev/full", os.O_WRONLY), str(tmp_path / "gone")))
    with pytest.raises(OSError, match=r"No space left on device: '.*value\.json'"):
        write_json(tmp_path / "value.json", {"x": 1})
    assert run("train", "even_pairs", *TINY, "--output", tmp_path / "OUT") == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    for words in ("No space left on device", str(tmp_path / "OUT"), "free some space"):
        assert words in lines[0]
    assert not (tmp_path / "value.json").exists()
    monkeypatch.undo()
    # Where the error of a library does not name the place, the command line does.
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / "parity_check.png").symlink_to("/dev/full")
    assert run("tasks", "parity_check", "--pictures", folder) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines == [
        f"semfocus tasks: [Errno 28] No space left on device: {folder}; free some space, then start again"
    ]


def test_a_range_of_lengths_is_set_as_it_is_given(tmp_path, capsys):
    arguments = ["train", "even_pairs", *TINY, "--output", tmp_path / "OUT", "--set"]
    assert run(*arguments, "length=4-100000") == 2
    assert "length must be an integer from 1 to 4096, got 100000" in capsys.readouterr().err
    (tmp_path / "c.yaml").write_text("length: 4-100000")
    assert run("train", "even_pairs", "--config", tmp_path / "c.yaml", "--output", tmp_path / "OUT") == 2
    assert "length must be an integer from 1 to 4096, got 100000" in capsys.readouterr().err


def test_defaults_in_the_help_are_those_of_a_run():
    from hf_semfocus import SemFocusConfig
    from hf_semfocus.cli.parsing import RUN, Parser, add_run_options
    from hf_semfocus.experiments.spec import RunSpec, flat

    parser = Parser()
    add_run_options(parser)
    defaults = {**flat(RunSpec("even_pairs").to_dict()), "model.num_hidden_layers": SemFocusConfig().num_hidden_layers}
    written = {
        action.dest.removeprefix(RUN): match[1]
        for action in parser._actions
        if (match := re.search(r"\(default: (.*)\)", action.help)) and action.dest != "run.length"
    }
    assert len(written) >= 8
    assert written == {name: str(defaults[name]) for name in written}


def test_help_and_mistakes_do_not_wait_for_torch():
    code = """
import sys
import semfocus_command
for arguments in (["--version"], ["--help"], ["compare", "--help"], ["tasks", "--pictuers", "x"]):
    try:
        semfocus_command.main(arguments)
    except SystemExit as ended:
        print(ended.code)
assert not {"torch", "transformers", "datasets", "rich"} & set(sys.modules)
try:
    semfocus_command.main(["masks", "banded:3", "--length", "3"])
except SystemExit as ended:
    assert ended.code == 0
import hf_semfocus.cli.main
from transformers import AutoConfig
assert AutoConfig.for_model("semfocus").mask == "topk:5"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^\d$", done.stdout, re.MULTILINE) == ["0", "0", "0", "2"]
    assert "■ ■ ■" in done.stdout
    assert "did you mean --pictures?" in done.stderr


@pytest.mark.parametrize("told", [True, False])
def test_the_state_of_a_comparison_does_not_wait_for_torch(told, tmp_path):
    write_run_directory(tmp_path / "run", {"even_pairs": {"full": [9, 12], "topk:5": [5, "unfinished:3"]}})
    if told:
        told = {"updated": "2020-01-01T00:00:00+00:00", "ended": True, "runs": 4, "states": {"reached": 4}}
        told |= {"nodes": {}, "running": [], "seconds_left": None}
        (tmp_path / "run" / "progress.json").write_text(json.dumps(told))
    code = f"""
import sys
import semfocus_command
try:
    semfocus_command.main(["status", {str(tmp_path / "run")!r}])
finally:
    assert not {{"torch", "transformers", "datasets", "matplotlib"}} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "3 of 4 runs done" in done.stdout


def test_help_of_a_comparison_names_no_default_that_a_preset_goes_over(capsys):
    assert run("compare", "--help") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "the budget in epochs (default: the preset's or the file's)" in out
    assert "(default: 100)" not in out


def test_the_file_that_is_in_the_way_is_named(tmp_path, capsys):
    (tmp_path / "afile").write_text("mine")
    assert run("train", "even_pairs", *TINY, "--output", tmp_path / "afile" / "sub" / "one") == 2
    assert f"{tmp_path / 'afile'}: a file is in the way" in capsys.readouterr().err


def test_the_package_is_a_command_too():
    command = [sys.executable, "-m", "hf_semfocus"]
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout.split()[0]) == (0, "semfocus")


@pytest.mark.parametrize(
    ("environment", "option", "expected"),
    [(None, [], 1), ("2", [], 3), (None, ["--threads", "2"], 2), ("2", ["--threads", "2"], 2)],
)
def test_training_takes_one_thread_unless_it_is_told_otherwise(environment, option, expected, tmp_path, monkeypatch):
    import torch

    monkeypatch.delenv("OMP_NUM_THREADS")
    if environment is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", environment)
    torch.set_num_threads(3)
    try:
        assert run("train", "even_pairs", *TINY, *option, "--epochs", "1", "--output", tmp_path / "one") == 0
        assert torch.get_num_threads() == expected
    finally:
        torch.set_num_threads(1)


def test_listings(capsys):
    assert run("tasks") == 0
    out = capsys.readouterr().out
    for task in ("parity_check", "listops", "solve_equation"):
        assert task in out
    assert run("tasks", "cycle_navigation") == 0
    assert "STAY" in capsys.readouterr().out
    assert run("masks") == 0
    out = capsys.readouterr().out
    for mask in ("topk", "banded", "sink"):
        assert mask in out
    assert run("masks", "banded:3", "--length", "4") == 0
    drawn = [line.split() for line in capsys.readouterr().out.splitlines() if "■" in line]
    assert [row.count("■") for row in drawn] == [2, 3, 3, 2]


@pytest.mark.parametrize(
    "arguments",
    [["tasks"], ["masks"], ["bench", "data", "modular_arithmetic_brackets", "--rows", "8", "--repeats", "1"]],
)
def test_tables_are_readable_at_eighty_columns(arguments, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert run(*arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert not re.search("[^ =]…", "".join(lines))  # as rich ends what it cuts off; `seed=…` and "2s, …" are ours
    # A name and its numbers stand on one line, and what is text has room for a few words.
    if arguments[0] != "masks":
        assert any(re.match(r" *modular_arithmetic_brackets\*? .* 40 .*\w", line) for line in lines)
    assert max(len(line.rstrip()) for line in lines[3:]) > 60


def test_generate_writes_what_load_task_gives(tmp_path, capsys):
    from datasets import load_dataset

    from hf_semfocus.data import load_task

    sizes = {"train_size": 30, "validation_size": 10, "test_size": 20}
    flags = [part for name, size in sizes.items() for part in (f"--{name.replace('_', '-')}", size)]
    for file_format in ("parquet", "jsonl"):
        folder = tmp_path / file_format
        command = ["generate", "cycle_navigation", "--length", 9, *flags, "--format", file_format, "--output", folder]
        assert run(*command) == 0
        assert "train 30" in capsys.readouterr().out
        loaded = load_dataset(str(folder))
        expected = load_task("cycle_navigation", length=9, **sizes)
        assert {split: loaded[split].to_list() for split in loaded} == {s: expected[s].to_list() for s in expected}
        assert "semfocus generate cycle_navigation" in (folder / "README.md").read_text()
        assert run(*command) == 2
        assert "not empty" in capsys.readouterr().err
        assert run(*command, "--overwrite") == 0
        capsys.readouterr()


def test_bench_and_pictures(tmp_path, capsys):
    assert run("bench", "data", "parity_check", "listops", "--rows", "64", "--repeats", "1") == 0
    assert "examples/s" in capsys.readouterr().out
    assert run("tasks", "solve_equation", "--pictures", tmp_path) == 0
    assert (tmp_path / "solve_equation.png").read_bytes().startswith(b"\x89PNG")


OWN_MASK = OWN_STRATEGY.replace('"even"', '"every_other"')


@pytest.mark.slow
def test_a_mask_of_ones_own_is_compared_by_one_command_and_ships_in_its_checkpoint(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_masks.py").write_text(OWN_MASK)
    assert run("masks", "every_other:2", "--length", "4", "--import", "own_masks.py") == 0
    assert capsys.readouterr().out.count("■") == 8
    grid = ["--masks", "full", "every_other:3", "--seeds", "0", "--import", "own_masks.py"]
    assert run("compare", "--preset", "quickstart", *TINY, *grid, "--output", "out") == 0
    model = tmp_path / "out" / "runs" / "even_pairs" / "every_other-3" / "seed-0" / "model"
    assert (model / "custom_own_masks.py").is_file()
    card = (model / "README.md").read_text()
    assert "--import own_masks.py" in card
    assert "custom_own_masks.py" in card
    assert str(tmp_path) not in card
    # A run's spec.json asks for the same run while the mask's code is the same.
    spec = model.parent / "spec.json"
    assert len(json.loads(spec.read_text())["mask_source"]) > 8
    other = spec.read_text().replace(json.loads(spec.read_text())["mask_source"], "0" * 16)
    (tmp_path / "other.json").write_text(other)
    assert run("train", "even_pairs", "--config", "other.json", "--output", "again") == 2
    assert "leave mask_source out" in capsys.readouterr().err
    assert not (tmp_path / "again").exists()
    (tmp_path / "broken.py").write_text("1 / 0")
    capsys.readouterr()
    for name, words in (
        ("broken.py", "ZeroDivisionError"),
        ("missing.py", "no such file"),
        ("no_such_module", "no_such_module"),
    ):
        assert run("masks", "--import", name) == 2
        assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [["train", "even_pairs"], ["compare", "--preset", "quickstart", "--masks", "full"]]
)
def test_a_mask_that_no_checkpoint_could_hold_is_refused_before_training(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name = f"own-{command[0]}"
    (tmp_path / f"{name}.py").write_text(OWN_MASK.replace("every_other", f"other_{command[0]}"))
    mask = [f"other_{command[0]}:2"] if command[0] == "compare" else ["--mask", f"other_{command[0]}:2"]
    assert run(*command, *mask, *TINY, "--import", f"{name}.py", "--output", "OUT") == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert f"{name}.py" in lines[0]
    assert not (tmp_path / "OUT").exists()


def test_train_shows_both_accuracies_and_goes_on_when_started_again(tmp_path, capsys):
    assert run("train", "even_pairs", *TINY, "--mask", "topk:3", "--output", tmp_path / "one") == 0
    out = capsys.readouterr().out
    assert "epoch 2/2" in out
    assert "held-out" in out
    result = json.loads((tmp_path / "one" / "result.json").read_text())
    assert result["epochs_trained"] == 2
    assert run("train", "even_pairs", *TINY, "--mask", "topk:3", "--output", tmp_path / "one") == 0
    assert "epoch 1/2" not in capsys.readouterr().out
    assert run("train", "even_pairs", *TINY, "--mask", "topk:4", "--output", tmp_path / "one") == 2
    assert "mask: 'topk:3' there, 'topk:4' asked" in capsys.readouterr().err
    # Batches of another size would not be those that it would have had.
    other = ["--batch-size", "25", "--epochs", "3"]
    assert run("train", "even_pairs", *TINY, *other, "--mask", "topk:3", "--output", tmp_path / "one") == 2
    assert "training.batch_size: 50 there, 25 asked" in capsys.readouterr().err


@pytest.mark.slow
def test_compare_and_report(tmp_path, capsys):
    out = tmp_path / "out"
    grid = ["--masks", "full", "topk:3", "--seeds", "0", "--jobs", "2"]
    assert run("compare", "--preset", "quickstart", *TINY, *grid, "--output", out) == 0
    printed = capsys.readouterr().out
    assert "topk:3" in printed
    assert str(out / "report.html") in printed.replace("\n", "")
    assert len(list(out.glob("runs/even_pairs/*/seed-0/model/README.md"))) == 2
    summary = json.loads((out / "summary.json").read_text())
    assert len(summary["runs"]) == 2
    assert "length 20 → 12" in summary["note"]
    assert summary["name"] == "quickstart (changed)"
    page = (out / "report.html").read_text()
    (out / "report.html").unlink()
    assert run("report", out) == 0
    assert (out / "report.html").read_text() == page
    # What it recorded asks for the same again: nothing is trained, and the report still says what was changed.
    trained = {path: path.stat().st_mtime_ns for path in out.rglob("history.jsonl")}
    assert run("compare", "--config", out / "experiment.json", "--output", out) == 0
    assert {path: path.stat().st_mtime_ns for path in out.rglob("history.jsonl")} == trained
    assert json.loads((out / "summary.json").read_text())["note"] == summary["note"]
    # … and neither the command that began it nor the first change is lost by going on from it.
    record = json.loads((out / "experiment.json").read_text())
    assert record["command"].startswith("semfocus compare --preset quickstart")
    assert "&&" not in record["command"]
    assert run("compare", "--config", out / "experiment.json", "--output", out, "--epochs", "1") == 0
    again = json.loads((out / "experiment.json").read_text())
    assert again["command"].startswith(f"{record['command']} && semfocus compare --config ")
    assert again["name"] == "quickstart (changed)"
    assert again["note"].startswith(summary["note"])
    assert "training.epochs 2 → 1" in again["note"]
