"""Where the command line prints and writes: any stream, files before words, links followed."""

import io
import os
import sys

import pytest

from hf_semfocus.cli.progress import ComparisonBars
from hf_semfocus.cli.terminal import console
from hf_semfocus.comparison.compare import Progress
from hf_semfocus.experiments.spec import RunSpec
from tests.small import run

SIZES = ["--length", "8", "--train-size", "40", "--validation-size", "10", "--test-size", "10"]
TRAIN = ["train", "even_pairs", *SIZES, "--layers", "1", "--epochs", "1", "--set", "model.hidden_size=8"]
ANALYZE = ["--examples", "4", "--batch-size", "4", "--directions", "1"]


def redirected(encoding, monkeypatch):
    """Standard output as a redirect has it where the locale is not UTF-8; narrow, dumb, without colours."""
    for name, value in {"COLUMNS": "20", "TERM": "dumb", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")
    monkeypatch.setattr(sys, "stdout", stream)

    def text():
        stream.flush()
        return stream.buffer.getvalue().decode(encoding)

    return text


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_stream_that_is_not_utf8_gets_what_it_can_take(encoding, monkeypatch, tmp_path):
    printed = redirected(encoding, monkeypatch)
    assert run("masks", "topk:3", "--length", "16") == 0
    rows = printed().splitlines()[-16:]
    assert [row.split().count("#") for row in rows] == [3] * 16  # not ■, and not wrapped at 20 columns
    assert run("masks") == 0
    assert "topk:k" in printed()
    assert "topp:p" in printed()
    assert run("tasks", "--pictures", tmp_path / "pictures") == 0
    assert (tmp_path / "pictures" / "listops.png").is_file()
    assert run("tasks", "solve_equation") == 0
    assert run("generate", "even_pairs", *SIZES, "--output", tmp_path / "data") == 0
    assert run("bench", "data", "parity_check", "--rows", "8", "--repeats", "1") == 0
    assert run(*TRAIN, "--mask", "topk:3", "--output", tmp_path / "one") == 0
    assert "epoch 1/1" in printed()
    assert run("card", tmp_path / "one") == 0


@pytest.mark.slow
def test_the_tables_of_long_work_reach_such_a_stream_too(monkeypatch, tmp_path, no_workers):
    redirected("ascii", monkeypatch)
    out = tmp_path / "out"
    grid = ["--tasks", "even_pairs", "--masks", "full", "topk:3", "--seeds", "0", "--jobs", "1"]
    assert run("compare", "--preset", "quickstart", "--output", out, *grid, *TRAIN[2:]) == 0
    assert run("report", out) == 0
    assert run("card", out) == 0
    model = out / "runs" / "even_pairs" / "topk-3" / "seed-0"
    assert run("analyze", model, *ANALYZE, "--output", tmp_path / "analysis") == 0
    bench = ["bench", "attention", "--masks", "topk:3", "--shapes", "1x16", "--quick", "--output", tmp_path / "bench"]
    assert run(*bench) == 0
    assert run("bench", "attention", "--profile", "topk:3", "1x16", "--output", tmp_path / "profile") == 0


class Gone(io.TextIOBase):
    """A stream whose reader has gone, as `| head` leaves it."""

    def write(self, text):
        if text.strip():
            raise BrokenPipeError
        return len(text)

    def fileno(self):
        return os.open(os.devnull, os.O_WRONLY)


@pytest.mark.slow
def test_files_are_there_even_if_nothing_can_be_printed(tmp_path, monkeypatch, no_workers):
    one, out = tmp_path / "one", tmp_path / "out"
    assert run(*TRAIN, "--mask", "topk:3", "--output", one) == 0
    grid = ["--tasks", "even_pairs", "--masks", "full", "topk:3", "--seeds", "0", "--jobs", "1"]
    assert run("compare", "--preset", "quickstart", "--output", out, *grid, *TRAIN[2:]) == 0
    (out / "report.html").unlink()
    monkeypatch.setattr(sys, "stdout", Gone())
    run("report", out)
    assert (out / "report.html").is_file()
    run("tasks", "even_pairs", "--pictures", tmp_path / "pictures")
    assert (tmp_path / "pictures" / "even_pairs.png").is_file()
    bench = ["bench", "attention", "--masks", "full", "--shapes", "1x16", "--quick", "--output", tmp_path / "bench"]
    run(*bench)
    assert (tmp_path / "bench" / "attention.json").is_file()
    run("bench", "attention", "--profile", "topk:3", "1x16", "--output", tmp_path / "profile")
    assert (tmp_path / "profile" / "attention_profile.txt").is_file()


def link(tmp_path, name, there):
    """A link to a folder on a bigger disk, which is there or is yet to be made."""
    target = tmp_path / "big" / name
    if there:
        target.mkdir(parents=True)
    (tmp_path / name).symlink_to(target)
    return tmp_path / name, target


@pytest.mark.parametrize("there", [True, False], ids=["target is there", "target is yet to be made"])
def test_links_are_followed(there, tmp_path):
    data, target = link(tmp_path, "data", there)
    generate = ["generate", "even_pairs", *SIZES, "--output", data]
    assert run(*generate) == 0
    first = (target / "train.parquet").read_bytes()
    assert run(*generate, "--seed", "1", "--overwrite") == 0
    assert data.is_symlink()
    assert (target / "train.parquet").read_bytes() != first
    assert [path.name for path in target.parent.iterdir()] == ["data"]
    one, target = link(tmp_path, "one", there)
    assert run(*TRAIN, "--mask", "topk:3", "--output", one) == 0
    cards, card_target = link(tmp_path, "cards", there)
    assert run("card", one, "--output", cards) == 0
    pictures, picture_target = link(tmp_path, "pictures", there)
    assert run("tasks", "even_pairs", "--pictures", pictures) == 0
    bench, bench_target = link(tmp_path, "bench", there)
    assert run("bench", "attention", "--profile", "topk:3", "1x16", "--output", bench) == 0
    for place in (one, cards, pictures, bench):
        assert place.is_symlink()
    assert (target / "model" / "README.md").is_file()
    assert len(list(card_target.glob("*.md"))) == 1
    assert (picture_target / "even_pairs.png").is_file()
    assert (bench_target / "attention_profile.txt").is_file()


def test_a_linked_file_stays_a_link(tmp_path):
    from hf_semfocus.files import atomic_write

    for number, content in enumerate(("new", b"new")):
        target, link = tmp_path / "elsewhere" / f"{number}.txt", tmp_path / f"{number}.txt"
        link.symlink_to(target)
        atomic_write(link, content)
        assert link.is_symlink()
        assert target.read_text() == "new"


def test_brackets_in_errors_and_paths_are_text(capsys):
    unit = RunSpec.from_dict({"task": "even_pairs", "mask": "full", "length": 8})
    error = "ValueError: not one of [/data/a, /data/b] [enforce fail]"
    with ComparisonBars(1, console()) as bars:
        bars.update([Progress(unit)])
        bars.update([Progress(unit, "failed", error=error)])
    console().print("report: runs/[a]/report.html")
    line, path = capsys.readouterr().out.splitlines()
    assert line == f"failed    even_pairs full seed 0: {error}"
    assert path == "report: runs/[a]/report.html"
