"""Specifications: what is refused, what survives a round trip, what counts as the same run."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_semfocus.data.options import parse_length
from hf_semfocus.experiments.experiment import Experiment, changed_note
from hf_semfocus.experiments.options import merged, nested, read_yaml
from hf_semfocus.experiments.presets import PRESETS, preset
from hf_semfocus.experiments.spec import RunSpec, TrainingOptions, difference, mask_slug, spread_seed


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"task": "parity_chek"}, ["parity_chek", "parity_check"]),
        ({"mask": "topk:0"}, ["topk", "0"]),
        ({"seed": -1}, ["seed", "-1"]),
        ({"train_size": 0}, ["train_size", "0"]),
        ({"model": {1: 2}}, ["model", "1"]),
        ({"task_options": {"length": 10}}, ["length", "the run's"]),
        ({"task_options": {"pooling": "cls"}}, ["pooling", "model.pooling"]),
        ({"model": {"pad_token_id": 5}}, ["pad_token_id", "itself"]),
        ({"training": {"learning_rate": 1e300}}, ["learning_rate", "1e+300"]),
        ({"train_size": "many"}, ["train_size", "many", "a whole number"]),
        ({"lenght": 20}, ["lenght", "length"]),
        ({"model": {"hiden_size": 32}}, ["hiden_size", "hidden_size"]),
        ({"model": {"hidden_size": "wide"}}, ["hidden_size", "wide"]),
        ({"model": {"mask": "full"}}, ["mask"]),
        ({"model": {"dtype": "float16"}}, ["model.dtype", "float32", "training.bf16"]),
        ({"model": {"num_attention_heads": 3}}, ["64", "3"]),
        ({"training": {"epochs": 0}}, ["epochs", "0"]),
        ({"training": {"learning_rate": -1}}, ["learning_rate", "-1"]),
        ({"training": {"learning_rate": float("nan")}}, ["learning_rate", "nan"]),
        ({"training": {"optimizer": "sdg"}}, ["optimizer", "sdg", "sgd"]),
        ({"training": {"optimizer": "adam", "weight_decay": 0.1}}, ["weight_decay", "adamw"]),
        ({"training": {"tau": 1.5}}, ["tau", "1.5"]),
        ({"training": {"keep": "all"}}, ["keep", "best"]),
        ({"training": {"learning_rat": 1.0}}, ["learning_rat", "learning_rate"]),
    ],
    ids=lambda value: json.dumps(value, default=str) if isinstance(value, dict) else None,
)
def test_impossible_values_are_refused_in_words(values, words):
    with pytest.raises(ValueError) as caught:
        RunSpec.from_dict({"task": "even_pairs", **values})
    for word in words:
        assert word in str(caught.value)


def test_making_a_specification_reads_nothing_and_resolving_it_does(tmp_path):
    spec = RunSpec("even_pairs", mask="nobody:3", imports=(str(tmp_path / "missing.py"),), model={"hidden_size": -1})
    experiment = Experiment("x", {"nope": {"imports": ["missing.py"]}}, ("full", "nobody:3"), (0,))
    assert (spec.length, spec.mask_source, experiment.masks) == (None, None, ("full", "nobody:3"))
    with pytest.raises(ValueError, match="missing"):
        spec.resolved()
    with pytest.raises(ValueError, match="nobody"):
        experiment.resolved()
    with pytest.raises(ValueError, match="seed"):
        RunSpec("even_pairs", seed=-1)
    assert RunSpec("listops", mask="topk : 5", length=None).resolved().to_dict()["length"] == [500, 600]


def test_a_specification_survives_json():
    spec = RunSpec(
        task="listops",
        mask="topk:5+sink:1",
        seed=7,
        length=(20, 60),
        model={"num_hidden_layers": 2, "hidden_act": "mish"},
        training=TrainingOptions(optimizer="adamw", weight_decay=0.1, epochs=3),
    )
    assert RunSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


def test_only_the_budget_may_differ_between_a_run_and_its_continuation(tiny):
    spec = tiny().to_dict()
    assert difference(spec, tiny(training={"epochs": 99}).to_dict()) is None
    assert "seed: 0 there, 1 asked" in difference(spec, tiny(seed=1).to_dict())
    assert "learning_rate" in difference(spec, tiny(training={"learning_rate": 0.1}).to_dict())


def test_the_source_of_ones_own_mask_counts_and_its_place_does_not(tmp_path, monkeypatch):
    source = """
from hf_semfocus import MaskStrategy, register_mask_strategy
@register_mask_strategy("spec_own")
class Own(MaskStrategy):
    def pattern(self, query_positions, key_positions):
        return query_positions >= key_positions
"""
    specs = {}
    for folder, text in (("a", source), ("b", source), ("c", source.replace(">=", "<="))):
        (tmp_path / folder).mkdir()
        file = tmp_path / folder / "spec_own_masks.py"
        file.write_text(text)
        monkeypatch.delitem(sys.modules, "spec_own_masks", raising=False)
        specs[folder] = RunSpec(task="even_pairs", mask="spec_own", imports=(str(file),)).resolved().to_dict()
    assert difference(specs["a"], specs["b"]) is None
    assert "mask_source" in difference(specs["a"], specs["c"])
    assert RunSpec(task="even_pairs", mask="full", imports=(str(file),)).resolved().mask_source is None


@given(st.integers(0, 2**31 - 2))
def test_neighbouring_seeds_are_spread_far_apart(seed):
    # Accelerate shuffles epoch e with seed + e: two runs share batch orders if their seeds are within an epoch count
    assert abs(spread_seed(seed) - spread_seed(seed + 1)) > 1000
    assert 0 <= spread_seed(seed) < 2**31


def test_slugs_tell_masks_apart_and_are_safe_as_paths():
    masks = ["full", "topk:5", "banded:5+global:1", "topk:5+sink:1", "random:5;seed=0", "random:5;seed=1"]
    slugs = [mask_slug(mask) for mask in masks]
    assert len(set(slugs)) == len(masks)
    assert all(set(slug) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_.") for slug in slugs)


def test_an_experiment_is_its_grid_with_pairs_close_together():
    experiment = Experiment(
        "x",
        {"even_pairs": {"length": 20}, "parity_check": {}},
        ("full", "topk:5"),
        (0, 1),
        defaults={"training": {"epochs": 7}},
    )
    names = [unit.name for unit in experiment.units()]
    assert names[:4] == [
        "even_pairs/full/seed-0",
        "even_pairs/topk-5/seed-0",
        "parity_check/full/seed-0",
        "parity_check/topk-5/seed-0",
    ]
    assert len(names) == 8
    assert {unit.training.epochs for unit in experiment.units()} == {7}
    assert Experiment.from_dict(json.loads(json.dumps(experiment.to_dict()))) == experiment


def test_masks_share_every_hyperparameter():
    for name in PRESETS:
        experiment = replace(preset(name), seeds=(0,))
        full = {(unit.task, unit.seed): unit for unit in experiment.units() if unit.mask == "full"}
        for unit in experiment.units():
            own = experiment.variants.get(unit.label, {})
            model = {key: value for key, value in unit.model.items() if key not in own}
            assert replace(full[unit.task, unit.seed], mask=unit.mask, variant=unit.variant, model=model) == replace(
                unit, model=model
            )


# What the authors' scripts say: rate, decay, epochs, blocks.
PAPER = {
    "even_pairs": (0.1, 0.9995, 100, 5),
    "stack_manipulation": (0.1, 0.9995, 200, 5),
    "missing_duplicate_string": (0.1, 0.9995, 250, 5),
    "modular_arithmetic_brackets": (0.1, 0.9995, 600, 5),
    "solve_equation": (0.1, 0.9995, 600, 5),
    "cycle_navigation": (0.1, 0.9995, 750, 5),
    "parity_check": (0.1, 0.9995, 1000, 5),
    "listops": (1.0, 0.99, 200, 10),
}
PAPER_LABELS = [
    "full", "band:5", "band:9", "block:5", "block:9", "topk:5", "topk:9",
    "band:5+1global", "band:5+3global", "band:9+1global", "band:9+3global",
    "block:5+1global", "block:5+3global", "block:9+1global", "block:9+3global",
]  # fmt: skip


@pytest.mark.parametrize(("name", "without"), [("paper", set()), ("paper-nnch", {"listops"})])
def test_the_paper_s_presets_are_what_its_authors_ran(name, without):
    units = preset(name).units()
    assert {unit.task for unit in units} == PAPER.keys() - without
    assert sorted({unit.label for unit in units}) == sorted(PAPER_LABELS)
    assert {unit.seed for unit in units} == set(range(10))
    assert len(units) == 15 * 10 * len(PAPER.keys() - without)
    for unit in units:
        rate, decay, epochs, blocks = PAPER[unit.task]
        training, config = unit.training, unit.config()
        assert (training.learning_rate, training.lr_decay, training.epochs) == (rate, decay, epochs)
        assert (training.batch_size, training.max_grad_norm, training.optimizer) == (25, 0.5, "sgd")
        assert (training.momentum, training.weight_decay, training.tau) == (0, 0, 0.95)
        assert (unit.train_size, unit.test_size, config.num_hidden_layers) == (5000, 2000, blocks)
        assert unit.length == ((500, 600) if unit.task == "listops" else 40)
        assert unit.task_options == ({"answer": "top"} if unit.task == "stack_manipulation" else {})
        base, _, more = unit.label.partition("+")
        size = 9 if base.endswith(":9") else 5
        assert config.num_global_tokens == int(more[:1] or 0)
        assert config.padded_length(40) - config.num_global_tokens == (45 if size == 9 else 40)


def test_a_size_that_no_input_has_and_positions_that_are_too_few_are_refused():
    with pytest.raises(ValueError, match=r"pad_to_multiple_of of band:9 is 9; allowed: 1 … 8"):
        replace(preset("paper-nnch"), defaults={**preset("paper-nnch").defaults, "length": 8}).resolved()
    values = {"attend_padding": True, "pad_to_multiple_of": 9, "num_global_tokens": 3}
    for task, options, needed in (
        ("even_pairs", {}, 48),
        ("stack_manipulation", {"answer": "top"}, 48),
        ("stack_manipulation", {}, 84),
    ):
        RunSpec(task, model={**values, "max_position_embeddings": needed}, task_options=options).resolved()
        with pytest.raises(ValueError, match=rf"max_position_embeddings is {needed - 1}; allowed: at least {needed}"):
            RunSpec(task, model={**values, "max_position_embeddings": needed - 1}, task_options=options).resolved()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"masks": ["topk:5"]}, ["baseline", "full"]),
        ({"seeds": []}, ["seeds is []; allowed: at least 1"]),
        ({"masks": []}, ["masks is []; allowed: at least 1"]),
        ({"seeds": [0.5]}, ["seeds"]),
        ({"seeds": [0, 1, -1]}, ["seed", "-1"]),
        ({"defaults": {"mask_source": "abc"}}, ["mask_source", "file"]),
        ({"tasks": {"even_pairs": {}, "parity_check": {"length": 0}}}, ["length", "0"]),
        ({"masks": "full"}, ["masks", "list"]),
        ({"tasks": {"even_pairs": {"seed": 3}}}, ["seed", "grid"]),
        ({"taks": {}}, ["taks", "tasks"]),
        ({"tasks": 3}, ["tasks", "3"]),
        ({"tasks": {"even_pairs": 3}}, ["tasks", "3"]),
        ({"tasks": {"even_pairs": {"model": 3}}}, ["model", "3"]),
        ({"defaults": {"training": "abc"}}, ["training", "abc"]),
        ({"defaults": {"training": "abc"}, "tasks": {"even_pairs": {"training": {"epochs": 1}}}}, ["training", "abc"]),
        ({"tasks": [["a"]]}, ["tasks", "mapping"]),
        ({"defaults": {"imports": 3}}, ["imports", "3"]),
        ({"note": ["a"]}, ["note"]),
        ({"tasks": {"nope": {}}}, ["nope"]),
        ({"tasks": ["even_pairs", "even_pairs"]}, ["tasks", "even_pairs twice"]),
        ({"masks": ["full", "topk:5", "topk: 5"]}, ["masks", "topk:5 twice"]),
        (
            {"masks": ["full", "topk:5+sink:1", "sink:1+topk:5"]},
            ["masks", "topk:5+sink:1 and sink:1+topk:5, which are one"],
        ),
        ({"seeds": [0, 1, 0]}, ["seeds", "0 twice"]),
        ({"name": None}, ["name"]),
    ],
)
def test_experiments_refuse_in_words(change, words):
    values = {"name": "x", "tasks": {"even_pairs": {}}, "masks": ["full", "topk:5"], "seeds": [0], **change}
    with pytest.raises(ValueError) as caught:
        Experiment.from_dict(values)
    for word in words:
        assert word in str(caught.value)


def test_a_changed_experiment_says_what_was_changed_and_not_what_held_before():
    base = preset("quickstart")
    assert changed_note(base, base) is None
    values = base.to_dict()
    values |= {"masks": ["full", "topk:5"], "tasks": {"even_pairs": {"length": 16, "training": {"epochs": 2}}}}
    note = changed_note(base, Experiment.from_dict(values))
    for words in ("length 20 → 16", "training.epochs 30 → 2", "masks full, banded:5, block:5, topk:5 → full, topk:5"):
        assert words in note
    assert "Reduced size" not in note
    # What leaves the sizes as they are leaves the sentence about them, and a second change leaves the first.
    fewer = Experiment.from_dict({**base.to_dict(), "masks": ["full", "topk:5"]})
    note = changed_note(base, fewer)
    assert note.startswith(base.note)
    assert note.endswith("masks full, banded:5, block:5, topk:5 → full, topk:5.")
    # A file that is imported changes no run.
    one = {**base.to_dict(), "seeds": [0], "defaults": {**base.defaults, "imports": ["json"]}}
    note_of_one = changed_note(base, Experiment.from_dict(one))
    assert note_of_one == f"{base.note} 'quickstart', changed on the command line: seeds 0, 1 → 0."
    once = replace(fewer, name="quickstart (changed)", note=note)
    twice = changed_note(once, Experiment.from_dict({**once.to_dict(), "seeds": [0]}))
    assert twice == f"{note} Changed once more: seeds 0, 1 → 0."


def test_yaml_experiments_read(tmp_path):
    from pathlib import Path

    for path in (Path(__file__).parents[2] / "recipes").glob("*.yaml"):
        assert Experiment.from_yaml(path).units()
    bad = tmp_path / "bad.yaml"
    bad.write_text("a: [")
    with pytest.raises(ValueError, match=r"bad\.yaml is not YAML"):
        Experiment.from_yaml(bad)


def test_a_comparison_s_own_record_and_json_are_read(tmp_path):
    """A number that JSON writes without a point stays one; what was recorded beside the experiment is left aside."""
    experiment = Experiment("x", {"even_pairs": {"training": {"learning_rate": 1e-05}}}, ("full", "topk:5"), (0, 3))
    path = tmp_path / "experiment.json"
    path.write_text(json.dumps(experiment.to_dict()))
    assert '"learning_rate": 1e-05' in path.read_text()
    assert Experiment.from_yaml(path) == experiment
    record = {"format": 1, "command": "semfocus compare", "machine": None, **experiment.to_dict()}
    path.write_text(json.dumps(record))
    assert Experiment.from_yaml(path) == experiment
    path.write_text(json.dumps({**record, "units": [unit.name for unit in experiment.units()]}))
    assert Experiment.from_yaml(path) == experiment
    newer = r"experiment\.json was written by a newer .*format 99; .* up to 1"
    wrong = {
        "{": "is not YAML",
        "[]": "holds a list",
        "5": "json holds a single",
        "": "json is empty",
        '{"format": 99}': newer,
    }
    for text, words in wrong.items():
        path.write_text(text)
        with pytest.raises(ValueError, match=words):
            Experiment.from_yaml(path)


def test_files_of_options_are_read_alike_in_yaml_and_json(tmp_path):
    def read(name, text):
        (tmp_path / name).write_text(text)
        return read_yaml(tmp_path / name)

    for name in ("a.json", "a.yaml", "a"):
        values = {"a": 1e-05, "b": -2500.0, "c": 1, "d": "1e-5"}
        assert read(name, '{"a": 1e-05, "b": -2.5E+3, "c": 1, "d": "1e-5"}') == values
        with pytest.raises(ValueError, match=rf"{name} is not YAML.*a"):
            read(name, '{"a": 1, "a": 2}')
    assert read("a.yaml", "a: 1e-5\nb: 1e5x") == {"a": 1e-5, "b": "1e5x"}
    assert read("a.yaml", "b: &b {x: 1}\na: {<<: *b, x: 2}\nc: [*b, *b]")["a"] == {"x": 2}


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"training": []}, r"training is \[\]; allowed: a mapping"),
        ({"model": [1]}, r"model is \[1\]; allowed: a mapping"),
        ({"model": {"deep": {"x": 1}}}, r"model.deep is \{'x': 1\}; allowed: a list"),
        ({"model": {"num_hidden_layers": np.int64(1)}}, "model.num_hidden_layers: .*int64"),
        ({"model": {"hidden_act": "${x"}}, "allowed: plain"),
    ],
)
def test_settings_that_cannot_be_merged_are_refused_in_one_line(over, words):
    with pytest.raises(ValueError, match=words) as caught:
        merged({"training": {"epochs": 1}, "model": {"deep": [1]}}, over)
    assert "\n" not in str(caught.value)


def test_an_unknown_preset_gets_a_suggestion():
    with pytest.raises(ValueError, match="quickstart"):
        preset("quikstart")


def test_settings_are_typed_and_go_over_named_values():
    settings = ["training.learning_rate=1e-3", "training.stop_early=false", "model.hidden_act=gelu", "length=500-600"]
    assert nested({"training.epochs": 3, "length": "40"}, settings) == {
        "training": {"epochs": 3, "learning_rate": 0.001, "stop_early": False},
        "model": {"hidden_act": "gelu"},
        "length": "500-600",
    }
    with pytest.raises(ValueError, match="--set"):
        nested({}, ["a=[1"])
    assert parse_length("500-600") == RunSpec("listops", length="500-600").length == (500, 600)
    for bad in ("", "forty", "5-", "-5", "1.5"):
        with pytest.raises(ValueError, match="length"):
            parse_length(bad)


VARIANTS = {
    "wide": {"mask": "banded:5", "num_hidden_layers": 3},
    "topk:5": {"mask": "topk:5", "hidden_act": "gelu"},  # a name may be a mask's: then it is the variant
}


def varied(**change):
    return Experiment.from_dict(
        {
            "name": "x",
            "tasks": {"even_pairs": {"model": {"num_hidden_layers": 2}}},
            "masks": ["full", "wide", "topk:5", "topk : 9"],
            "seeds": [0],
            "variants": VARIANTS,
            **change,
        }
    )


def test_a_variant_is_a_mask_and_fields_of_the_model_under_a_name():
    experiment = varied()
    full, wide, topk, other = experiment.units()
    assert [unit.label for unit in (full, wide, topk, other)] == ["full", "wide", "topk:5", "topk:9"]
    assert (wide.name, wide.mask, wide.model) == ("even_pairs/wide/seed-0", "banded:5", {"num_hidden_layers": 3})
    assert (topk.variant, topk.model) == ("topk:5", {"num_hidden_layers": 2, "hidden_act": "gelu"})
    assert (other.variant, other.model) == (None, {"num_hidden_layers": 2})
    assert Experiment.from_dict(json.loads(json.dumps(experiment.to_dict()))) == experiment
    assert RunSpec.from_dict(json.loads(json.dumps(wide.to_dict()))) == wide
    assert "variant" in difference(full.to_dict(), replace(full, variant="full").to_dict())
    assert varied(baseline="wide").baseline == "wide"


def test_without_variants_what_is_stored_is_as_it_was_before_there_were_any():
    assert "variants" not in varied(variants={}, masks=["full"]).to_dict()
    assert "variant" not in RunSpec("even_pairs").to_dict()
    assert difference(RunSpec("even_pairs").to_dict(), RunSpec("even_pairs", variant=None).to_dict()) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"masks": ["full", "wid"]}, ["'wid'", "did you mean 'wide'", "mask"]),
        ({"baseline": "narrow"}, ["'narrow'", "wide, topk:5", "mask"]),
        ({"masks": ["full", "banded:4"]}, ["banded:4", "odd"]),
        ({"baseline": 3}, ["baseline", "3"]),
        ({"variants": ["wide"]}, ["variants", "mapping"]),
        ({"variants": {"wide": "banded:5"}}, ["variants.wide", "mapping"]),
        ({"variants": {"wide": {"num_hidden_layers": 3}}}, ["variants.wide", "mask"]),
        ({"variants": {"wide": {"mask": "banded:5", "hiden_size": 3}}}, ["hiden_size", "hidden_size"]),
        ({"variants": {"../up": {"mask": "full"}}, "masks": ["full", "../up"]}, ["variant", "letters"]),
        ({"variants": {"topk-5": {"mask": "full"}}, "masks": ["full", "topk-5", "topk:5"]}, ["share a folder"]),
        ({"tasks": {"even_pairs": {"variant": "wide"}}}, ["variant", "grid"]),
    ],
)
def test_variants_are_refused_in_words(change, words):
    with pytest.raises(ValueError) as caught:
        varied(**change)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_exits_is_named(tmp_path):
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(0)\n")
    with pytest.raises(ValueError, match=r"importing '.*leaves\.py' failed: SystemExit"):
        RunSpec(task="even_pairs", mask="full", imports=(str(tmp_path / "leaves.py"),)).resolved()
