"""What the README prints is what its commands gave, and its code runs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hf_semfocus.files import read_record
from hf_semfocus.summary_schema import Summary
from recipes.reproduction import readme as updater

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def section(name):
    return re.search(f"<!-- {name}:begin -->\n(.*?)\n<!-- {name}:end -->", README, re.DOTALL)[1]


def test_the_quickstart_s_table_and_picture_are_the_stored_results():
    stored = ROOT / "recipes" / "results" / "quickstart"
    summary = read_record(stored / "summary.json", Summary, "")
    assert section("quickstart") == updater.quickstart_section(summary)
    for picture in re.findall(r"!\[.*?\]\((.*?)\)", README):
        assert (ROOT / picture).is_file()


def test_the_stored_summary_belongs_to_the_preset_as_it_is():
    from hf_semfocus.experiments.presets import preset

    stored = json.loads((ROOT / "recipes" / "results" / "quickstart" / "summary.json").read_text(encoding="utf-8"))
    units = preset("quickstart").units()
    assert {(run["task"], run["mask"], run["seed"]) for run in stored["runs"]} == {
        (u.task, u.mask, u.seed) for u in units
    }
    assert {run["budget"] for run in stored["runs"]} == {unit.training.epochs for unit in units}


@pytest.mark.parametrize("name", ["cost", "data"])
def test_the_benchmarks_sections_are_what_they_printed(name):
    printed = (ROOT / "recipes" / "results" / f"{name}.txt").read_text(encoding="utf-8")
    assert section(name) == updater.printed_section(printed)


def test_the_section_about_attention_is_what_the_benchmark_printed():
    stored = ROOT / "recipes" / "results"
    printed = (stored / "attention.txt").read_text(encoding="utf-8")
    assert section("attention") == updater.attention_section(printed)
    for line in printed.splitlines():
        assert line in README
    first, *_ = (stored / "attention_profile.txt").read_text(encoding="utf-8").splitlines()
    assert first.startswith("$ semfocus bench attention --profile ")


def test_the_section_about_a_pretrained_model_is_the_recipe_s_table():
    table = (ROOT / "recipes" / "results" / "sparse_minilm" / "table.md").read_text(encoding="utf-8")
    assert section("minilm") == updater.minilm_section(table)


def test_the_section_about_hyperparameters_is_the_stored_results():
    stored = updater.stored_settings()
    assert section("settings") == updater.settings_section(stored)
    panels = [axes.get_title(loc="left") for axes in updater.sweep_picture(stored).axes]
    assert panels == ["even_pairs, reduced size", "missing_duplicate_string, reduced size", "even_pairs, paper size"]
    stored["gain"]["tasks"][0]["hyperparameters"]["training"]["batch_size"] = 7
    fewer = [axes.get_title(loc="left") for axes in updater.sweep_picture(stored).axes]
    assert fewer == panels[1:]  # what differs in more than the gain is no sweep of it


@pytest.mark.slow
def test_every_python_block_runs(tmp_path, monkeypatch):
    """In order, in one folder, against a run directory made as the README says (two epochs instead of the preset's)."""
    from hf_semfocus.cli.main import main

    monkeypatch.chdir(tmp_path)
    folder = "runs/quickstart/runs/even_pairs/topk-5/seed-0"
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "train",
                "even_pairs",
                "--mask",
                "topk:5",
                "--length",
                "20",
                "--layers",
                "3",
                "--epochs",
                "1",
                "--output",
                folder,
            ]
        )
    assert not ended.value.code
    assert len(BLOCKS) == 6
    names = {"__name__": "readme"}
    for block in BLOCKS:
        # Those are a file (below), and a push (tests/hub, where there is a Hub to push to).
        if "@register_mask_strategy" not in block and "push_to_hub" not in block:
            exec(compile(block, "README.md", "exec"), names)


@pytest.mark.slow
def test_the_mask_of_ones_own_trains_by_the_command_line_and_loads_without_the_package(tmp_path, monkeypatch):
    from hf_semfocus.cli.main import main
    from tests.model.isolated import PREAMBLE

    monkeypatch.chdir(tmp_path)
    (block,) = (block for block in BLOCKS if "@register_mask_strategy" in block)
    (tmp_path / "my_masks.py").write_text(block)
    options = [
        "--mask",
        "dilated:2+sink:1",
        "--import",
        "my_masks.py",
        "--length",
        "20",
        "--layers",
        "1",
        "--epochs",
        "1",
    ]
    with pytest.raises(SystemExit) as ended:
        main(["train", "even_pairs", *options, "--output", "out"])
    assert not ended.value.code
    code = f"""{PREAMBLE}
from transformers import pipeline
classify = pipeline("text-classification", model="out/model", trust_remote_code=True)
print(classify.model.config.mask, classify("0 1 1")[0]["label"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "dilated:2+sink:1" in done.stdout


def test_every_command_line_parses():
    """`semfocus …` lines of the README go through the parser; what they name exists."""
    from hf_semfocus.cli.main import parser

    lines = re.findall(r"^semfocus (.*?)(?:\s+#.*)?$", README, re.MULTILINE)
    assert len(lines) >= 3
    for line in lines:
        parser().parse_args(line.split())
    for path in re.findall(r"recipes/[\w/.]+\.(?:yaml|py)", README):
        assert (ROOT / path).is_file(), path
    for target in re.findall(r"^make ([\w-]+)", README, re.MULTILINE):
        assert f"\n{target}:" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_figures_of_a_missing_or_damaged_folder_change_nothing(tmp_path, monkeypatch, capsys):
    readme = ROOT / "README.md"
    monkeypatch.setattr(updater, "RESULTS", tmp_path / "results")
    before = readme.read_bytes()
    run = tmp_path / "run"
    run.mkdir()
    for name in ("summary.csv", "speedups.csv"):
        (run / name).touch()
    for text, words in (("{", "not JSON"), ("{}", "is missing"), ("[]", "is damaged")):
        (run / "summary.json").write_text(text)
        assert updater.main([str(run)]) == 2
        assert words in capsys.readouterr().err
    nowhere = str(tmp_path / "nowhere")
    for arguments in (
        [nowhere],
        ["--cost", nowhere],
        ["--data", nowhere],
        ["--attention", nowhere],
        ["--minilm", nowhere],
    ):
        assert updater.main(arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert nowhere in line
    assert not (tmp_path / "results").exists()
    assert readme.read_bytes() == before
