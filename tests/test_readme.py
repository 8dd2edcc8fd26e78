"""The README is short, and its blocks and those of docs/ are what the stored results give."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hf_semfocus.files import read_record
from hf_semfocus.summary_schema import Summary
from recipes.reproduction import blocks, readme
from tests.small import run

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "recipes" / "results"
README = (ROOT / "README.md").read_text(encoding="utf-8")


def stored(name):
    return (RESULTS / name).read_text(encoding="utf-8")


def test_a_newcomer_reads_it_in_a_few_minutes():
    assert len(README.split()) <= 1500


@pytest.mark.parametrize(
    ("name", "section"),
    [
        (
            "quickstart",
            lambda: readme.quickstart_section(read_record(RESULTS / "quickstart/summary.json", Summary, "")),
        ),
        ("cost", lambda: readme.printed_section(stored("cost.txt"))),
        ("data", lambda: readme.printed_section(stored("data.txt"))),
        ("attention", lambda: readme.attention_section(stored("attention.txt"))),
        ("costs", lambda: readme.costs_section(*map(stored, ("cost.txt", "attention.txt", "attention_intel.txt")))),
        ("minilm", lambda: readme.minilm_section(stored("sparse_minilm/table.md"))),
        ("settings", lambda: readme.settings_section(readme.stored_settings())),
        ("claims", lambda: readme.claims_section(json.loads(stored("claims.json")))),
    ],
)
def test_a_block_is_what_is_stored(name, section):
    assert blocks.block(name) == section()


def test_the_five_rows_are_stored_verdicts_and_leave_out_no_speed_and_nothing_less_favourable():
    claims = {claim["name"]: claim for claim in json.loads(stored("paper.json"))["claims"]}
    five, _ = re.findall(r"(?:^\|.*\n?)+", blocks.block("paper"), re.MULTILINE)
    _, _, *rows = [line.split(" | ") for line in five.splitlines()]
    names = [re.match(r"\[(.*)\]\(recipes/results/paper.md#", row[4])[1] for row in rows]
    assert len(set(names)) == 5
    for name, (_, _, effect, verdict, _) in zip(names, rows, strict=True):
        judged = claims[name]["judgement"]
        assert re.match(r"\**([a-z ]+)", verdict)[1].strip() == judged["verdict"].replace("_", " ")
        if judged["p"] is not None:
            assert f"p = {judged['p']:.2g}" in effect
    tested = {name for name, claim in claims.items() if claim["judgement"]["verdict"] != "not_tested"}
    left_out = tested - set(names)
    assert not [name for name in left_out if name.startswith("faster:")]
    shown = [claims[name]["judgement"]["estimate_low"] for name in names if name.startswith("heldout:")]
    assert all(
        claims[name]["judgement"]["estimate_low"] >= max(shown) for name in left_out if name.startswith("heldout:")
    )


def test_what_it_says_of_a_sharper_start_is_what_the_sweep_says():
    told, text = json.loads(stored("paper.json")), " ".join(README.split())
    sharper = told["law"]["instead"]
    assert "With 2.8 times the initial query and key weights" in text
    assert [one["low"] > 1 for one in sharper["full;gain=2.8"].values()] == [True] * 3
    assert "with sparsemax (`normalizer`) on two, the third open" in text
    assert sorted(one["verdict"] for one in sharper["full;sparsemax"].values()) == [
        "supported",
        "supported",
        "undecided",
    ]
    assert (
        "On stack_manipulation, which does not, nothing was decided for it, and blocks of 5 with a global token were faster"
        in text
    )
    verdicts = {
        one["mask"]: one["judgement"]["verdict"]
        for one in told["further"]["tier2"]
        if one["record"]["name"] == "stack_manipulation"
    }
    assert (verdicts["topk:9"], verdicts["block:5+1global"]) == ("undecided", "supported")


def test_all_figures_about_attention_are_shown():
    page = blocks.page("attention").read_text("utf-8")
    for line in stored("attention.txt").splitlines():
        assert line in page
    assert stored("attention_profile.txt").startswith("$ semfocus bench attention --profile ")


def test_a_sweep_differs_in_the_gain_alone():
    summaries = readme.stored_settings()
    panels = [axes.get_title(loc="left") for axes in readme.sweep_picture(summaries).axes]
    assert panels == ["even_pairs, reduced size", "missing_duplicate_string, reduced size", "even_pairs, paper size"]
    summaries["gain"].tasks[0].hyperparameters["training"]["batch_size"] = 7
    assert [axes.get_title(loc="left") for axes in readme.sweep_picture(summaries).axes] == panels[1:]


def test_the_stored_summary_belongs_to_the_preset_as_it_is():
    from hf_semfocus.experiments.presets import preset

    runs = json.loads(stored("quickstart/summary.json"))["runs"]
    units = preset("quickstart").units()
    assert {(run["task"], run["mask"], run["seed"]) for run in runs} == {(u.task, u.mask, u.seed) for u in units}
    assert {run["budget"] for run in runs} == {unit.training.epochs for unit in units}


@pytest.mark.slow
def test_the_mask_of_ones_own_trains_by_the_command_line_and_loads_without_the_package(tmp_path, monkeypatch):
    from tests.model.isolated import PREAMBLE

    monkeypatch.chdir(tmp_path)
    (block,) = (b for b in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "@register_mask_strategy" in b)
    (tmp_path / "my_masks.py").write_text(block)
    options = "--mask dilated:2+sink:1 --import my_masks.py --length 20 --layers 1 --epochs 1 --output out"
    assert run("train", "even_pairs", *shlex.split(options)) == 0
    code = f"""{PREAMBLE}
from transformers import pipeline
classify = pipeline("text-classification", model="out/model", trust_remote_code=True)
print(classify.model.config.mask, classify("0 1 1")[0]["label"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "dilated:2+sink:1" in done.stdout


def test_figures_of_a_missing_or_damaged_folder_change_nothing(tmp_path, monkeypatch, capsys):
    pages = {path: path.read_bytes() for path in map(blocks.page, blocks.PLACES)}
    monkeypatch.setattr(readme, "RESULTS", tmp_path / "results")
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("summary.csv", "speedups.csv"):
        (folder / name).touch()
    for text, words in (("{", "not JSON"), ("{}", "is missing"), ("[]", "is damaged")):
        (folder / "summary.json").write_text(text)
        assert readme.main([str(folder)]) == 2
        assert words in capsys.readouterr().err
    nowhere = str(tmp_path / "nowhere")
    for option in ([], ["--cost"], ["--data"], ["--attention"], ["--minilm"]):
        assert readme.main([*option, nowhere]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert nowhere in line
    # The line on costs needs figures of attention as well, of which none are there.
    assert readme.main(["--cost", str(RESULTS / "cost.txt")]) == 2
    assert "attention.txt" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()
    assert pages == {path: path.read_bytes() for path in pages}
