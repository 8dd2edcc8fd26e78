"""What is stored of attention while a run trains, and where its epochs are reported."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from hf_semfocus import SemFocusForSequenceClassification
from hf_semfocus.data import build_tokenizer, load_task
from hf_semfocus.experiments.spec import RunSpec, TrainingOptions, difference
from hf_semfocus.training.run import train_run
from hf_semfocus.training.snapshots import snapshot_epochs

SPEC = RunSpec(
    task="even_pairs",
    mask="topk:2+sink:1",
    length=9,
    train_size=100,
    validation_size=10,
    test_size=20,
    model={"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2},
    training=TrainingOptions(epochs=3, batch_size=20, stop_early=False),
)


def with_training(**changes):
    return replace(SPEC, training=replace(SPEC.training, **changes))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    train_run(SPEC, folder / "plain")
    train_run(with_training(snapshots=3, report_to="tensorboard"), folder / "stored")
    return folder


def test_the_weights_are_those_of_the_model_on_the_first_held_out_rows(runs):
    folder = runs / "stored"
    stored = {int(path.stem.split("-")[1]): np.load(path) for path in (folder / "snapshots").iterdir()}
    assert set(stored) == {0, 1, 3}
    model = SemFocusForSequenceClassification.from_pretrained(folder / "model").eval()
    rows = load_task("even_pairs", **SPEC.data_options())["test"][:4]
    with torch.no_grad():
        expected = model(torch.tensor(rows["input_ids"]), output_attentions=True).attentions
    np.testing.assert_allclose(stored[3]["weights"], torch.stack(expected, 1), atol=1e-3)
    assert stored[3]["weights"].shape == (4, 2, 2, 9, 9)
    assert not np.array_equal(stored[0]["weights"], stored[3]["weights"])
    assert [" ".join(row) for row in stored[0]["tokens"]] == build_tokenizer("even_pairs").batch_decode(
        rows["input_ids"]
    )


def test_recording_changes_nothing_that_is_trained(runs):
    weights = [load_file(runs / name / "model" / "model.safetensors") for name in ("plain", "stored")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    plain, stored = ((runs / name / "spec.json").read_text() for name in ("plain", "stored"))
    assert difference(json.loads(plain), json.loads(stored)) is None


def test_each_epoch_is_reported_and_stays_when_the_run_has_ended(runs):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (file,) = (runs / "stored" / "tensorboard").rglob("events.out.tfevents.*")
    events = EventAccumulator(str(file)).Reload()
    (name,) = (tag for tag in events.Tags()["scalars"] if tag.endswith("heldout_accuracy"))
    history = [json.loads(line) for line in (runs / "stored" / "history.jsonl").read_text().splitlines()]
    assert [scalar.value for scalar in events.Scalars(name)] == pytest.approx(
        [row["heldout_accuracy"] for row in history]
    )


def test_trackio_has_a_run_a_run_in_the_comparison_s_project(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    trackio = pytest.importorskip("trackio")
    train_run(with_training(report_to="trackio"), tmp_path / "mine" / "runs" / SPEC.name)
    (run,) = trackio.Api().runs("mine")
    assert run.name == SPEC.name


def test_wandb_has_a_run_a_run_in_the_comparison_s_project(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    begun, init = [], wandb.init
    monkeypatch.setattr(wandb, "init", lambda **options: begun.append(init(**options)) or begun[-1])
    specs = [with_training(report_to="wandb", epochs=1), replace(with_training(report_to="wandb", epochs=1), seed=1)]
    for project, spec in zip(("mine", "other"), specs, strict=True):  # in one process, as a worker or a notebook does
        train_run(spec, tmp_path / project / "runs" / spec.name)
    assert [(run.project, run.name) for run in begun] == [("mine", specs[0].name), ("other", specs[1].name)]
    assert len(list((tmp_path / "wandb").glob("offline-run-*"))) == 2


def test_a_tracker_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("hf_semfocus.training.setup.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="report_to is 'wandb', which is not installed: pip install wandb"):
        train_run(with_training(report_to="wandb"), tmp_path / "run")
    assert not (tmp_path / "run" / "spec.json").exists()
    with pytest.raises(ValueError, match="report_to"):
        with_training(report_to="paper")


@pytest.mark.parametrize(("count", "budget"), [(1, 30), (6, 30), (24, 30), (50, 30), (10, 1)])
def test_epochs_of_snapshots(count, budget):
    chosen = snapshot_epochs(count, budget)
    assert 0 in chosen
    assert max(chosen) <= budget
    assert len(chosen) <= max(count, 2)
    assert snapshot_epochs(0, budget) == set()
