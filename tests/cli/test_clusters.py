"""Clusters and URLs from the command line: the commands that read a URL, and what is said where one cannot be used."""

import errno
import os

import fsspec
import pytest
import torch
from fsspec.spec import AbstractFileSystem

from hf_semfocus.comparison import bucket, storage

from .test_cli import TINY, run

COMPARE = ["compare", "--preset", "quickstart", "--tasks", "even_pairs", "--seeds", "0", *TINY]


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
    ],
)
def test_what_cannot_be_used_is_one_line_and_leaves_nothing(options, words, tmp_path, capsys):
    before = sorted(tmp_path.iterdir())
    assert words in refused(capsys, *COMPARE, "--output", tmp_path / "out", *options)
    assert sorted(tmp_path.iterdir()) == before


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
