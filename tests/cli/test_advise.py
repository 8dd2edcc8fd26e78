"""`semfocus advise`: two sentences, from a task, a run or a checkpoint, that say no more than the evidence does."""

import json
import re

import pytest

from hf_semfocus.cli.main import main
from hf_semfocus.experiments.spec import RunSpec
from hf_semfocus.training.results import untrained_attention
from hf_semfocus.training.run import train_run

SMALL = ["--length", "12", "--layers", "1", "--train-size", "100", "--test-size", "20"]
SMALL += ["--set", "validation_size=20", "model.hidden_size=16"]


def change(label, task, verdict, low=1.2):
    numbers = {"n": 6, "estimate_low": low * 1.5, "low": low, "high": low * 2}
    return {"label": label, "change": f"--set model.x={label}", "task": task, "verdict": verdict, **numbers}


def evidence(*changes, entropy=(0.98, 1.0)):
    tasks = sorted({change["task"] for change in changes} - {None}) or ["even_pairs"]
    return {"format": 1, "tasks": tasks, "baseline_entropy": list(entropy), "changes": list(changes)}


def said(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["advise", *map(str, arguments)])
    told = capsys.readouterr()
    return ended.value.code or 0, told.out.strip(), told.err


@pytest.fixture
def run_folder(tmp_path):
    spec = RunSpec.from_dict({
        "task": "even_pairs", "mask": "topk:3", "length": 12, "train_size": 100, "validation_size": 20,
        "test_size": 20, "model": {"hidden_size": 16, "num_hidden_layers": 1, "attention_gain": 2.0},
        "training": {"epochs": 1},
    })  # fmt: skip
    train_run(spec, tmp_path / "run")
    return tmp_path / "run", untrained_attention(spec)


def test_a_task_is_looked_at_with_the_papers_recipe_and_what_is_asked(capsys):
    code, out, _ = said(capsys, "even_pairs", "--seed", 3, *SMALL)
    assert code == 0
    assert "under full on even_pairs (seed 3, gain 1) has a normalised entropy of 0.9" in out
    assert "stored evidence" in out  # what came with the package
    assert "\n" not in out
    wide = said(capsys, "even_pairs", "--mask", "topk:5", *SMALL)[1]
    assert re.search(
        r"under topk:5 on .* entropy of 0\.59\d \(0\.9\d+ without the mask\)", wide
    )  # ln 5 / ln 15, padded


@pytest.mark.parametrize("what", ["", "model"])
def test_a_run_and_its_checkpoint_tell_the_attention_of_their_start(what, run_folder, capsys):
    folder, start = run_folder
    code, out, _ = said(capsys, folder / what)
    assert code == 0
    assert f"under topk:3 on even_pairs (seed 0, gain 2) has a normalised entropy of {start['entropy']:.3f} " in out
    assert f"δ of {start['dispersion_all']:.2f}. The stored evidence starts from full attention " in out


@pytest.mark.parametrize(
    ("task", "mask", "found", "words"),
    [
        ("even_pairs", "full", [change("a", "even_pairs", "undecided"), change("b", None, "supported")],
         "None of the 1 change that the stored evidence compares with full attention on even_pairs is supported"),
        ("even_pairs", "full", [change("a", "even_pairs", "supported", 1.2), change("b", "even_pairs", "supported", 1.9),
                                change("c", "even_pairs", "contradicted"), change("d", "even_pairs", "not_tested")],
         "Of the 3 changes that .* on even_pairs, 2 are supported as faster, each judged alone at 5 %, and the clearest is "
         r"`--set model\.x=b`: 2\.8 times as fast .* \(6 pairs of runs .*, 95 % interval over seeds 1\.9 to 3\.8\)\."),
        ("cycle_navigation", "full", [change("a", "even_pairs", "supported"), change("b", None, "supported"),
                                      change("c", "parity_check", "undecided")],
         r"Of the 1 change .* on even_pairs, parity_check together \(there is none on cycle_navigation\), 1 is .*model\.x=b"),
        ("cycle_navigation", "full", [change("b", "even_pairs", "supported", 4), change("b", "parity_check", "undecided", 0.8),
                                      change("b", None, "supported", 2)],
         r"b`: 3\.0 times .* over seeds 2\.0 to 4\.0; from 1\.2 to 6\.0 by task, and another task may lie outside"),
        ("cycle_navigation", "full", [change("a", "even_pairs", "supported"), change("b", None, "supported")],
         "The stored evidence is of even_pairs alone, so it supports no change here."),
        ("even_pairs", "topk:5", [change("a", "even_pairs", "supported")], "which this is not, so it supports no change"),
    ],
)  # fmt: skip
def test_the_second_sentence_goes_no_further_than_the_evidence(task, mask, found, words, tmp_path, capsys):
    path = tmp_path / "law.json"
    path.write_text(json.dumps(evidence(*found)))
    code, out, _ = said(capsys, task, "--mask", mask, "--evidence", path, *SMALL)
    assert code == 0
    assert re.search(words, out)
    assert out.count(". ") + out.count(".\n") == 1


@pytest.mark.parametrize(
    "sharper",
    ["attention_gain=4.0", "attention_gain=1.1", "attention_scale=0.26", "qk_norm=true", "normalizer=entmax15"],
)
def test_a_model_that_is_sharper_than_what_was_compared_is_told_so(sharper, tmp_path, capsys):
    path = tmp_path / "law.json"
    path.write_text(json.dumps(evidence(change("a", "even_pairs", "supported"), entropy=(0.5, 1.0))))
    out = said(capsys, "even_pairs", "--evidence", path, *SMALL, f"model.{sharper}")[1]
    assert "an entropy of 0.500 to 1.000, which this is not" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["even_pair"],
            "'even_pair' is neither a task nor the folder of a run: unknown task 'even_pair'; did you mean",
        ),
        (["EMPTY"], "is no checkpoint and no run"),
        (["RUN", "--mask", "full"], "is a run, which has its own settings"),
        (["even_pairs", "--mask", "tpok:5"], "tpok:5"),
        (["even_pairs", "--set", "model.attention_gane=1"], "did you mean 'attention_gain'"),
        (["even_pairs", "--evidence", "MISSING"], "no such file"),
        (["even_pairs", "--evidence", "OTHER"], "is no summary of the law of focus"),
        ([], "required: TASK_OR_RUN"),
    ],
)
def test_bad_input_is_one_line(arguments, words, tmp_path, capsys):
    (tmp_path / "EMPTY").mkdir()
    (tmp_path / "RUN").mkdir()
    (tmp_path / "RUN" / "spec.json").write_text(json.dumps(RunSpec("even_pairs").to_dict()))
    (tmp_path / "OTHER").write_text('{"format": 1}')
    arguments = [tmp_path / word if word.isupper() else word for word in arguments]
    code, out, err = said(capsys, *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
