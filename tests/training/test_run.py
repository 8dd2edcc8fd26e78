"""One run: deterministic, paired, stopped and gone on without a trace, and honest about what it did."""

import itertools
import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import hf_semfocus  # noqa: F401  (registers the Auto classes)
from hf_semfocus.experiments.spec import RunSpec, TrainingOptions
from hf_semfocus.files import read_json_lines
from hf_semfocus.schema import Epoch
from hf_semfocus.training.accuracy import accuracy_if_at_least
from hf_semfocus.training.checkpoints import latest_complete_checkpoint
from hf_semfocus.training.locking import folder_lock
from hf_semfocus.training.recorder import why_stop
from hf_semfocus.training.rows import TensorRows
from hf_semfocus.training.run import train_run
from tests.small import SIZES, TINY


class Killed(BaseException):
    """Stands for a kill in the middle: nothing in the run may catch it."""


def killer(epoch):
    def on_epoch(entry):
        if entry["epoch"] == epoch:
            raise Killed

    return on_epoch


def weights(folder):
    return load_file(folder / "model" / "model.safetensors")


def same_weights(one, other):
    one, other = weights(one), weights(other)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def curve(folder):
    """The history without its clock."""
    rows = read_json_lines(folder / "history.jsonl")
    return [{key: value for key, value in row.items() if "seconds" not in key} for row in rows]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of `tiny()`: its folder, its result, and what was heard of each epoch."""
    folder, entries = tmp_path_factory.mktemp("made") / "run", []
    spec = RunSpec.from_dict({"task": "even_pairs", "mask": "topk:3", **TINY})
    return folder, train_run(spec, folder, on_epoch=entries.append), entries


@pytest.fixture
def finished(made, tmp_path):
    """A copy of it."""
    return shutil.copytree(made[0], tmp_path / "finished")


def test_a_run_leaves_what_it_says(made):
    folder, result, entries = made
    history = read_json_lines(folder / "history.jsonl")
    assert history == [entry.to_json() for entry in entries]
    assert [row["epoch"] for row in history] == [1, 2, 3]
    assert result.to_json() == json.loads((folder / "result.json").read_text())
    assert result["epochs_trained"] == 3
    assert result["data"]["chance"] == 0.5
    assert sum(result["data"]["label_histogram"].values()) == 200
    assert result["reach"]["sees_all"]
    assert 0 < result["dispersion"]["mask"]["mean"] < result["dispersion"]["full"]["mean"]
    # what is on the disk is a checkpoint for the Auto classes, with the accuracy the history ends with
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    model = AutoModelForSequenceClassification.from_pretrained(folder / "model")
    assert model.config.id2label == {0: "0", 1: "1"}
    assert tokenizer("0 1 1")["input_ids"] == tokenizer.convert_tokens_to_ids(["0", "1", "1"])


def test_the_history_s_accuracies_are_those_of_the_saved_model(finished):
    from hf_semfocus.data import load_task

    model = AutoModelForSequenceClassification.from_pretrained(finished / "model").eval()
    data = load_task("even_pairs", **SIZES)
    for split, name in (("train", "train_accuracy"), ("test", "heldout_accuracy")):
        with torch.no_grad():
            predicted = model(torch.tensor(data[split]["input_ids"])).logits.argmax(-1)
        expected = (predicted == torch.tensor(data[split]["labels"])).double().mean().item()
        assert curve(finished)[-1][name] == pytest.approx(expected, abs=1e-12)


def test_the_same_seed_gives_the_same_run_and_another_seed_another(tiny, tmp_path):
    spec = tiny(model={"hidden_dropout": 0.1})
    for name in ("one", "two"):
        train_run(spec, tmp_path / name)
    train_run(tiny(model={"hidden_dropout": 0.1}, seed=1), tmp_path / "other")
    assert same_weights(tmp_path / "one", tmp_path / "two")
    assert curve(tmp_path / "one") == curve(tmp_path / "two")
    assert not same_weights(tmp_path / "one", tmp_path / "other")


def test_masks_are_paired_same_rows_same_initial_weights(tiny):
    from hf_semfocus.data import build_tokenizer
    from hf_semfocus.training.setup import build_model

    tokenizer = build_tokenizer("even_pairs")
    one, other = (build_model(tiny(mask=mask), tokenizer, 12).state_dict() for mask in ("full", "topk:3"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("killed_at", [1, 3])
def test_a_killed_run_ends_as_if_it_had_not_been(tiny, tmp_path, killed_at, optimizer):
    spec = tiny(model={"hidden_dropout": 0.1}, training={"epochs": 4, "optimizer": optimizer, "learning_rate": 0.01})
    train_run(spec, tmp_path / "whole")
    with pytest.raises(Killed):
        train_run(spec, tmp_path / "killed", on_epoch=killer(killed_at))
    assert not (tmp_path / "killed" / "result.json").exists()
    train_run(spec, tmp_path / "killed")
    assert same_weights(tmp_path / "whole", tmp_path / "killed")
    assert curve(tmp_path / "whole") == curve(tmp_path / "killed")


def test_half_a_checkpoint_is_passed_over(tiny, tmp_path):
    spec = tiny(training={"epochs": 4})
    train_run(spec, tmp_path / "whole")
    with pytest.raises(Killed):
        train_run(spec, tmp_path / "killed", on_epoch=killer(3))
    newest = latest_complete_checkpoint(tmp_path / "killed" / "checkpoints")
    half = newest.with_name("checkpoint-99")
    shutil.copytree(newest, half)
    (half / "whole.json").unlink()
    (half / "model.safetensors").write_bytes(b"half")
    train_run(spec, tmp_path / "killed")
    assert same_weights(tmp_path / "whole", tmp_path / "killed")


def test_a_larger_budget_continues_a_finished_run(tiny, tmp_path):
    train_run(tiny(training={"epochs": 4}), tmp_path / "four")
    train_run(tiny(training={"epochs": 2}), tmp_path / "two")
    train_run(tiny(training={"epochs": 4}), tmp_path / "two")
    assert same_weights(tmp_path / "four", tmp_path / "two")
    assert curve(tmp_path / "four") == curve(tmp_path / "two")


def test_a_finished_run_is_not_repeated(tiny, made, finished):
    assert train_run(tiny(), finished, on_epoch=killer(1)) == made[1]


def test_a_run_killed_between_its_last_epoch_and_its_result_trains_no_further(tiny, tmp_path):
    spec = tiny(training={"epochs": 9, "stop_early": True, "tau": 0.01, "heldout_tau": 0.01})
    whole = train_run(spec, tmp_path / "whole")
    assert (whole["stopped"], whole["epochs_trained"]) == ("reached", 1)
    # the same with the budget's end, where the checkpoint stays: take the result away as a kill would have
    spec = tiny(training={"epochs": 2})
    train_run(spec, tmp_path / "budget")
    before = weights(tmp_path / "budget")
    (tmp_path / "budget" / "result.json").unlink()
    shutil.rmtree(tmp_path / "budget" / "model")
    result = train_run(spec, tmp_path / "budget", on_epoch=killer(3))
    assert result["epochs_trained"] == 2
    assert all(torch.equal(before[name], value) for name, value in weights(tmp_path / "budget").items())


def test_evaluating_the_training_split_changes_no_weight(tiny, tmp_path):
    model = {"hidden_dropout": 0.1}
    train_run(tiny(model=model), tmp_path / "on")
    train_run(tiny(model=model, training={"evaluate_train": False}), tmp_path / "off")
    assert same_weights(tmp_path / "on", tmp_path / "off")
    assert curve(tmp_path / "off")[0]["train_accuracy"] is None


def test_rates_fall_by_the_epoch_also_when_the_last_batch_is_short(tiny, tmp_path):
    train_run(tiny(training={"batch_size": 64, "learning_rate": 0.5, "lr_decay": 0.9, "epochs": 3}), tmp_path)
    assert [row["learning_rate"] for row in curve(tmp_path)] == pytest.approx([0.5, 0.45, 0.405])


def test_the_stopping_rule_needs_both_thresholds(tiny, tmp_path):
    both = {"stop_early": True, "epochs": 3, "tau": 0.01, "heldout_tau": 0.01}
    assert train_run(tiny(training=both), tmp_path / "both")["epochs_trained"] == 1
    result = train_run(tiny(training={**both, "heldout_tau": 1.0}), tmp_path / "one")
    assert result["epochs_trained"] == 3
    assert (result["status"], result["epochs_to_tau"], result["epochs_to_heldout_tau"]) == ("reached", 1, None)
    result = train_run(tiny(training={**both, "tau": 1.0}), tmp_path / "other")
    assert (result["status"], result["epochs_to_tau"]) == ("censored", None)


def test_a_run_that_diverges_says_so(tiny, tmp_path):
    spec = tiny(training={"learning_rate": 1e30, "max_grad_norm": 0.0, "epochs": 5})
    result = train_run(spec, tmp_path)
    assert result["status"] == "diverged"
    assert result["epochs_trained"] < 5
    assert read_json_lines(tmp_path / "history.jsonl")[-1]["heldout_loss"] is None


def test_the_best_weights_by_validation_are_the_ones_saved(tiny, tmp_path):
    from hf_semfocus.data import load_task

    train_run(tiny(training={"keep": "best", "epochs": 6, "learning_rate": 0.5}), tmp_path)
    history = curve(tmp_path)
    best = max(row["validation_accuracy"] for row in history)
    assert any(row["validation_accuracy"] < best for row in history), "nothing to choose from: the test shows nothing"
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    rows = load_task("even_pairs", **SIZES)["validation"]
    with torch.no_grad():
        predicted = model(torch.tensor(rows["input_ids"])).logits.argmax(-1)
    assert (predicted == torch.tensor(rows["labels"])).double().mean().item() == pytest.approx(best)


def test_the_best_weights_outlive_a_raised_budget(tiny, tmp_path):
    options = {"keep": "best", "learning_rate": 0.5}
    train_run(tiny(seed=1, training={**options, "epochs": 6}), tmp_path / "six")
    best = max(range(6), key=lambda index: curve(tmp_path / "six")[index]["validation_accuracy"]) + 1
    assert best < 6, "the best epoch must come before the end for this to show anything"
    train_run(tiny(seed=1, training={**options, "epochs": best}), tmp_path / "raised")
    train_run(tiny(seed=1, training={**options, "epochs": 6}), tmp_path / "raised")
    assert same_weights(tmp_path / "six", tmp_path / "raised")


def test_a_sequence_task_reports_whole_rows_and_tokens(tiny, tmp_path):
    result = train_run(tiny(task="stack_manipulation", length=6), tmp_path)
    # outputs have 1 to 7 labelled positions of 3 classes; a whole row is guessed far less often than a position
    assert result["data"]["token_chance"] == pytest.approx(1 / 3)
    assert 3**-7 < result["data"]["chance"] < 3**-2
    assert result["data"]["majority_accuracy"] < result["data"]["token_majority_accuracy"]
    for row in curve(tmp_path):
        assert 0 <= row["heldout_accuracy"] <= row["heldout_token_accuracy"] <= 1


def test_the_top_of_the_stack_is_one_label(tiny, tmp_path):
    from hf_semfocus.hub.facts import run_facts

    spec = tiny(task="stack_manipulation", length=6, task_options={"answer": "top"}, training={"epochs": 1})
    result = train_run(spec, tmp_path)
    assert result["data"]["chance"] == pytest.approx(1 / 3)
    assert curve(tmp_path)[-1]["heldout_token_accuracy"] is None
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
    facts = run_facts(tmp_path)
    assert facts["task"]["kind"] == "sequence_classification"
    assert facts["example"]["target"] in model.config.label2id
    assert "[Q]" not in facts["example"]["text"]


def test_attended_padding_goes_to_the_longest_row_and_globals_have_room(tiny, tmp_path):
    """Also where the run is read again: the initial weights, positions and reach of a model with more tokens than its rows."""
    from hf_semfocus.cli.analyze_sources import initial_model, loaded, source_of

    fields = {"attend_padding": True, "pad_to_multiple_of": 7, "num_global_tokens": 2, "hidden_dropout": 0.1}
    spec = tiny(task="listops", mask="banded:3", length=[5, 30], model=fields, training={"epochs": 1})
    result = train_run(spec, tmp_path)
    assert result["reach"]["sees_all"] is False  # one layer: a token and the two that see all
    config = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").config
    assert config.pad_to_length <= 30
    assert config.max_position_embeddings == -(-config.pad_to_length // 7) * 7 + 2
    source = source_of(tmp_path)
    initial = initial_model(source, loaded(source))
    assert initial.config.max_position_embeddings == config.max_position_embeddings
    assert initial.config.pad_to_length == config.pad_to_length


def test_returning_attentions_changes_no_weight_and_no_metric(tiny, finished, tmp_path):
    train_run(tiny(model={"output_attentions": True, "output_hidden_states": True}), tmp_path / "more")
    assert same_weights(finished, tmp_path / "more")
    assert curve(finished) == curve(tmp_path / "more")


@pytest.mark.parametrize("file", ["spec.json", "result.json", "history.jsonl"])
def test_a_damaged_file_is_named_and_nothing_is_lost(tiny, finished, file):
    (finished / file).write_text("{half")
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=f"{file} is damaged"):
        train_run(tiny(), finished)
    assert before == {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}


def test_a_damaged_checkpoint_is_named(tiny, tmp_path):
    with pytest.raises(Killed):
        train_run(tiny(), tmp_path, on_epoch=killer(3))
    checkpoint = latest_complete_checkpoint(tmp_path / "checkpoints")
    (checkpoint / "optimizer.pt").write_bytes(b"rot")
    with pytest.raises(ValueError, match=r"optimizer\.pt has changed"):
        train_run(tiny(), tmp_path)


def test_a_run_that_never_came_to_an_epoch_can_be_asked_for_differently(tiny, tmp_path):
    with pytest.raises(ValueError, match="allow_duplicates"):
        train_run(tiny(train_size=100_000), tmp_path)
    assert train_run(tiny(), tmp_path)["epochs_trained"] == 3


def test_a_finished_run_without_its_model_gets_it_again(tiny, made, finished):
    shutil.rmtree(finished / "model")
    train_run(tiny(), finished, on_epoch=killer(1))  # from the last checkpoint: no epoch is trained
    assert same_weights(made[0], finished)


def test_two_runs_do_not_share_a_folder(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("hf_semfocus.training.run.WAIT_SECONDS", 0.1)
    with folder_lock(tmp_path, "a test"), pytest.raises(ValueError, match="another run is at work"):
        train_run(tiny(), tmp_path)


def test_a_start_that_fails_leaves_an_earlier_result_and_no_new_folder(tiny, tmp_path, monkeypatch):
    first = train_run(tiny(training={"epochs": 2}), tmp_path / "run")
    monkeypatch.setattr("hf_semfocus.training.setup.build_model", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train_run(tiny(training={"epochs": 4}), tmp_path / "run")
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == first.to_json()
    with pytest.raises(ZeroDivisionError):
        train_run(tiny(), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_folder_with_another_run_is_refused(tiny, finished):
    with pytest.raises(ValueError, match=r"training\.learning_rate: 0\.3 there, 0\.1 asked"):
        train_run(tiny(training={"learning_rate": 0.1}), finished)


def rows_of(*heldout, train=1.0, learnt=1):
    """A history that is at τ from epoch `learnt` on."""
    numbers = {"heldout_loss": 1.0, "train_seconds": 1.0, "seconds": 1.0}
    return [
        Epoch(epoch=epoch, train_accuracy=train if epoch >= learnt else 0.5, heldout_accuracy=value, **numbers)
        for epoch, value in enumerate(heldout, start=1)
    ]


@pytest.mark.parametrize(
    ("history", "stops_at"),
    [
        (rows_of(*[0.5] * 9), 3),  # ⌈0.1⌉ = 1 epoch is less than the 2 that there are at least
        (rows_of(*[0.5] * 60, learnt=30), 33),  # a tenth of 30 is 3, not 4
        (rows_of(*[0.5] * 60, learnt=31), 35),
        (rows_of(0.5, 0.5, 0.52, 0.52, 0.54, 0.54, 0.545, 0.55), 7),  # 0.545 is not above 0.54 by more than 0.01
        (rows_of(0.5, 0.6, 0.5, 0.5, 0.5), 4),  # what rose before does not count
        (rows_of(*[0.5 + 0.011 * (epoch // 2) for epoch in range(30)]), None),  # rising all the time
        (rows_of(*[0.5] * 60, train=0.94), None),  # never at τ
        (rows_of(*[0.5] * 60, train=None), None),
    ],
)
def test_a_run_has_settled_where_held_out_accuracy_no_longer_rises(history, stops_at):
    options = TrainingOptions(epochs=99, patience_share=0.1, patience_min=2)
    reasons = [why_stop(history[:end], options) for end in range(1, len(history) + 1)]
    assert next((epoch for epoch, reason in enumerate(reasons, start=1) if reason), None) == stops_at
    assert {reason for reason in reasons if reason} <= {"settled"}
    for other in ({"patience_share": None}, {"stop_early": False}):
        changed = replace(options, **other)
        assert all(why_stop(history[:end], changed) is None for end in range(1, len(history) + 1))


SETTLES = {"epochs": 20, "stop_early": True, "heldout_tau": 1.0, "patience_share": 0.5, "patience_min": 3, "tau": 0.55}


def test_a_settled_run_ends_there_whatever_stops_and_raises_it(tiny, tmp_path):
    spec = tiny(training=SETTLES)
    result = train_run(spec, tmp_path / "whole")
    assert (result["stopped"], result["status"]) == ("settled", "reached")
    assert result["epochs_to_tau"] + 3 <= result["epochs_trained"] < 20
    with pytest.raises(Killed):
        train_run(spec, tmp_path / "killed", on_epoch=killer(result["epochs_trained"] - 2))
    train_run(spec, tmp_path / "killed")
    assert curve(tmp_path / "whole") == curve(tmp_path / "killed")
    assert same_weights(tmp_path / "whole", tmp_path / "killed")
    raised = tiny(training={**SETTLES, "epochs": 60})
    assert train_run(raised, tmp_path / "whole", on_epoch=killer(1)) == result


@pytest.mark.parametrize(
    "changes", [{}, {"patience_share": None, "heldout_tau": 0.55}, {"keep": "best", "epochs": 10}], ids=str
)
def test_a_shortened_evaluation_misses_no_epoch_and_stops_where_a_whole_one_does(tiny, tmp_path, changes):
    options = {**SETTLES, "eval_batch_size": 20, **changes}
    model = {"hidden_dropout": 0.1}
    whole = train_run(tiny(model=model, training=options), tmp_path / "whole")
    short = train_run(tiny(model=model, training={**options, "shorten_evaluation": True}), tmp_path / "short")
    for name in ("status", "stopped", "epochs_trained", "epochs_to_tau", "epochs_to_heldout_tau", "dispersion"):
        assert short[name] == whole[name]
    assert same_weights(tmp_path / "whole", tmp_path / "short")
    left_out = 0
    for row, other in zip(curve(tmp_path / "short"), curve(tmp_path / "whole"), strict=True):
        assert 0 < row.pop("running_loss") < 2
        assert 0 < row.pop("running_accuracy") <= 1
        if row["train_accuracy"] is None:
            left_out += 1
            other = {name: None if name.startswith("train_") else value for name, value in other.items()}
        assert row == other
    assert left_out >= 3, "nothing was left out: the test shows nothing"
    assert row["train_accuracy"] is not None  # the last epoch is measured whole


def test_an_accuracy_is_told_exactly_where_it_is_at_least_the_threshold(tiny):
    """At every threshold and batch size, and one row beyond each; less is measured only where nothing is lost."""
    from hf_semfocus.data import build_tokenizer, load_task
    from hf_semfocus.training.setup import build_model

    spec = tiny()
    rows = TensorRows(load_task("even_pairs", **spec.data_options())["train"], 0)
    model = build_model(spec, build_tokenizer("even_pairs"), 12)
    seen = []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    with torch.no_grad():
        wrong = (model.eval()(input_ids=rows.input_ids).logits.argmax(-1) != rows.labels).long().cumsum(0).tolist()
    right = 200 - wrong[-1]
    assert 60 < right < 140
    for size, asked in itertools.product((7, 50, 500), (1, right - 1, right, right + 1, right + 9, 200)):
        seen.clear()
        found = accuracy_if_at_least(asked / 200, model, rows, size)
        assert (found is None) == (asked > right)
        assert found is None or found.accuracy == right / 200
        # Given up at the first batch with which too many are wrong, and never before.
        ends = [min(end, 200) for end in range(size, 200 + size, size)]
        assert sum(seen) == next((end for end in ends if wrong[end - 1] > 200 - asked), 200)


def test_masks_that_draw_change_no_training_by_being_evaluated(tiny, tmp_path):
    spec = tiny(mask="redraw:3", model={"hidden_dropout": 0.1})
    train_run(spec, tmp_path / "one")
    train_run(spec, tmp_path / "again")
    train_run(replace(spec, training=replace(spec.training, evaluate_train=False)), tmp_path / "less")
    assert curve(tmp_path / "one") == curve(tmp_path / "again")
    assert same_weights(tmp_path / "one", tmp_path / "less")
    heldout = [[row["heldout_loss"] for row in curve(tmp_path / name)] for name in ("one", "less")]
    assert heldout[0] == heldout[1]


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("even_pairs", {}),
        ("stack_manipulation", {"momentum": 0.9, "weight_decay": 0.01, "batch_size": 64}),
        ("even_pairs", {"optimizer": "adamw", "learning_rate": 0.01, "max_grad_norm": 0.0, "bf16": True}),
    ],
    ids=["sgd", "momentum", "adamw"],
)
def test_a_process_alone_trains_as_trainer_itself_does_bit_by_bit(tiny, tmp_path, monkeypatch, task, options):
    from torch.optim.lr_scheduler import LambdaLR
    from transformers import Trainer

    from hf_semfocus.training import trainer

    options = {"lr_decay": 0.9, "max_grad_norm": 0.5, "shorten_evaluation": True, **options}
    spec = tiny(task=task, model={"hidden_dropout": 0.1}, training=options)
    train_run(spec, tmp_path / "ours")
    monkeypatch.setattr(trainer.SemFocusTrainer, "_trains_alone", lambda self: False)
    monkeypatch.setattr(trainer.SemFocusTrainer, "create_optimizer", Trainer.create_optimizer)
    monkeypatch.setattr(trainer.EpochLR, "step", LambdaLR.step)
    train_run(spec, tmp_path / "theirs")
    assert same_weights(tmp_path / "ours", tmp_path / "theirs")
    assert curve(tmp_path / "ours") == curve(tmp_path / "theirs")


def test_a_kill_while_a_finished_runs_checkpoints_go_changes_nothing(tiny, made, finished):
    with pytest.raises(Killed):
        train_run(tiny(), finished.parent / "killed", on_epoch=killer(2))
    checkpoint = latest_complete_checkpoint(finished.parent / "killed" / "checkpoints")
    there = finished / "checkpoints" / checkpoint.name
    shutil.copytree(checkpoint, there, dirs_exist_ok=True)
    (there / "optimizer.pt").unlink()
    train_run(tiny(), finished, on_epoch=killer(1))
    assert same_weights(made[0], finished)
