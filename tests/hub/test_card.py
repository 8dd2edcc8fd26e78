"""Model cards: metadata by the Hub's rules, the numbers of the weights beside them, and everything that limits them said."""

import json
import math
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from transformers import AutoModelForSequenceClassification

from hf_semfocus import SemFocusConfig
from hf_semfocus.cli.main import main
from hf_semfocus.data import build_tokenizer, load_task
from hf_semfocus.experiments.spec import RunSpec
from hf_semfocus.hub.card import write_card
from hf_semfocus.hub.card_words import limits
from hf_semfocus.hub.facts import train_command, write_facts
from hf_semfocus.hub.run_json import read_facts
from hf_semfocus.training.run import train_run
from hf_semfocus.training.setup import build_model
from tests.hub.cards import card_problem
from tests.model.isolated import run as run_isolated
from tests.report.synthetic import write_run_directory
from tests.small import SIZES, TINY, run

OUTCOMES = {
    "even_pairs": {
        "full": [27, 15],
        "banded:5": [None, "failed"],
        "block:5": ["diverged:3", "unfinished:12"],
        "topk:5": [8, 6],
    }
}


def values(data):
    """All leaves of nested lists and mappings."""
    if isinstance(data, dict | list):
        for entry in data.values() if isinstance(data, dict) else data:
            yield from values(entry)
    else:
        yield data


def checked(path):
    """A card, after a round trip, and its head as plain YAML."""
    text = path.read_text(encoding="utf-8")
    assert card_problem(text) is None
    card = ModelCard.load(path)
    assert str(card) == text
    head = yaml.safe_load(text.split("---\n")[1])
    assert None not in values(head)
    assert all(math.isfinite(value) for value in values(head) if isinstance(value, float))
    assert card.data.to_dict() == head
    assert card.data.library_name == "transformers"
    assert card.data.license == "apache-2.0"
    assert card.data.metrics == ["accuracy"]
    assert (path.parent / re.search(r"!\[.*?\]\((.*?)\)", card.text)[1]).read_bytes().startswith(b"\x89PNG")
    return card


def with_checkpoint(folder):
    """A synthetic run's folder with a checkpoint in it, as a run leaves it."""
    result = json.loads((folder / "result.json").read_text())
    result["versions"]["hf-semfocus"] = "0.1.0"
    (folder / "result.json").write_text(json.dumps(result))
    spec = RunSpec.from_dict(json.loads((folder / "spec.json").read_text()))
    (folder / "spec.json").write_text(json.dumps(spec.to_dict()))
    tokenizer = build_tokenizer(spec.task)
    build_model(spec, tokenizer, spec.length).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return folder


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """A comparison with runs of every outcome; those that finished have a checkpoint."""
    out = write_run_directory(tmp_path_factory.mktemp("cards") / "out", OUTCOMES)
    for folder in (out / "runs").glob("*/*/seed-*"):
        result = folder / "result.json"
        if result.exists() and json.loads(result.read_text())["status"] != "failed":
            with_checkpoint(folder)
    return out


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A real run that keeps its best weights, which are not its last."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    training = {**TINY["training"], "epochs": 12, "keep": "best", "learning_rate": 1.0}
    train_run(RunSpec.from_dict({**TINY, "task": "parity_check", "mask": "topk:3", "training": training}), folder)
    return folder


def test_the_best_weights_are_the_ones_in_the_card(trained):
    card = checked(write_card(write_facts(trained)))
    history = [json.loads(line) for line in (trained / "history.jsonl").read_text().splitlines()]
    best = max(row["validation_accuracy"] for row in history)
    kept = next(row for row in history if row["validation_accuracy"] == best)
    assert kept["heldout_accuracy"] != history[-1]["heldout_accuracy"], "the run cannot tell best from last"
    model = AutoModelForSequenceClassification.from_pretrained(trained / "model").eval()
    rows = load_task("parity_check", **SIZES)["test"]
    with torch.no_grad():
        answers = model(torch.tensor(rows["input_ids"])).logits.argmax(-1)
    accuracy = (answers == torch.tensor(rows["labels"])).double().mean().item()
    (result,) = card.data.eval_results
    assert result.metric_value == accuracy == kept["heldout_accuracy"]
    assert f"weights of epoch {kept['epoch']}" in card.text
    assert result.dataset_args == {"length": 12, "train_size": 200, "validation_size": 60, "test_size": 100, "seed": 0}


def test_the_command_in_the_card_makes_the_same_checkpoint_and_card(trained, tmp_path, monkeypatch, capsys):
    card = write_card(write_facts(trained)).read_text()
    command = re.search("```bash\n(.*)\n```", card)[1].split()
    assert command[0] == "semfocus"
    monkeypatch.chdir(tmp_path)
    assert run(*command[1:]) == 0
    (again,) = (tmp_path / "runs").iterdir()
    for name in ("model.safetensors", "README.md", "curves.png"):
        assert (again / "model" / name).read_bytes() == (trained / "model" / name).read_bytes()
    # Asked for again, the finished run's card stays as somebody has changed it; `semfocus card` makes it anew.
    (again / "model" / "README.md").write_text("changed")
    assert run(*command[1:]) == 0
    assert (again / "model" / "README.md").read_text() == "changed"
    assert run("card", again) == 0
    assert (again / "model" / "README.md").read_text() == card


def test_a_task_with_sequences_as_output(tmp_path):
    spec = RunSpec.from_dict({**TINY, "task": "reverse_string", "mask": "full"})
    train_run(spec, tmp_path / "run")
    card = checked(write_card(write_facts(tmp_path / "run"), dataset="user/rows"))
    whole, token = card.data.eval_results
    last = json.loads((tmp_path / "run" / "history.jsonl").read_text().splitlines()[-1])
    assert (whole.metric_value, token.metric_value) == (last["heldout_accuracy"], last["heldout_token_accuracy"])
    assert (whole.task_type, whole.dataset_type) == ("token-classification", "user/rows")
    assert f"chance {2**-12:.3f}" in whole.metric_name
    assert "chance 0.500" in token.metric_name
    assert "the paper's suite does not have this task" in card.text.lower()
    # The example of the card is a held-out row with a query token for each output, and runs.
    (block,) = re.findall("```python\n(.*?)```", card.text, re.DOTALL)
    said = []
    place = f"name = {str(tmp_path / 'run' / 'model')!r}"
    exec(re.sub(r'name = ".*?"', place, block), {"print": said.append})
    row = load_task("reverse_string", **SIZES)["test"][0]
    assert f"{row['text']}{' [Q]' * 12}" in block
    assert f"# right: {row['target']}" in block
    assert len(said[0]) == 24
    # Where there is no package it is the same, and no question is asked about the code that comes with the weights.
    assert run_isolated(re.sub(r'name = ".*?"', place, block), tmp_path / "machine").strip() == str(said[0])


def text_of(comparison, task, mask, seed=0, **options):
    folder = comparison / "runs" / task / mask.replace(":", "-") / f"seed-{seed}"
    return checked(write_card(write_facts(folder), **options))


def test_what_limits_a_checkpoint_is_said(comparison):
    learnt = text_of(comparison, "even_pairs", "topk:5")
    assert "95 % training accuracy: after 8 epochs; 95 % held-out accuracy: after 10. It had 10 of 40" in learnt.text
    assert "took 27 epochs" in learnt.text
    assert "speed-up in this one pair: 3.4×" in learnt.text
    assert "| held-out (2,000 rows) | 0.960 | 0.500 | 0.511 |" in learnt.text
    assert "**Reduced size**: input length 20 (the paper: 40); blocks 3 (the paper: 5)" in learnt.text
    assert "reduced-size" in learnt.data.tags
    assert "chance 0.500, majority class 0.511" in learnt.data.eval_results[0].metric_name
    assert "ensored" not in learnt.text
    assert "not learnt" not in learnt.text

    censored = text_of(comparison, "even_pairs", "banded:5")
    assert "**Censored**: 95 % training accuracy was not reached in 40 epochs" in censored.text
    assert "cannot see the whole input (through all blocks: ±6 of 20 positions)" in censored.text
    assert "censored" in censored.data.tags

    diverged = text_of(comparison, "even_pairs", "block:5")
    assert "**diverged**" in diverged.text
    assert "diverged" in diverged.data.tags
    for card in (learnt, censored, diverged):
        assert "one run with one seed" in card.text
        assert "seeds" in card.text
        assert "torch 2.13.0" in card.text


def test_facts_of_a_newer_version_are_not_written_over(comparison):
    folder = comparison / "runs" / "even_pairs" / "full" / "seed-0"
    (folder / "model" / "run.json").write_text('{"format": 99}')
    with pytest.raises(ValueError, match=r"run\.json was written by a newer"):
        write_facts(folder)
    assert (folder / "model" / "run.json").read_text() == '{"format": 99}'
    (folder / "model" / "run.json").unlink()


def test_a_model_at_chance_is_not_called_trained(comparison):
    facts = read_facts(write_facts(comparison / "runs" / "even_pairs" / "full" / "seed-0"))
    # Two standard errors of 2,000 rows at 0.511 are 0.0224.
    for accuracy, said in ((0.53, True), (0.54, False)):
        facts["accuracy"]["heldout_accuracy"] = accuracy
        assert any("guessing" in limit for limit in limits(facts)) == said


@pytest.mark.parametrize(
    ("model", "positions", "longest"),
    [({}, 20, 20), ({"num_global_tokens": 1}, 21, 20), ({"pooling": "cls"}, 21, 20),
     ({"attend_padding": True, "pad_to_multiple_of": 7, "num_global_tokens": 2, "pooling": "cls"}, 24, 20)],
)  # fmt: skip
def test_the_longest_input_is_without_padding_and_global_tokens(comparison, model, positions, longest):
    facts = read_facts(write_facts(comparison / "runs" / "even_pairs" / "full" / "seed-0"))
    facts.spec.model.update(model)
    facts.architecture |= {"max_position_embeddings": positions, "pooling": model.get("pooling", "mean")}
    assert SemFocusConfig(**facts.spec.model).padded_length(longest + (model.get("pooling") == "cls")) <= positions
    assert any(f"more than {longest} tokens" in limit for limit in limits(facts))


def test_cards_of_a_comparison(comparison, tmp_path, capsys):
    assert run("card", comparison, "--output", tmp_path / "cards") == 0
    said = capsys.readouterr().out
    runs = [json.loads(path.read_text())["status"] for path in (comparison / "runs").glob("*/*/seed-*/result.json")]
    cards = sorted((tmp_path / "cards").glob("*.md"))
    assert len(cards) == sum(status != "failed" for status in runs) == 6
    for card in cards:
        assert checked(card).data.model_name == card.stem
    assert "no card for even_pairs/banded:5/1: failed" in said
    assert "no card for even_pairs/block:5/1: unfinished" in said
    # No other test makes the card of this one.
    assert not (comparison / "runs" / "even_pairs" / "full" / "seed-1" / "model" / "README.md").exists()


def test_runs_without_a_model_are_counted_and_stop_no_other_card(tmp_path, capsys):
    out = write_run_directory(tmp_path / "unpacked", OUTCOMES)
    assert run("card", out) == 2
    said = capsys.readouterr()
    assert "finished runs without a complete model, and so without a card: 6;" in said.out
    assert "no finished run with a model" in said.err
    folder = out / "runs" / "even_pairs" / "topk-5" / "seed-0"
    with_checkpoint(folder)
    assert run("card", out) == 0
    assert "without a card: 5;" in capsys.readouterr().out
    assert [path.parent.parent for path in out.rglob("model/README.md")] == [folder]


def test_a_checkpoint_keeps_its_card_where_it_goes(comparison, tmp_path, capsys):
    folder = comparison / "runs" / "even_pairs" / "topk-5" / "seed-1"
    assert run("card", folder / "model", "--repo", "user/name") == 0
    text = (folder / "model" / "README.md").read_text()
    assert 'name = "user/name"\n' in text
    shutil.copytree(folder / "model", tmp_path / "moved")
    (tmp_path / "moved" / "README.md").unlink()
    assert run("card", tmp_path / "moved", "--repo", "user/name") == 0
    assert (tmp_path / "moved" / "README.md").read_text() == text
    assert str(tmp_path) not in text
    for path in (tmp_path / "moved").glob("*.json"):
        assert str(comparison) not in path.read_text()


def test_a_run_json_of_format_1_gives_the_same_card(comparison, tmp_path):
    """It had words for epochs and reach."""
    checkpoint = write_facts(comparison / "runs" / "even_pairs" / "topk-5" / "seed-0")
    card = write_card(checkpoint, output=tmp_path / "new").read_text()
    facts = json.loads((checkpoint / "run.json").read_text())
    old = {name: value for name, value in facts.items() if name not in ("train", "heldout")}
    old |= {"format": 1, "epochs_to_tau": "8", "epochs_to_heldout_tau": "10"}
    old["reach"] = {"left": 19, "right": 19, "sees_all": True, "text": "all"}
    old["comparison"]["pair"] = {"baseline_epochs": "27", "epochs": "8", "speed_up": "3.4×"}
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "run.json").write_text(json.dumps(old))
    assert write_card(tmp_path / "old", output=tmp_path / "again").read_text() == card


def test_a_run_that_can_only_be_read_has_its_card(comparison, tmp_path, monkeypatch):
    folder = comparison / "runs" / "even_pairs" / "topk-5" / "seed-1"
    assert run("card", folder, "--output", tmp_path / "one") == 0

    def refuse(path, value):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("hf_semfocus.hub.facts.write_json", refuse)  # root may write where others may not
    assert run("card", folder, "--output", tmp_path / "two") == 0
    (first,), (second,) = ((tmp_path / name).glob("*.md") for name in ("one", "two"))
    assert second.read_text() == first.read_text()


def test_the_command_carries_every_setting(tmp_path, monkeypatch):
    """Through the parser, to the specification that it came from."""
    spec = RunSpec.from_dict(
        {
            "task": "listops",
            "mask": "banded:5+global:1",
            "seed": 7,
            "length": [100, 200],
            "train_size": 10,
            "task_options": {"allow_duplicates": True},
            "model": {"hidden_act": "gelu", "attention_scale": 0.25, "pooling": "cls", "num_hidden_layers": 2},
            "training": {
                "optimizer": "adamw",
                "learning_rate": 1e-5,
                "weight_decay": 1e-7,
                "keep": "best",
                "bf16": True,
            },
        }
    )
    command = train_command(spec.to_dict(), "out")
    made = []
    monkeypatch.setattr(
        "hf_semfocus.training.run.train_run", lambda spec, *rest, **named: made.append(spec) or sys.exit(0)
    )
    with pytest.raises(SystemExit):
        main(command.split()[1:])
    assert made == [spec]


def write_result(folder, **changes):
    """The run's result with some entries changed (`...`: taken away)."""
    result = json.loads((folder / "result.json").read_text()) | changes
    left = {name: value for name, value in result.items() if value is not ...}
    (folder / "result.json").write_text(json.dumps(left))


@pytest.mark.parametrize(
    ("spoil", "arguments", "words"),
    [
        (lambda folder: None, ["--push"], ["--repo"]),
        (lambda folder: None, ["--repo", "name"], ["--repo", "name", "user/name"]),
        (lambda folder: None, ["--dataset", "a/b/c"], ["--dataset", "a/b/c"]),
        (lambda folder: None, ["--private"], ["--private", "--push"]),
        (lambda folder: None, ["--repo", "a/b", "--push", "--output", "OUT"], ["--output", "--push"]),
        (lambda folder: (folder / "result.json").unlink(), [], ["not finished"]),
        (lambda folder: (folder / "model" / "config.json").unlink(), [], ["config.json", "not complete"]),
        (lambda folder: shutil.rmtree(folder / "model"), [], ["not complete"]),
        (lambda folder: (folder / "model" / "config.json").write_text("{}"), [], ["config.json", "damaged"]),
        (lambda folder: (folder / "spec.json").write_text('{"task": "even_pairs"}'), [], ["spec.json", "damaged"]),
        (lambda folder: shutil.rmtree(folder), [], ["does not exist"]),
        (lambda folder: write_result(folder, versions=...), [], ["result.json", "versions"]),
        (lambda folder: write_result(folder, status="failed", error="it broke"), [], ["it broke", "failed"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_leaves_nothing(spoil, arguments, words, comparison, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(comparison / "runs" / "even_pairs" / "full" / "seed-1", "run")
    (tmp_path / "run" / "model" / "README.md").unlink(missing_ok=True)
    spoil(tmp_path / "run")
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    assert run("card", "run", *arguments) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    for word in words:
        assert word in line
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 2}', '{"format": 1}', '{"format": 1, "name": null}'])
def test_a_damaged_run_json_is_named(text, comparison, tmp_path, capsys):
    shutil.copytree(comparison / "runs" / "even_pairs" / "topk-5" / "seed-0" / "model", tmp_path / "model")
    for stale in ("README.md", "curves.png"):
        (tmp_path / "model" / stale).unlink(missing_ok=True)
    (tmp_path / "model" / "run.json").write_text(text)
    assert run("card", tmp_path / "model") == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "run.json" in line
    assert not (tmp_path / "model" / "README.md").exists()
    (tmp_path / "model" / "run.json").unlink()
    assert run("card", tmp_path / "model") == 2
    assert "run.json" in capsys.readouterr().err


STORED = Path(__file__).parents[2] / "model_cards"


@pytest.mark.parametrize(
    ("folder", "result"),
    [("", "quickstart"), *((name, name) for name in ("reduced", "paper_size", "paper_size_first"))],
)
def test_the_stored_cards_are_those_of_the_stored_results(folder, result):
    summary = json.loads((STORED.parent / "recipes" / "results" / result / "summary.json").read_text("utf-8"))
    runs = {f"{run['task']}-{run['mask'].replace(':', '-')}-seed-{run['seed']}": run for run in summary["runs"]}
    cards = {path.stem: checked(path) for path in (STORED / folder).glob("*.md") if path.name != "README.md"}
    if result == "quickstart":
        assert set(cards) == set(runs)
    assert cards
    for name, card in cards.items():
        assert card.data.eval_results[0].metric_value == runs[name]["final_heldout_accuracy"]
        assert ("**Censored**" in card.text) == (runs[name]["status"] == "censored")
        assert ("**Reduced size**" in card.text) == (not folder.startswith("paper_size"))
