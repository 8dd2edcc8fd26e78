"""What a run records of its untrained attention, and a gain that is chosen for a target of it."""

import json
import math

import pytest
import torch

from hf_semfocus import SemFocusConfig, choose_attention_gain
from hf_semfocus.analysis import initial_attention
from hf_semfocus.cli.analyze_sources import initial_model, loaded, source_of
from hf_semfocus.data import build_tokenizer, load_task
from hf_semfocus.training.results import attention_of, untrained_attention
from hf_semfocus.training.run import train_run
from hf_semfocus.training.run_files import read_run
from hf_semfocus.training.setup import build_model
from tests.small import run

from .test_run import Killed, curve, killer, same_weights


def rows_of(spec):
    return {"input_ids": torch.tensor(load_task(spec.task, **spec.data_options())["train"]["input_ids"])}


def test_a_run_records_the_attention_of_its_untrained_model(tiny, tmp_path):
    spec = tiny(mask="topk:3", model={"attention_gain": 2.0, "normalizer": "entmax15"})
    recorded = train_run(spec, tmp_path).initial_attention
    found = initial_attention(build_model(spec, build_tokenizer(spec.task), 12), rows_of(spec))
    assert recorded["entropy"] == pytest.approx(found.entropy, rel=1e-6)
    assert recorded["dispersion_all"] == pytest.approx(found.dispersion_all, rel=1e-6)
    assert recorded["entropy"] < math.log(3) / math.log(12) < recorded["entropy_all"]
    assert (recorded["attention_gain"], recorded["rows"]) == (2.0, 200)
    assert json.loads((tmp_path / "result.json").read_text())["initial_attention"] == recorded.to_json()
    assert untrained_attention(spec) == recorded


def test_recording_changes_no_weight_also_where_the_mask_draws(tiny, tmp_path, monkeypatch):
    spec = tiny(mask="redraw:3", model={"hidden_dropout": 0.1})
    train_run(spec, tmp_path / "with")
    monkeypatch.setattr("hf_semfocus.training.run.attention_of", lambda *_: None)
    train_run(spec, tmp_path / "without")
    assert same_weights(tmp_path / "with", tmp_path / "without")


def test_inputs_of_one_token_have_none(tiny):
    model = build_model(tiny(), build_tokenizer("even_pairs"), 12)
    assert attention_of(model, {"input_ids": torch.ones(4, 1, dtype=torch.int64)}) is None


@pytest.mark.parametrize("mask", ["full", "topk:3", "redraw:3"])
def test_a_gain_is_chosen_for_the_target_and_repeats_bit_for_bit(tiny, tmp_path, mask):
    spec = tiny(mask=mask, model={"attention_gain": "auto", "target_entropy": 0.3})
    first = train_run(spec, tmp_path / "one")
    with pytest.raises(Killed):
        train_run(spec, tmp_path / "two", on_epoch=killer(1))
    second = train_run(spec, tmp_path / "two")
    assert first["initial_attention"] == second["initial_attention"]
    assert same_weights(tmp_path / "one", tmp_path / "two")
    assert curve(tmp_path / "one") == curve(tmp_path / "two")
    gain = first["initial_attention"]["attention_gain"]
    config = SemFocusConfig.from_pretrained(tmp_path / "one" / "model")
    assert (config.attention_gain, config.target_entropy) == (gain, 0.3)
    assert json.loads((tmp_path / "one" / "spec.json").read_text())["model"]["attention_gain"] == "auto"
    assert first["initial_attention"]["entropy"] == pytest.approx(0.3, abs=1e-3)


def test_a_number_that_was_found_gives_the_same_run(tiny, tmp_path):
    chosen = {"attention_gain": "auto", "target_entropy": 0.6}
    gain = train_run(tiny(mask="full", model=chosen), tmp_path / "auto")["initial_attention"]["attention_gain"]
    result = train_run(tiny(mask="full", model={"attention_gain": gain}), tmp_path / "given")
    assert result["initial_attention"]["entropy"] == pytest.approx(0.6, abs=1e-3)
    assert same_weights(tmp_path / "auto", tmp_path / "given")
    source = source_of(tmp_path / "auto")
    start, other = (initial_model(source, loaded(source)), build_model(tiny(mask="full", model={"attention_gain": gain}),
                                                                     build_tokenizer("even_pairs"), 12))  # fmt: skip
    assert all(torch.equal(a, b) for a, b in zip(start.parameters(), other.parameters(), strict=True))


def test_a_users_own_choice_for_a_configuration():
    config = SemFocusConfig(mask="topk:3", max_position_embeddings=20)
    batch = {"input_ids": torch.randint(1, 32, (8, 20), generator=torch.Generator().manual_seed(0))}
    gain = choose_attention_gain(config, batch, 0.3)
    assert choose_attention_gain(config, batch, 0.2) > gain > choose_attention_gain(config, batch, 0.35)


def test_what_cannot_be_is_said_and_nothing_is_written(tiny, tmp_path):
    with pytest.raises(ValueError, match=r"target_entropy is 0.4; allowed: 0\.000 to 0\.000, what gains"):
        train_run(tiny(mask="topk:1", model={"attention_gain": "auto"}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="attention_gain is 'auto'; allowed where no inputs are at hand: a number"):
        build_model(tiny(model={"attention_gain": "auto"}), build_tokenizer("even_pairs"), 12)
    with pytest.raises(ValueError, match=r"attention_gain must be float.* got 'much'"):
        tiny(model={"attention_gain": "much"})
    with pytest.raises(ValueError, match="target_entropy needs"):
        tiny(model={"target_entropy": 0.5})


def test_a_damaged_record_is_named(tiny, tmp_path):
    train_run(tiny(), tmp_path)
    path = tmp_path / "result.json"
    path.write_text(path.read_text().replace('"entropy":', '"entropy": "low", "other":'))
    with pytest.raises(ValueError, match=r"result\.json is damaged: initial_attention"):
        read_run(tmp_path)


def test_the_command_line_compares_with_chosen_gains(tmp_path, no_workers):
    words = "--masks full topk:3 --seeds 0 --length 12 --train-size 100 --validation-size 50 --test-size 50 --epochs 1 --jobs 1"
    words += " --set model.attention_gain=auto model.target_entropy=0.35 model.hidden_size=16"
    assert run("compare", "--preset", "quickstart", "--output", tmp_path / "out", *words.split()) == 0
    gains = set()
    for mask in ("full", "topk-3"):
        result = json.loads((tmp_path / "out" / "runs" / "even_pairs" / mask / "seed-0" / "result.json").read_text())
        assert result["initial_attention"]["entropy"] == pytest.approx(0.35, abs=1e-3)
        gains.add(result["initial_attention"]["attention_gain"])
    assert len(gains) == 2
