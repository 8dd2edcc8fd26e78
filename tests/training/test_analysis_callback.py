"""The theory's quantities, recorded while a model trains: the right numbers, in every log, and nothing trained differently."""

import itertools
import json
import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import EarlyStoppingCallback, Trainer, TrainingArguments

from hf_semfocus import SemFocusConfig, SemFocusForSequenceClassification
from hf_semfocus.analysis import capture_scores, gradient_norm, probe_quantities
from hf_semfocus.data import load_task
from hf_semfocus.experiments.spec import RunSpec, TrainingOptions, difference
from hf_semfocus.training.analysis_callback import AnalysisCallback
from hf_semfocus.training.run import train_run

SMALL = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}


def small_model(mask="topk:2"):
    torch.manual_seed(0)
    return SemFocusForSequenceClassification(SemFocusConfig(mask=mask, vocab_size=8, **SMALL))


def batch(rows=6, length=9):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 8, (rows, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, -3:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.randint(0, 2, (rows,), generator=generator)}


def test_the_numbers_are_those_of_loops_over_the_definitions():
    model, inputs = small_model(), batch()
    found = probe_quantities(model, inputs)
    full, kept, gaps, gains = [], [], [], []
    layers = capture_scores(model, {name: value for name, value in inputs.items() if name != "labels"})
    for layer in layers:
        for row, keep, valid in zip(
            *(tensor.flatten(0, 2).tolist() for tensor in (layer.scores, layer.keep, layer.valid)), strict=True
        ):
            all_scores = [score for score, fits in zip(row, valid, strict=True) if fits]
            if not all_scores:
                continue
            chosen = [score for score, fits in zip(row, keep, strict=True) if fits]
            rest = [score for score, one, fits in zip(row, keep, valid, strict=True) if fits and not one]
            full.append(max(all_scores) - min(all_scores))
            kept.append(max(chosen) - min(chosen))
            gaps.append(min(chosen) - max(rest))
            log_full = full[-1] - math.log(len(all_scores))
            gains.append(log_full - (kept[-1] - math.log(len(chosen)) + math.log1p(1 / gaps[-1])))
    for name, values in (("dispersion_full", full), ("dispersion_mask", kept), ("separation", gaps)):
        assert found[f"{name}_mean"] == pytest.approx(sum(values) / len(values), rel=1e-5)
        assert found[f"{name}_max"] == pytest.approx(max(values), rel=1e-5)
    assert found["dispersion_ratio"] == pytest.approx(sum(kept) / sum(full), rel=1e-5)
    assert found["improvement_share"] == pytest.approx(sum(gain > 0 for gain in gains) / len(gains))
    model.eval()
    model(**inputs).loss.backward()
    norm = math.sqrt(sum(parameter.grad.double().pow(2).sum() for parameter in model.parameters()))
    model.zero_grad()
    assert found["gradient_norm"] == pytest.approx(norm, rel=1e-6)
    with torch.no_grad():
        assert found["loss"] == pytest.approx(model(**inputs).loss.item(), rel=1e-6)


def test_the_recorded_mask_stability_is_that_of_the_first_rows_and_the_same_each_time():
    model, inputs = small_model(), batch(rows=60)
    found = probe_quantities(model, inputs)["mask_stability"]
    embedded = model.get_input_embeddings()(inputs["input_ids"][:25])
    real = inputs["attention_mask"][:25].bool()
    noise = torch.randn(embedded.shape, generator=torch.Generator().manual_seed(0))
    noise *= 0.1 * embedded[real].double().pow(2).mean().sqrt() * real[..., None]
    masks = {"attention_mask": inputs["attention_mask"][:25]}
    shares = []
    for clean, moved in zip(
        capture_scores(model, {"inputs_embeds": embedded, **masks}),
        capture_scores(model, {"inputs_embeds": embedded + noise, **masks}),
        strict=True,
    ):
        kept = clean.keep.any(-1)
        shares.append(((clean.keep & moved.keep).sum(-1)[kept] / clean.keep.sum(-1)[kept]).mean().item())
    assert found == pytest.approx(sum(shares) / len(shares), rel=1e-6)
    assert found == probe_quantities(model, inputs)["mask_stability"] < 1
    # A mask that does not look at the scores has nothing that noise could change.
    assert "mask_stability" not in probe_quantities(small_model("banded:3"), inputs)


def test_a_mask_that_keeps_everything_has_no_separation():
    found = probe_quantities(small_model("full"), batch())
    assert not any(name.startswith("separation") or name == "improvement_share" for name in found)
    assert found["dispersion_ratio"] == 1


def test_measuring_leaves_the_model_and_the_generator_as_they_were():
    model = small_model().train()
    model.model.encoder.layers[0].eval()
    before, state = [module.training for module in model.modules()], torch.get_rng_state()
    probe_quantities(model, batch())
    assert [module.training for module in model.modules()] == before
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert gradient_norm(model, batch()) == gradient_norm(model, batch())


def rows(count=40):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, 8, (count, 9), generator=generator)
    return [{"input_ids": row, "labels": row[0] % 2} for row in ids]


@pytest.mark.parametrize("every", [1, 2])
def test_any_trainer_records_into_its_log_and_tensorboard(every, tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    arguments = TrainingArguments(
        str(tmp_path / "out"),
        num_train_epochs=3,
        per_device_train_batch_size=20,
        report_to="tensorboard",
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
    )
    trainer = Trainer(small_model(), arguments, train_dataset=rows())
    AnalysisCallback(trainer, batch(), every=every)
    trainer.train()
    recorded = [entry for entry in trainer.state.log_history if "analysis_dispersion_ratio" in entry]
    assert [round(entry["epoch"]) for entry in recorded] == ([0, 1, 2, 3] if every == 1 else [0, 2, 3])
    assert recorded[0]["analysis_gradient_norm"] == pytest.approx(gradient_norm(small_model(), batch()), rel=1e-6)
    # Every epoch's way is its own, whether the epochs before were recorded or not.
    assert ["analysis_trajectory_ratio" in entry for entry in recorded] == [False] + [True] * (len(recorded) - 1)
    if every == 1:
        for before, after in itertools.pairwise(recorded):
            change = abs(after["analysis_loss"] - before["analysis_loss"])
            assert after["analysis_trajectory_ratio"] == pytest.approx(change / after["analysis_step_norm"], rel=1e-9)
    board = EventAccumulator(str(tmp_path / "board"))
    board.Reload()
    (tag,) = (tag for tag in board.Tags()["scalars"] if tag.endswith("analysis_dispersion_ratio"))
    assert [event.value for event in board.Scalars(tag)] == pytest.approx(
        [entry["analysis_dispersion_ratio"] for entry in recorded], rel=1e-6
    )


@pytest.mark.parametrize(
    "budget", [{"max_steps": 5}, {"num_train_epochs": 2.5}, {"num_train_epochs": 9}], ids=["steps", "part", "stopped"]
)
def test_the_end_of_training_is_recorded_once_wherever_it_falls(budget, tmp_path):
    arguments = TrainingArguments(
        str(tmp_path / "out"), per_device_train_batch_size=20, report_to="none", use_cpu=True, disable_tqdm=True,
        save_strategy="no", eval_strategy="epoch", metric_for_best_model="loss", learning_rate=0.0, **budget,
    )  # fmt: skip
    # Nothing is learnt at a rate of 0, so the third evaluation ends the long run.
    patience = EarlyStoppingCallback(early_stopping_patience=2)
    callbacks = [patience] if budget == {"num_train_epochs": 9} else []
    trainer = Trainer(small_model(), arguments, train_dataset=rows(), eval_dataset=rows(20), callbacks=callbacks)
    AnalysisCallback(trainer, batch(), every=4)
    trainer.train()
    steps = [entry["step"] for entry in trainer.state.log_history if "analysis_dispersion_ratio" in entry]
    assert steps == [0, trainer.state.global_step]


@pytest.mark.parametrize("every", [0, -1, 1.5, True])
def test_an_impossible_interval_is_refused(every):
    with pytest.raises(ValueError, match=f"every is {every!r}; allowed: a whole number"):
        AnalysisCallback(None, {}, every=every)


def spec(**training):
    options = TrainingOptions(epochs=3, stop_early=False, **training)
    model = {**SMALL, "hidden_dropout": 0.2}
    return RunSpec(
        "even_pairs", length=6, train_size=30, validation_size=5, test_size=10, model=model, training=options
    )


def test_a_run_records_its_history_and_trains_the_same_weights(tmp_path):
    results = [train_run(spec(analysis_every=every), tmp_path / str(every)) for every in (0, 2)]
    weights = [load_file(tmp_path / str(every) / "model" / "model.safetensors") for every in (0, 2)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    plain, recorded = (
        [json.loads(line) for line in (tmp_path / str(every) / "history.jsonl").read_text().splitlines()]
        for every in (0, 2)
    )
    assert not any(key.startswith("analysis_") for row in plain for key in row)
    assert ["analysis_dispersion_mask_mean" in row for row in recorded] == [False, True, True]
    assert results[0]["initial_analysis"] is None
    assert results[1]["initial_analysis"]["analysis_gradient_norm"] > 0


def history_of(folder):
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def test_the_recorded_way_is_that_between_the_run_s_checkpoints(tmp_path):
    """Read from the files: the weights of the last two checkpoints, and the loss of the first held-out rows under them."""
    wanted = spec(analysis_every=1)
    train_run(wanted, tmp_path)
    last = history_of(tmp_path)[-1]
    data = load_task(wanted.task, **wanted.data_options())["test"][:20]
    inputs = {"input_ids": torch.tensor(data["input_ids"]), "labels": torch.tensor(data["labels"])}
    folders = sorted((tmp_path / "checkpoints").iterdir(), key=lambda path: int(path.name.split("-")[1]))
    models = [SemFocusForSequenceClassification.from_pretrained(folder).eval() for folder in folders]
    with torch.no_grad():
        losses = [model(**inputs).loss.item() for model in models]
    flat = [torch.cat([value.detach().flatten() for value in model.parameters()]).double() for model in models]
    length = (flat[0] - flat[1]).norm().item()
    assert last["analysis_loss"] == pytest.approx(losses[1], rel=1e-5)
    assert last["analysis_step_norm"] == pytest.approx(length, rel=1e-6)
    assert last["analysis_trajectory_ratio"] == pytest.approx(abs(losses[1] - losses[0]) / length, rel=1e-3)


@pytest.mark.parametrize("every", [1, 2])
def test_a_run_that_goes_on_records_what_it_would_have_recorded(every, tmp_path):
    whole, stopped = spec(analysis_every=every), spec(analysis_every=every)
    stopped = replace(stopped, training=replace(stopped.training, epochs=2))
    train_run(whole, tmp_path / "whole")
    train_run(stopped, tmp_path / "stopped")
    train_run(whole, tmp_path / "stopped")
    rows = [
        [
            {key: value for key, value in row.items() if key.startswith("analysis_")}
            for row in history_of(tmp_path / name)
        ]
        for name in ("whole", "stopped")
    ]
    assert rows[0] == rows[1]
    assert "analysis_trajectory_ratio" in rows[0][-1]


def test_a_specification_written_before_this_option_existed_is_the_same_run():
    earlier = spec().to_dict()
    del earlier["training"]["analysis_every"]
    assert difference(earlier, spec().to_dict()) is None
    assert "analysis_every: 0 there, 1 asked" in difference(earlier, spec(analysis_every=1).to_dict())
