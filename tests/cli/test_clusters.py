"""Clusters and URLs from the command line: the commands that read a URL, and what is said where one cannot be used."""

import errno
import json
import os

import fsspec
import pytest
import torch
from fsspec.spec import AbstractFileSystem

from hf_semfocus.comparison import bucket, storage

from .test_cli import TINY, run

COMPARE = ["compare", "--preset", "quickstart", "--tasks", "even_pairs", "--seeds", "0", *TINY]

NO_PLACES = ("s3://", "memory://", "s3:/b/x", "simplecache::s3://x/y", "file:/tmp/x", "C://x", "file://", "file://x")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "CACHE", tmp_path / "cache")


def refused(capsys, *arguments):
    """The one line."""
    assert run(*arguments) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--engine", "ray", "--address", "127.0.0.1:1"], "no Ray cluster answers there"),
        (["--engine", "ray", "--address", "there"], "HOST:PORT"),
        (["--engine", "slurm"], "allowed: inline, local, ray"),
        (["--cpus-per-run", "1000000"], "the cores of this machine"),
        (["--gpus-per-run", "0.5"], "--engine ray"),
        (["--output", "s4://bucket/x"], "Protocol not known"),
        (["--output", "gs://bucket/x"], "needs a library that is not installed"),
        (["--engine", "inline", "--cpus-per-run", "1000000"], "the cores of this machine"),
        (["--engine", "inline", "--gpus-per-run", "1"], "--engine ray"),
        (["--output", "memory://b/a"], "memory://b/a is the memory of one process; allowed: with --engine inline"),
        (["--output", "dir://x"], "dir://x"),
        (["--output", "reference://x"], "reference://x"),
        (["--output", "ftp://127.0.0.1:9/x"], "ftp://127.0.0.1:9/x"),
        *((["--output", place], place) for place in NO_PLACES),
    ],
)
def test_what_cannot_be_used_is_one_line_and_leaves_nothing(options, words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    assert words in refused(capsys, *COMPARE, "--output", tmp_path / "out", *options)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "arguments",
    [
        "report memory://b/a",
        "status memory://b/a",
        "card memory://b/a",
        "demo memory://b/a --serve",
        "demo run --output memory://b/a",
        "train even_pairs --output memory://b/a",
    ],
)
def test_a_url_that_cannot_be_read_or_written_is_named(arguments, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "memory://b/a" in refused(capsys, *arguments.split())
    assert not list(tmp_path.iterdir())


def test_a_tilde_in_quotes_is_the_home_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert f"{tmp_path}/x is not a run directory" in refused(capsys, "report", "~/x")


PROGRESS = {"updated": "2020-01-01T00:00:00+00:00", "runs": 1, "ended": True, "states": {}, "nodes": {}, "running": []}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(
            ("progress.json", text)
            for text in (b"{", b"\xff", b"[]", b'{"states": {"a": "b"}, "runs": 1, "ended": true}')
        ),
        ("progress.json", json.dumps({**PROGRESS, "seconds_left": None, "updated": "2020-01-01"}).encode()),
        ("experiment.json", b"{"),
        ("placements.json", b'{"a": 1}'),
        *(("manifests/a/b/seed-0/000001.2-0001-00000000.json", text) for text in (b"{}", b"[]", b"\xff")),
        ("manifests/a/b/seed-0/000001.2-0001-00000000.json", b'{"objects": {}, "records": {"spec.json": 5}}'),
        ("manifests/a/b/seed-0/000001.2-0001-00000000.json", b'{"objects": {}, "records": {"spec.json": "{"}}'),
        ("manifests/a/b/seed-0/000001.2-0001-00000000.json", b'{"objects": {"model": {}}, "records": {}}'),
        *(
            (
                "manifests/a/b/seed-0/000001.2-0001-00000000.json",
                json.dumps({"objects": {part: {"object": "o", "blake2b": "b"}}, "records": {}}).encode(),
            )
            for part in ("../../seed-1", "/etc", ".", "")
        ),
    ],
)
def test_a_damaged_file_under_a_url_is_named(name, content, capsys):
    files = fsspec.filesystem("memory")
    try:
        files.pipe_file("/damaged/experiment.json", b'{"tasks": {}, "masks": ["full"], "seeds": []}')
        files.pipe_file(f"/damaged/{name}", content)
        assert f"memory://damaged/{name} is damaged" in refused(capsys, "status", "memory://damaged")
    finally:
        files.rm("/damaged", recursive=True)


def test_a_newer_manifest_is_refused(capsys):
    files = fsspec.filesystem("memory")
    try:
        files.pipe_file("/newer/experiment.json", b'{"tasks": {}, "masks": ["full"], "seeds": []}')
        name = "/newer/manifests/a/b/seed-0/000001.2-0001-00000000.json"
        files.pipe_file(name, b'{"format": 99, "objects": {}, "records": {}}')
        assert "newer hf-semfocus: format 99" in refused(capsys, "status", "memory://newer")
    finally:
        files.rm("/newer", recursive=True)


def test_no_ray_installed_is_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "hf-semfocus[ray]" in refused(capsys, *COMPARE, "--output", tmp_path / "out", "--engine", "ray")
    assert not (tmp_path / "out").exists()


class Denied(AbstractFileSystem):
    """Nothing may be written, and under `secret` nothing may be read."""

    protocol = "denied"

    def cat_file(self, path, **options):
        raise (PermissionError if "secret" in path else FileNotFoundError)("Access Denied")

    def find(self, path, **options):
        return []

    def makedirs(self, path, exist_ok=False):
        raise PermissionError("Access Denied")


@pytest.mark.parametrize("name", ["secret", "open"])
def test_a_url_without_permission_is_one_line_at_once(name, monkeypatch, capsys):
    def waits(seconds):
        raise AssertionError("asked again")

    fsspec.register_implementation("denied", Denied, clobber=True)
    monkeypatch.setattr(bucket.time, "sleep", waits)
    line = refused(capsys, *COMPARE, "--engine", "inline", "--output", f"denied://{name}/x")
    assert f"denied://{name}/x cannot be" in line
    assert "Access Denied" in line


def test_a_folder_without_permission_is_one_line(tmp_path, monkeypatch, capsys):
    make = os.makedirs  # the system lets root do everything

    def denied(path, *more, **options):
        if str(path).startswith(str(tmp_path / "out")):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        make(path, *more, **options)

    monkeypatch.setattr(os, "makedirs", denied)
    line = refused(capsys, *COMPARE, "--engine", "inline", "--output", tmp_path / "out")
    assert f"the folder {tmp_path / 'out'} cannot be used" in line


@pytest.mark.slow
def test_a_url_is_compared_reported_carded_and_analyzed(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    url = "memory://from-the-command-line"
    try:
        options = ["--masks", "full", "topk:3", "--engine", "inline", "--cpus-per-run", "2"]
        assert run(*COMPARE, *options, "--output", url) == 0
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    files = fsspec.filesystem("memory")
    files.rm("/from-the-command-line/report.html")
    assert run("report", url) == 0
    assert f"report: {url}/report.html" in capsys.readouterr().out
    assert files.exists("/from-the-command-line/report.html")
    assert run("status", url) == 0
    assert "2 of 2 runs done" in capsys.readouterr().out
    assert run("card", url, "--output", tmp_path / "cards") == 0
    assert len(list((tmp_path / "cards").glob("*.md"))) == 2
    ran = f"{url}/runs/even_pairs/topk-3/seed-0"
    assert run("analyze", ran, "--examples", "20", "--directions", "1", "--output", tmp_path / "analysis") == 0
    assert (tmp_path / "analysis" / "analysis.json").is_file()
