"""The recipes run, at their quick size, and their numbers are those of the models that they leave."""

import importlib.util
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer

from hf_semfocus.data import load_task
from hf_semfocus.experiments.experiment import Experiment
from hf_semfocus.experiments.presets import preset
from hf_semfocus.experiments.spec import flat
from tests.recipes.recipe_modules import recipe

RECIPES = Path(__file__).parents[2] / "recipes"


def share_right(folder, rows):
    """Accuracy of a saved classifier on rows, one text at a time."""
    model, tokenizer = (
        AutoModelForSequenceClassification.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder),
    )
    right = [
        model(**tokenizer(row["text"], return_tensors="pt")).logits.argmax().item() == row["labels"] for row in rows
    ]
    return sum(right) / len(right)


EXPERIMENTS = sorted(path for path in RECIPES.rglob("*.yaml") if path.parent.name not in ("accelerate", "ray"))


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.relative_to(RECIPES).as_posix())
def test_experiments_load_and_say_their_command_and_size(path):
    text = path.read_text(encoding="utf-8")
    named = [path.parent / name for name in re.findall(r"recipe: ([\w/.]+\.yaml)", text)]
    missing = [name.name for name in named if not name.exists()]
    if missing:  # recipes/search.py makes them, a task at a time
        pytest.skip(f"not found yet: {', '.join(missing)}")
    experiment = Experiment.from_yaml(path)
    assert text.splitlines()[0].startswith(
        f"# semfocus compare --config recipes/{path.relative_to(RECIPES).as_posix()} --output "
    )
    assert "size" in experiment.note
    assert experiment.name == path.stem


@pytest.mark.parametrize(
    "path", [*RECIPES.glob("ablations/*.yaml"), RECIPES / "reduced.yaml"], ids=lambda path: path.stem
)
def test_a_reduced_experiment_differs_from_the_others_in_what_its_name_says(path):
    """Read as YAML, so that it holds before the tasks' recipes are found: one length, one budget, seeds that pair."""
    values, reduced = (yaml.safe_load(file.read_text(encoding="utf-8")) for file in (path, RECIPES / "reduced.yaml"))
    assert set(values["tasks"]) <= set(reduced["tasks"])
    assert set(values["seeds"]) <= set(reduced["seeds"])
    assert values["defaults"]["length"] == reduced["defaults"]["length"]
    assert values["defaults"]["training"]["epochs"] == reduced["defaults"]["training"]["epochs"]
    assert "full" in values["masks"]
    for task, own in values["tasks"].items():
        assert (path.parent / own["recipe"]).resolve() == RECIPES / "tasks" / f"{task}.yaml"


@pytest.mark.parametrize("path", sorted(RECIPES.glob("first/*.yaml")), ids=lambda path: path.stem)
def test_an_unsearched_variant_differs_from_the_unsearched_setting_in_one_thing(path):
    own, base = Experiment.from_yaml(path), Experiment.from_yaml(RECIPES / "theory.yaml")
    for task in own.tasks:
        variant, first = (experiment.spec(task, "full", 0).to_dict() for experiment in (own, base))
        first["training"]["analysis_every"] = variant["training"]["analysis_every"]  # records, and changes nothing
        differing = [
            f"{part}.{key}" for part in ("model", "training") for key in {**variant[part], **first[part]}
            if variant[part].get(key) != first[part].get(key)
        ]  # fmt: skip
        allowed = {"training.optimizer", "training.learning_rate"} if "adam" in path.stem else {differing[0]}
        assert set(differing) == allowed
        assert {name: value for name, value in variant.items() if name not in ("model", "training")} == {
            name: value for name, value in first.items() if name not in ("model", "training")
        }


def test_the_heavy_hitter_comparison_has_the_whole_family_and_masks_that_do_not_choose():
    experiment = Experiment.from_yaml(RECIPES / "heavy_hitters.yaml")
    names = {part.split(":")[0] for mask in experiment.masks for part in mask.split("+")}
    assert names >= {"full", "topk", "topp", "lsh", "cluster", "banded", "random"}
    assert "Reduced" in experiment.note


TIERS = sorted((RECIPES / "paper").glob("*.yaml"))


@pytest.mark.parametrize("path", TIERS, ids=lambda path: path.stem)
def test_a_tier_is_the_papers_recipe_but_for_what_it_is_about(path):
    paper, experiment = preset("paper"), Experiment.from_yaml(path)
    about = {
        "tier3": {"variant", "model.attention_gain", "model.attention_scale", "model.qk_norm", "model.normalizer"},
        "tier4": {"length"},
        "tier5_gelu": {"model.hidden_act"},
        "tier5_mish": {"model.hidden_act"},
        "tier5_adam": {"training.optimizer", "training.learning_rate"},
        "heavy_hitters": {"mask"},
    }.get(path.stem, set())
    differing = set()
    for task in experiment.tasks:
        for label in experiment.masks:
            base = label.split(";")[0] if path.stem == "tier3" else label
            own = flat(experiment.spec(task, label, 0).to_dict())
            theirs = flat(paper.spec(task, base if base in paper.variants else "full", 0).to_dict())
            if base not in paper.variants:  # a mask that is no variant of the paper
                del theirs["variant"]
            differing |= {key for key in {**own, **theirs} if own.get(key) != theirs.get(key)}
    assert differing == about


def test_tier_1_is_what_the_preset_trains():
    """A comparison that was begun by the preset goes on by the file."""
    experiment = Experiment.from_yaml(RECIPES / "paper" / "tier1.yaml")
    paper = replace(preset("paper-nnch"), masks=("full", "topk:5"), seeds=tuple(range(6)))
    assert {unit.name: unit for unit in experiment.units()} == {unit.name: unit for unit in paper.units()}


def test_tier_3_has_what_the_protocol_lists():
    experiment = Experiment.from_yaml(RECIPES / "paper" / "tier3.yaml")
    row = next(
        line
        for line in (RECIPES.parent / "docs" / "protocol.md").read_text("utf-8").splitlines()
        if line.startswith("| 3 |")
    )
    assert "gain 0.5, 1, 1.4, 2, 2.8, 3.8, 4.6, 6; at gain 1: inverse temperature 4 and 25, QK-norm" in row
    both = ["", *(f";gain={gain}" for gain in (0.5, 1.4, 2, 2.8, 3.8, 4.6, 6)), ";beta=4", ";beta=25", ";qk_norm"]
    expected = {mask + change for mask in ("full", "topk:5") for change in both}
    expected |= {f"full;{change}" for change in ("entmax15", "sparsemax", "sparsemax;gain=2")}
    assert set(experiment.masks) == expected
    for label in experiment.masks:
        model = experiment.spec("even_pairs", label, 0).model
        gain = float(re.search(r"gain=([\d.]+)", label)[1]) if "gain" in label else 1.0
        beta = float(re.search(r"beta=([\d.]+)", label)[1]) if "beta" in label else None
        assert model.get("attention_gain", 1.0) == gain
        assert model.get("attention_scale") == (None if beta is None else beta * 64**-0.5)
        assert model.get("qk_norm", False) == ("qk_norm" in label)
        assert model.get("normalizer", "softmax") in [*label.split(";"), "softmax"]


def test_length_generalisation(tmp_path, capsys):
    module = recipe("length_generalisation")
    module.main(["even_pairs", "--output", str(tmp_path), "--quick"])
    found = json.loads((tmp_path / "lengths.json").read_text())
    assert [(row["mask"], row["length"]) for row in found["rows"]] == [
        (mask, length) for mask in ("full", "topk:5") for length in (10, 14, 18)
    ]
    data = load_task(
        "even_pairs", length=10, train_size=100, validation_size=40, test_size=40, length_splits=[14, 18], seed=0
    )
    for row in found["rows"]:
        split = data["test" if row["length"] == 10 else f"length_{row['length']}"]
        assert all(len(text.split()) == row["length"] for text in split["text"])
        folder = tmp_path / "runs" / row["mask"].replace(":", "-") / "seed-0" / "model"
        assert row["accuracy"] == pytest.approx(share_right(folder, split))
        ones = sum(split["labels"])
        assert found["majority"][str(row["length"])] == pytest.approx(max(ones, 40 - ones) / 40)
    printed = capsys.readouterr().out
    assert "quick run: reduced" in printed
    assert "| `topk:5` |" in printed
    assert (tmp_path / "lengths.md").read_text() in printed
    assert (tmp_path / "lengths.png").read_bytes()[:4] == b"\x89PNG"
    assert len((tmp_path / "lengths.csv").read_text().splitlines()) == 7


def test_pretraining(tmp_path, capsys, monkeypatch):
    module, starts = recipe("pretraining"), []
    plain = module.fine_tuned

    def watched(options, model, rows, seed, told):
        starts.append({name: tensor.clone() for name, tensor in model.model.state_dict().items()})
        return plain(options, model, rows, seed, told)

    monkeypatch.setattr(module, "fine_tuned", watched)
    monkeypatch.setitem(module.QUICK, "masks", ["cluster:2", "topk:5"])
    module.main(["missing_duplicate_string", "--output", str(tmp_path), "--quick"])
    found = json.loads((tmp_path / "pretraining.json").read_text())
    masks = ("cluster:2;decay=0.999", "topk:5")
    assert [(run["mask"], run["start"]) for run in found["runs"]] == [
        (mask, start) for mask in masks for start in ("pretrained", "scratch")
    ]
    # Fine-tuning starts from what was pretrained, learnt centroids among it, or from other weights.
    for folder, pretrained, scratch in zip(
        ("cluster-2-decay-0.999", "topk-5"), starts[::2], starts[1::2], strict=True
    ):
        kept = AutoModelForMaskedLM.from_pretrained(tmp_path / "models" / folder / "seed-0").model.state_dict()
        assert all(torch.equal(pretrained[name], kept[name]) for name in kept)
        assert not all(torch.equal(scratch[name], kept[name]) for name in kept)
    for run in found["runs"]:
        assert [entry["epoch"] for entry in run["history"]] == [0, 1, 2]
        assert [entry["epoch"] for entry in run["pretraining"]] == [1, 2]
        assert run["pretraining"][1]["loss"] < run["pretraining"][0]["loss"]
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "models" / "topk-5" / "seed-0")
    assert model.config.mask == "topk:5"
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "models" / "topk-5" / "seed-0")
    assert model(**tokenizer("0 [MASK] 1", return_tensors="pt")).logits.shape == (1, 3, len(tokenizer))
    assert "masked tokens" in capsys.readouterr().out
    assert (tmp_path / "pretraining.png").read_bytes()[:4] == b"\x89PNG"


def test_pretraining_goes_on_where_it_stopped(tmp_path, monkeypatch, capsys):
    """Stopped after the first mask's pretraining, and started again: the same results as without the stop."""
    module = recipe("pretraining")
    monkeypatch.setitem(module.QUICK, "masks", ["topk:5"])
    arguments = ["missing_duplicate_string", "--quick", "--output"]
    module.main([*arguments, str(tmp_path / "whole")])
    plain = module.fine_tuned

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "fine_tuned", stopped)
    with pytest.raises(KeyboardInterrupt):
        module.main([*arguments, str(tmp_path / "stopped")])
    monkeypatch.setattr(module, "fine_tuned", plain)
    monkeypatch.setattr(module, "pretrained", stopped)  # it is not done again
    module.main([*arguments, str(tmp_path / "stopped")])
    whole, again = (
        json.loads((tmp_path / name / "pretraining.json").read_text()) | {"command": None}
        for name in ("whole", "stopped")
    )
    assert whole == again
    # Nothing is left to do, and other settings are refused.
    monkeypatch.setattr(module, "fine_tuned", stopped)
    module.main([*arguments, str(tmp_path / "stopped")])
    monkeypatch.setitem(module.QUICK, "epochs", 3)
    with pytest.raises(SystemExit, match="2"):
        module.main([*arguments, str(tmp_path / "stopped")])
    assert re.search(r"pretraining: .*epochs 2, asked: 3", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [(name, wrong) for name in ("length_generalisation", "pretraining") for wrong in ("--epochs 0", "--masks tpk:3")]
    + [("pretraining", "--pretraining-epochs 0"), ("pretraining", "--learning-rate -1")],
)  # fmt: skip
def test_recipes_refuse_what_cannot_be_trained_before_any_work(name, wrong, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        recipe(name).main(["even_pairs", "--output", str(tmp_path / "out"), *wrong.split()])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{name}: ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["length_generalisation", "pretraining"])
def test_stored_results_say_their_command_and_size_and_are_those_of_the_table(name):
    folder = RECIPES / "results" / name
    stem = {"length_generalisation": "lengths", "pretraining": "pretraining"}[name]
    found, module = json.loads((folder / f"{stem}.json").read_text()), recipe(name)
    table = (folder / f"{stem}.md").read_text()
    assert table == module.table(found)
    assert table.startswith(f"`python recipes/{name}.py ")
    assert "Reduced size" in table
    assert (folder / f"{stem}.png").is_file()


def test_the_cost_of_recording_is_clocked(capsys):
    """With a size so small that the share means nothing: what is printed are the clocked times."""
    from hf_semfocus.training.analysis_callback import EpochProbe

    path = RECIPES / "benchmarks" / "analysis_overhead.py"
    spec = importlib.util.spec_from_file_location("analysis_overhead", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    before, kept = EpochProbe.measured, []
    plain = module.epochs_of
    module.epochs_of = lambda spec: kept.append(plain(spec)) or kept[-1]
    threads = torch.get_num_threads()
    try:
        module.main(["--size", "14x1x60", "--masks", "topk:2", "--rounds", "1", "--epochs", "2"])
    finally:
        torch.set_num_threads(threads)
    assert EpochProbe.measured is before
    without, recorded = kept
    assert [len(without), len(recorded)] == [2, 2]
    assert [epoch["recording"] for epoch in without] == [0, 0]
    for epoch in recorded:
        assert 0 < epoch["recording"] < epoch["whole"]
        assert 0 < epoch["steps"] < epoch["whole"] - epoch["recording"] + 1e-3
    printed = capsys.readouterr().out
    assert "length 14, 1 blocks, 60 rows, topk:2: recording " in printed
    assert "goal under 10%" in printed


def test_the_stored_cost_of_recording_is_what_the_guide_says():
    first, _, *lines = (RECIPES / "results" / "analysis_overhead.txt").read_text().splitlines()
    assert first == "$ python recipes/benchmarks/analysis_overhead.py"
    shares = [float(re.search(r"an epoch, ([\d.]+) % of", line)[1]) for line in lines]
    assert len(shares) == 6
    assert max(shares) < 10
    assert "less than a tenth of its time" in " ".join((RECIPES.parent / "docs/guides/theory.md").read_text().split())
