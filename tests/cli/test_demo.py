"""`semfocus demo`: a folder that a static Space takes."""

import shutil

import pytest
import yaml

from hf_semfocus.cli.main import main
from tests.report.conftest import run_directories

__all__ = ["run_directories"]


def test_a_static_space(run_directories, tmp_path):
    shutil.copytree(run_directories["quickstart"], tmp_path / "run")
    with pytest.raises(SystemExit) as ended:
        main(["demo", str(tmp_path / "run"), "--output", str(tmp_path / "space")])
    assert not ended.value.code
    assert (tmp_path / "space" / "index.html").read_bytes() == (tmp_path / "run" / "report.html").read_bytes()
    _, front, _ = (tmp_path / "space" / "README.md").read_text(encoding="utf-8").split("---\n")
    assert yaml.safe_load(front)["sdk"] == "static"


def test_a_folder_without_a_comparison_is_named(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["demo", str(tmp_path), "--output", str(tmp_path / "space")])
    assert ended.value.code == 2
    assert str(tmp_path) in capsys.readouterr().err
    assert not (tmp_path / "space").exists()
