"""`hf_semfocus.compare`: what it refuses, before anything is written."""

import subprocess
import sys

import pytest

from hf_semfocus import Experiment, compare
from tests.small import TINY

SCRIPT = f"""
from hf_semfocus import Experiment, compare
compare(Experiment("x", {{"even_pairs": {{}}}}, ("full",), (0,), {TINY!r}), "out", jobs=1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("stdin", [False, True])
def test_a_script_without_a_guard_is_told_so_once(tmp_path, stdin):
    (tmp_path / "script.py").write_text(SCRIPT)
    with (tmp_path / "script.py").open() as file:
        script = ["-"] if stdin else ["script.py"]
        ended = subprocess.run(
            [sys.executable, *script], cwd=tmp_path, stdin=file, stderr=subprocess.PIPE, text=True, timeout=150
        )
    assert ended.returncode == 1
    assert ended.stderr.count("Traceback") == 1
    assert 'if __name__ == "__main__":' in ended.stderr.splitlines()[-1]
    assert not (tmp_path / "out" / "runs").exists()
    assert not (stdin and (tmp_path / "out").exists())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"output": None}, "is None; allowed: a path or a URL"),
        ({"output": 3}, "is 3;"),
        ({"output": b"oq"}, "is b'oq';"),
        ({"output": ""}, "is '';"),
        ({"jobs": 1.5}, "jobs is 1.5; allowed: a whole number"),
        ({"jobs": "2"}, "jobs is '2';"),
        ({"jobs": True}, "jobs is True;"),
        ({"experiment": "x"}, "experiment is 'x'; allowed: .*quickstart.*YAML"),
        ({"experiment": {}}, "experiment is {};"),
        ({"experiment": None}, "experiment is None;"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_written(tmp_path, monkeypatch, change, words):
    monkeypatch.chdir(tmp_path)
    asked = {"experiment": Experiment("x", {"even_pairs": {}}, ("full",), (0,), TINY), "output": "out"}
    with pytest.raises(ValueError, match=words):
        compare(**asked | change)
    assert not list(tmp_path.iterdir())
