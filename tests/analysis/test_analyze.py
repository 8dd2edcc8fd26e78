"""`analyze` and `semfocus analyze`: the numbers are those of the single quantities, and what is not defined is never 0."""

import csv
import io
import json
import math
import shutil

import pytest
import torch
from rich.console import Console
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM

from hf_semfocus import SemFocusConfig, apply_attention
from hf_semfocus.analysis import (
    analyze,
    capture_scores,
    dispersion,
    improvement,
    lipschitz,
    probe_quantities,
    separation,
    with_mask,
)
from hf_semfocus.cli.analyze_measure import _recorded
from hf_semfocus.cli.analyze_sources import initial_model, source_of
from hf_semfocus.data import build_tokenizer, load_task
from hf_semfocus.experiments.spec import RunSpec
from hf_semfocus.files import read_json
from hf_semfocus.model.modeling_semfocus import SemFocusForSequenceClassification
from hf_semfocus.report.analysis_pictures import pictures
from hf_semfocus.report.analysis_tables import terminal_tables
from hf_semfocus.training.run import train_run
from tests.small import run

from .test_capture import make_model


def make_rows(count=7):
    generator = torch.Generator().manual_seed(2)
    lengths = [9, 5, 9, 7, 9, 9, 8]
    return [
        {"input_ids": torch.randint(1, 11, (lengths[i % 7],), generator=generator).tolist(), "labels": i % 2}
        for i in range(count)
    ]


def entry(found, quantity, layer=None, head=None):
    return next(e for e in found["quantities"] if (e["quantity"], e["layer"], e["head"]) == (quantity, layer, head))


def one_by_one(model, rows, mask):
    """Every query of every row, each row alone and without padding: (layer, head) → lists."""
    values = {}
    for row in rows:
        for index, layer in enumerate(capture_scores(model, {"input_ids": torch.tensor([row["input_ids"]])}, mask)):
            measured = {
                "dispersion_full": dispersion(layer.scores, layer.valid),
                "dispersion_mask": dispersion(layer.scores, layer.keep),
                "separation": separation(layer.scores, layer.keep, layer.valid),
                "improvement": improvement(layer.scores, layer.keep, layer.valid, layer.input_dependent),
            }
            for name, value in measured.items():
                for head in range(value.shape[1]):
                    values.setdefault((name, index, head), []).extend(value[0, head].tolist())
    return values


@pytest.mark.parametrize(("own", "mask"), [("topk:3", None), ("full", "topk:3"), ("topk:3", "banded:3")])
def test_quantities_are_those_of_each_row_alone(own, mask):
    model, rows = make_model(own), make_rows()
    found = analyze(model, rows, mask, batch_size=3, eps=[0.1], directions=1)
    assert (found["own_mask"], found["mask"], found["examples"]) == (own, mask or own, 7)
    assert (found["layers"], found["heads"]) == (3, 2)
    queries = sum(len(row["input_ids"]) for row in rows)
    for (name, layer, head), values in one_by_one(model, rows, mask).items():
        known = torch.tensor([value for value in values if not math.isnan(value)], dtype=torch.float64)
        measured = entry(found, name, layer, head)
        assert measured["n"] == len(known)
        assert measured["n"] == queries or name in ("separation", "improvement")
        assert measured["max"] == pytest.approx(known.max().item(), rel=1e-4)
        assert measured["mean"] == pytest.approx(known.mean().item(), rel=1e-4)
        assert measured["median"] == pytest.approx(known.quantile(0.5).item(), rel=1e-3, abs=1e-5)
        assert measured["q95"] == pytest.approx(known.quantile(0.95).item(), rel=1e-3, abs=1e-5)
        if name == "improvement":
            condition = next(c for c in found["conditions"] if (c["layer"], c["head"]) == (layer, head))
            assert condition["n"] == queries
            assert condition["improvement_share"] == pytest.approx((known > 0).double().mean().item(), abs=1e-9)
    assert entry(found, "dispersion_full")["n"] == 3 * 2 * queries
    kept = "dispersion_mask" if (mask or own) == own else "dispersion_full" if own == "full" else None
    if kept is not None:
        assert entry(found, "dispersion_own")["mean"] == pytest.approx(entry(found, kept)["mean"])


def test_a_mask_that_keeps_everything_has_no_separation():
    found = analyze(make_model("full"), make_rows(), eps=[0.1], directions=1)
    for name in ("separation", "improvement"):
        measured = entry(found, name)
        assert [measured[part] for part in ("mean", "median", "q95", "max")] == [None] * 4
        assert measured["n"] == 0
    assert found["conditions"][-1]["improvement_share"] is None
    assert found["maxima"] == {"improved": None, "n": 0}
    assert entry(found, "dispersion_ratio")["median"] == 1
    assert found["mask_stability"]["kept_share"] == [[1.0] * 3]
    assert list(found["lipschitz"]) == ["full"]
    document = {"points": [{"name": "full", "moment": "trained", **found}], "between": [], "mask": "full"}
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(terminal_tables(document))
    lines = console.export_text().splitlines()
    separations = next(line for line in lines if line.startswith("Δ"))
    assert separations.count("n/a") == 4
    assert set(pictures(document)) == {"dispersion", "ratio", "noise", "lipschitz"}


def test_a_frozen_model_has_no_gradient_and_is_measured_else():
    model, rows = make_model("topk:2").requires_grad_(False), make_rows(2)
    assert analyze(model, rows, eps=[0.1])["lipschitz"] is None
    batch = {"input_ids": torch.tensor([rows[0]["input_ids"]]), "labels": torch.tensor([0])}
    found = probe_quantities(model, batch)
    assert "gradient_norm" not in found
    assert found["dispersion_ratio"] < 1


def test_a_layer_without_the_condition_is_not_drawn_as_zero():
    found = analyze(make_model("topk:2"), make_rows(2), eps=[0.1], directions=1)
    point = {"name": "topk:2", "moment": "trained", "epochs": None, **found}
    gone = next(entry for entry in point["conditions"] if entry["layer"] == 1 and entry["head"] is None)
    gone["improvement_share"], gone["n_improvement"] = None, 0
    (axes,) = pictures({"mask": "topk:2", "points": [point]})["improvement"].axes
    words = [text.get_text() for text in axes.texts]
    assert words.count("n/a") == 1
    assert len(words) == 3
    assert len(axes.patches) == 2


def test_ties_are_infinite_and_not_hidden():
    model = make_model("topk:1", position_embedding_type="none")
    found = analyze(model, [{"input_ids": [4, 4, 4]}], eps=[0.0])
    assert entry(found, "separation")["max"] == 0
    assert entry(found, "log_stability_mask")["max"] == "inf"
    assert found["lipschitz"] is None
    assert found["maxima"] == {"improved": 0, "n": 6}
    json.dumps(found, allow_nan=False)


def test_lipschitz_compares_masks_at_the_same_weights():
    model, rows = make_model("topk:3"), make_rows(4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = analyze(model, rows, batch_size=1, eps=[0.1], directions=2, seed=5)
    for mask, values in found["lipschitz"].items():
        copied = with_mask(model, mask)
        assert all(torch.equal(value, before[name]) for name, value in copied.state_dict().items())
        batches = [{"input_ids": torch.tensor([r["input_ids"]]), "labels": torch.tensor([r["labels"]])} for r in rows]
        own = lipschitz(copied, batches, torch.Generator().manual_seed(5), directions=2)
        assert values["gradient_norms"] == pytest.approx(own.gradient_norms.tolist(), rel=1e-5)
        assert values["ratios"][1] == pytest.approx(own.ratios[1].flatten().tolist(), rel=1e-3, abs=1e-6)
    assert list(found["lipschitz"]) == ["full", "topk:3"]
    assert found["lipschitz"]["full"]["losses"] != found["lipschitz"]["topk:3"]["losses"]
    assert str(model.config.mask) == "topk:3"


def test_any_model_and_repeatable():
    torch.manual_seed(0)
    sizes = {"vocab_size": 12, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = apply_attention(BertForSequenceClassification(BertConfig(**sizes, intermediate_size=8)), "full")
    first = analyze(model, make_rows(), "topk:3", eps=[0.1], directions=1)
    assert first["own_mask"] == "full"
    assert entry(first, "dispersion_mask")["mean"] < entry(first, "dispersion_full")["mean"]
    assert first == analyze(model, make_rows(), "topk:3", eps=[0.1], directions=1)
    assert model.config._attn_implementation == "semfocus:full"
    with pytest.raises(ValueError, match="no rows"):
        analyze(model, [])
    with pytest.raises(ValueError, match="examples is 0"):
        analyze(model, make_rows(), examples=0)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs that learn nothing (a learning rate of 1e-30): their weights are the initial ones."""
    folder = tmp_path_factory.mktemp("runs")
    for mask in ("full", "topk:3"):
        spec = RunSpec.from_dict(
            {"task": "even_pairs", "mask": mask, "length": 12, "train_size": 60, "validation_size": 10, "test_size": 20,
             "model": {"num_hidden_layers": 2, "hidden_size": 8},
             "training": {"epochs": 1, "learning_rate": 1e-30, "batch_size": 30}}
        )  # fmt: skip
        train_run(spec, folder / mask.replace(":", "-"))
    return folder


def test_initial_weights_are_rebuilt_from_the_run(runs):
    for name in ("full", "topk-3"):
        source = source_of(runs / name)
        trained = SemFocusForSequenceClassification.from_pretrained(source.folder)
        torch.manual_seed(99)
        rebuilt = initial_model(source, trained)
        for key, value in rebuilt.state_dict().items():
            torch.testing.assert_close(value, trained.state_dict()[key], rtol=0, atol=1e-25)


def test_the_command_on_two_runs(runs, tmp_path, capsys):
    out = tmp_path / "out"
    command = ["analyze", runs / "full", runs / "topk-3" / "model", "--examples", 12, "--batch-size", 6]
    assert run(*command, "--directions", 1, "--output", out) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.replace(str(runs), "").split("full, initial · ")[1].splitlines())) <= 100
    found = json.loads((out / "analysis.json").read_text())
    names = [(point["name"], point["moment"], point["epochs"]) for point in found["points"]]
    assert names == [
        ("full", "initial", 0),
        ("full", "trained", 1),
        ("topk:3", "initial", 0),
        ("topk:3", "trained", 1),
    ]
    assert (found["mask"], found["task"], found["length"], found["examples"]) == ("topk:3", "even_pairs", 12, 12)
    # Nothing was learnt, so a run is measured alike before and after.
    assert found["points"][0]["quantities"] == found["points"][1]["quantities"]
    # The first layer sees the same embeddings whatever the mask.
    first = entry(found["points"][0], "dispersion_mask", 0, 0)
    assert first == entry(found["points"][2], "dispersion_mask", 0, 0)
    # Biases go from 0 to 1e-30, and no loss changes.
    assert [path["steps"][0]["ratios"] for path in found["paths"]] == [[0, 0], [0, 0]]
    assert found["paths"][0]["recorded"] is None
    pair = found["between"][1]
    assert (pair["first"], pair["second"], pair["moment"]) == ("full", "topk:3", "trained")
    full, top = (
        entry(found["points"][number], name, 0)["mean"]
        for number, name in ((1, "dispersion_full"), (3, "dispersion_mask"))
    )
    assert pair["layers"][0] == {"layer": 0, "first": full, "second": top, "ratio": pytest.approx(top / full)}
    files = {path.name for path in out.iterdir()}
    assert files == {"analysis.txt", "analysis.csv", "analysis.json"} | {f"{name}.png" for name in pictures(found)}
    assert len(pictures(found)) == 6
    table = list(csv.DictReader((out / "analysis.csv").open()))
    assert len(table) == sum(len(point["quantities"]) for point in found["points"])
    assert "semfocus analyze" in (out / "analysis.txt").read_text()


def test_each_run_is_measured_on_its_own_rows_in_any_order(tmp_path):
    values = {"task": "even_pairs", "length": 12, "train_size": 60, "validation_size": 10, "test_size": 20,
              "training": {"epochs": 1, "learning_rate": 1e-30, "batch_size": 30}}  # fmt: skip
    for seed, pooling in ((0, "mean"), (1, "cls")):
        model = {"num_hidden_layers": 2, "hidden_size": 8, "pooling": pooling}
        train_run(RunSpec.from_dict({**values, "mask": "topk:3", "seed": seed, "model": model}), tmp_path / str(seed))
    measured = []
    for order in (["0", "1"], ["1", "0"]):
        out = tmp_path / "".join(order)
        command = ["analyze", *(tmp_path / name for name in order), "--paper", "--directions", 1]
        assert run(*command, "--examples", 40, "--output", out) == 0
        points = json.loads((out / "analysis.json").read_text())["points"]
        measured.append({point["name"]: point["quantities"] for point in points})
    assert len(measured[0]) == 2
    assert measured[0] == measured[1]


def test_kept_weights_are_those_of_their_epoch(tmp_path):
    spec = RunSpec.from_dict(
        {"task": "even_pairs", "mask": "topk:3", "length": 12, "train_size": 60, "validation_size": 10, "test_size": 20,
         "model": {"num_hidden_layers": 1, "hidden_size": 8},
         "training": {"epochs": 3, "learning_rate": 1e-30, "batch_size": 30, "keep": "best", "stop_early": False}}
    )  # fmt: skip
    train_run(spec, tmp_path / "run")
    # Nothing is learnt, so the first epoch is the best.
    assert (source_of(tmp_path / "run").epochs, read_json(tmp_path / "run/result.json")["epochs_trained"]) == (1, 3)


def test_the_papers_protocol_and_slices(runs, tmp_path, capsys):
    out = tmp_path / "out"
    command = ["analyze", runs / "full", runs / "topk-3", "--paper", "--directions", 1, "--slices", 3]
    assert run(*command, "--slice-directions", 2, "--slice-examples", 20, "--output", out) == 0
    printed = capsys.readouterr().out
    assert "slices: 4 of 3 × 3 losses of 20 examples" in printed
    found = json.loads((out / "analysis.json").read_text())
    # The runs had 60 training examples, and that is all there is of the thousand; at the end of training.
    assert (found["split"], found["examples"]) == ("train", 60)
    assert [(point["name"], point["moment"]) for point in found["points"]] == [
        ("full", "trained"),
        ("topk:3", "trained"),
    ]
    rows = load_task("even_pairs", length=12, train_size=60, validation_size=10, test_size=20, seed=0)["train"]
    batch = {"input_ids": torch.tensor(rows["input_ids"]), "labels": torch.tensor(rows["labels"])}
    values = {"dispersion_full": [], "separation": []}
    model = SemFocusForSequenceClassification.from_pretrained(runs / "full" / "model").eval()
    for layer in capture_scores(model, {"input_ids": batch["input_ids"]}, "topk:3"):
        values["dispersion_full"].append(dispersion(layer.scores, layer.valid).flatten())
        values["separation"].append(separation(layer.scores, layer.keep, layer.valid).flatten())
    for name, levels in (("dispersion_full", [75, 90, 95, 100]), ("separation", [25, 10, 5, 0])):
        expected = torch.cat(values[name]).double().quantile(torch.tensor(levels, dtype=torch.float64) / 100)
        assert found["points"][0]["percentiles"][name] == pytest.approx(expected.clamp_min(1e-9).tolist(), rel=1e-4)
    (first, *_) = found["paper"]
    assert (first["quantity"], first["level"], first["paper"]) == ("dispersion_full", 75, 2.03)
    assert first["ours"] == found["points"][0]["percentiles"]["dispersion_full"][:1]
    assert "differs" in printed
    # No model with topk:5 was given.
    assert {row["median"] for row in found["paper"] if row["quantity"] != "dispersion_full"} == {None}
    grids = json.loads((out / "slices.json").read_text())
    assert [(entry["name"], entry["direction"]) for entry in grids] == [
        ("full", 0), ("full", 1), ("topk:3", 0), ("topk:3", 1),
    ]  # fmt: skip
    with torch.no_grad():
        loss = model(**{name: value[:20] for name, value in batch.items()}).loss.item()
    assert grids[0]["losses"][1][1] == pytest.approx(loss, rel=1e-5) == pytest.approx(grids[1]["loss"], rel=1e-5)
    assert grids[0]["losses"] != grids[1]["losses"]
    assert [entry["slopes"] for entry in found["slices"]] == [entry["slopes"] for entry in grids]
    assert "losses" not in found["slices"][0]
    assert {"paper.png", "slices.png", "slopes.png"} <= {path.name for path in out.iterdir()}


@pytest.fixture(scope="module")
def recorded_run(tmp_path_factory):
    """A run of three epochs that was stopped by its budget, so that its last two checkpoints are there."""
    folder = tmp_path_factory.mktemp("recorded")
    spec = RunSpec.from_dict(
        {"task": "even_pairs", "mask": "topk:3", "length": 12, "train_size": 60, "validation_size": 10, "test_size": 20,
         "model": {"num_hidden_layers": 2, "hidden_size": 8},
         "training": {"epochs": 3, "batch_size": 30, "stop_early": False, "analysis_every": 1}}
    )  # fmt: skip
    train_run(spec, folder)
    return folder


def flat(model):
    return torch.cat([value.detach().double().flatten() for value in model.parameters()])


def test_the_path_of_a_run_is_that_between_its_files(recorded_run, tmp_path, capsys):
    out = tmp_path / "out"
    command = ["analyze", recorded_run, "--examples", 12, "--batch-size", 6, "--directions", 1, "--output", out]
    assert run(*command) == 0
    (path,) = json.loads((out / "analysis.json").read_text())["paths"]
    assert [(step["from"], step["to"]) for step in path["steps"]] == [(0, 2), (2, 3)]
    source = source_of(recorded_run)
    last = SemFocusForSequenceClassification.from_pretrained(source.folder).eval()
    second = SemFocusForSequenceClassification.from_pretrained(recorded_run / "checkpoints" / "checkpoint-4").eval()
    models = [initial_model(source, last).eval(), second, last]
    rows = load_task("even_pairs", length=12, train_size=1, validation_size=1, test_size=12)["test"]
    batches = [rows[:6], rows[6:12]]
    for step, before, after in zip(path["steps"], models, models[1:], strict=False):
        length = (flat(before) - flat(after)).norm().item()
        assert step["step_norm"] == pytest.approx(length, rel=1e-6)
        for ratio, batch in zip(step["ratios"], batches, strict=True):
            inputs = {name: torch.tensor(batch[name]) for name in ("input_ids", "labels")}
            with torch.no_grad():
                change = abs(before(**inputs).loss - after(**inputs).loss).item()
            assert ratio == pytest.approx(change / length, rel=1e-3, abs=1e-6)
    history = [json.loads(line) for line in (recorded_run / "history.jsonl").read_text().splitlines()]
    values = sorted(row["analysis_trajectory_ratio"] for row in history)
    assert path["recorded"] == {"epochs": 3, "median": values[1], "max": values[2]}
    printed = capsys.readouterr().out
    assert "along the path of training" in printed
    assert "recorded each" in printed
    # A checkpoint within the run: the path ends there.
    assert run("analyze", recorded_run / "checkpoints" / "checkpoint-4", *command[2:]) == 0
    found = json.loads((out / "analysis.json").read_text())
    assert [point["epochs"] for point in found["points"]] == [0, 2]
    assert [(step["from"], step["to"]) for step in found["paths"][0]["steps"]] == [(0, 2)]
    assert found["paths"][0]["recorded"]["epochs"] == 2


def test_what_was_recorded_after_a_checkpoint_does_not_count(recorded_run, tmp_path):
    copy = shutil.copytree(recorded_run, tmp_path / "run")  # recorded at epochs 2 and 3, and not at 1
    rows = [json.loads(line) for line in (copy / "history.jsonl").read_text().splitlines()]
    rows[0]["analysis_trajectory_ratio"] = None
    (copy / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    value = rows[1]["analysis_trajectory_ratio"]
    assert _recorded(source_of(copy / "checkpoints" / "checkpoint-4")) == {"epochs": 1, "median": value, "max": value}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing"], ["missing", "does not exist"]),
        (["RUNS"], ["config.json"]),
        (["RUNS/full", "--mask", "tpok:3"], ["tpok", "topk"]),
        (["RUNS/full", "--task", "parity"], ["parity", "parity_check"]),
        (["RUNS/full", "--length", "40"], ["40", "12"]),
        (["RUNS/full", "--examples", "0"], ["examples", "0"]),
        (["RUNS/full", "--directions", "0"], ["directions", "0"]),
        (["RUNS/full", "--slices", "1"], ["slices", "1"]),
        (["RUNS/full", "--slices", "--slice-examples", "0"], ["slice-examples", "0"]),
        ([], ["CHECKPOINT_OR_RUN"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_input_is_one_line_and_exit_code_two(arguments, words, runs, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused([part.replace("RUNS", str(runs)) for part in arguments], words, tmp_path / "out", capsys)


def refused(arguments, words, out, capsys):
    assert run("analyze", *arguments, "--output", out) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert all(word in line for word in words)
    assert not out.exists()


def test_an_output_that_is_a_file_is_one_line(runs, tmp_path, capsys):
    (tmp_path / "out").write_text("mine")
    assert run("analyze", runs / "full", "--output", tmp_path / "out") == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "a file is in the way" in line
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.parametrize("task", ["stack_manipulation", "cycle_navigation"])
def test_a_task_without_a_fitting_head_is_measured_without_a_loss(task, tmp_path):
    torch.manual_seed(0)
    config = SemFocusConfig(
        vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1, max_position_embeddings=64
    )
    SemFocusForSequenceClassification(config).save_pretrained(tmp_path / "model")  # two classes
    command = ["analyze", tmp_path / "model", "--task", task, "--length", 12, "--examples", 8]
    assert run(*command, "--output", tmp_path / "out") == 0
    (point,) = json.loads((tmp_path / "out" / "analysis.json").read_text())["points"]
    assert point["lipschitz"] is None
    assert entry(point, "separation")["n"] > 0


def test_help_and_other_folders(runs, tmp_path, capsys):
    assert run("analyze", "--help") == 0
    assert "example:\n  semfocus analyze" in capsys.readouterr().out
    (tmp_path / "experiment.json").write_text("{}")
    assert run("analyze", tmp_path) == 2
    assert "is a comparison" in capsys.readouterr().err
    (tmp_path / "run").mkdir()
    (tmp_path / "run/spec.json").write_text("{}")
    assert run("analyze", tmp_path / "run") == 2
    assert "it has not finished, failed, or comes from an archive" in capsys.readouterr().err


TEXT = "0 1 1 0 1\n\n1 1 0\n0 0 0 1 1 1 0 1 0 1\n"


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """Models of Transformers, saved: a causal one with sparse attention and a tokenizer, and a dense classifier of the task."""
    folder = tmp_path_factory.mktemp("others")
    torch.manual_seed(0)
    tokenizer = build_tokenizer("even_pairs")
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    llama = LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=2, max_position_embeddings=64))
    apply_attention(llama, "topk:2").save_pretrained(folder / "llama")
    tokenizer.save_pretrained(folder / "llama")
    BertForSequenceClassification(BertConfig(**sizes, num_hidden_layers=1)).save_pretrained(folder / "bert")
    (folder / "lines.txt").write_text(TEXT)
    return folder


def test_another_model_is_measured_on_text(others, tmp_path, capsys):
    out = tmp_path / "out"
    assert run("analyze", others / "llama", "--text", others / "lines.txt", "--length", 6, "--output", out) == 0
    found = json.loads((out / "analysis.json").read_text())
    assert (found["task"], found["text"], found["length"], found["examples"]) == (None, "lines.txt", 6, 3)
    (point,) = found["points"]
    assert (point["name"], point["moment"], point["own_mask"]) == ("llama topk:2", "trained", "topk:2")
    # The same lines, tokenized and measured one by one on the model as Transformers loads it.
    tokenizer = build_tokenizer("even_pairs")
    model = LlamaForCausalLM.from_pretrained(others / "llama")
    ids = [tokenizer(line)["input_ids"][:6] for line in TEXT.splitlines() if line]
    values, losses = [], []
    for row in ids:
        inputs = {"input_ids": torch.tensor([row])}
        for layer in capture_scores(model, inputs):
            values += dispersion(layer.scores, layer.keep).flatten().tolist()
    assert entry(point, "dispersion_mask")["mean"] == pytest.approx(sum(values) / len(values), rel=1e-4)
    # One batch: the loss is the mean over the tokens that have a next one.
    for row in ids:
        logits = model.eval()(input_ids=torch.tensor([row])).logits[0, :-1]
        losses += torch.nn.functional.cross_entropy(logits, torch.tensor(row[1:]), reduction="none").tolist()
    assert point["lipschitz"]["topk:2"]["losses"] == [pytest.approx(sum(losses) / len(losses), rel=1e-4)]
    assert found["paths"] == []
    assert "lines.txt, lines cut at 6 tokens, the first 3 examples" in capsys.readouterr().out.replace("\n", " ")


def test_symbols_that_the_tokenizer_does_not_know_are_told(others, tmp_path, capsys):
    (tmp_path / "words.txt").write_text("0 1 two\n1 0 0 1 x y\n")
    command = ["analyze", others / "llama", "--text", tmp_path / "words.txt", "--batch-size", 1, "--directions", 1]
    assert run(*command, "--output", tmp_path / "out") == 0
    assert "3 of 9 tokens are unknown to its tokenizer ([UNK])" in capsys.readouterr().out
    assert run("analyze", others / "llama", "--text", others / "lines.txt", "--directions", 1) == 0
    assert "unknown" not in capsys.readouterr().out


def test_a_run_is_measured_on_text_without_losses(runs, others, tmp_path):
    out = tmp_path / "out"
    assert run("analyze", runs / "topk-3", "--text", others / "lines.txt", "--examples", 2, "--output", out) == 0
    found = json.loads((out / "analysis.json").read_text())
    assert [point["lipschitz"] for point in found["points"]] == [None, None]
    assert found["examples"] == 2


def test_another_model_is_measured_on_a_task_whose_tokens_it_has(others, tmp_path):
    out = tmp_path / "out"
    command = ["analyze", others / "bert", "--task", "even_pairs", "--length", 12, "--mask", "topk:3", "--examples", 8]
    assert run(*command, "--directions", 1, "--output", out) == 0
    (point,) = json.loads((out / "analysis.json").read_text())["points"]
    assert list(point["lipschitz"]) == ["full", "topk:3"]
    assert entry(point, "dispersion_mask")["mean"] < entry(point, "dispersion_full")["mean"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["OTHERS/bert"], ["--text FILE", "bert"]),
        (["OTHERS/bert", "--text", "OTHERS/lines.txt"], ["bert", "no tokenizer"]),
        (["OTHERS/bert", "--task", "listops", "--length", "20-30"], ["knows", "--text FILE"]),
        (["OTHERS/llama", "--text", "OTHERS/missing.txt"], ["missing.txt", "no such file"]),
        (["OTHERS/llama", "--text", "OTHERS/empty.txt"], ["empty.txt", "no line"]),
        (["OTHERS/llama", "--text", "OTHERS/lines.txt", "--task", "even_pairs"], ["--task", "--text"]),
        (["OTHERS/llama", "--text", "OTHERS/lines.txt", "--length", "4-8"], ["4-8"]),
        (["OTHERS/llama", "--text", "OTHERS/lines.txt", "--paper"], ["--paper", "--text"]),
        (["OTHERS/odd", "--task", "even_pairs"], ["OddModel"]),
        (["OTHERS/two", "--task", "even_pairs"], ["encoder-decoder", "t5"]),
        (["OTHERS/damaged", "--task", "even_pairs"], ["damaged", "cannot be loaded"]),
        (["OTHERS/ours", "--task", "even_pairs"], ["ours", "cannot be loaded"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_does_not_fit_another_model_is_one_line(arguments, words, others, capsys, tmp_path):
    (others / "empty.txt").write_text("\n \n")
    (others / "odd").mkdir(exist_ok=True)
    (others / "odd" / "config.json").write_text('{"model_type": "odd", "architectures": ["OddModel"]}')
    for name, model in (
        ("two", {"model_type": "t5", "is_encoder_decoder": True, "architectures": ["T5ForConditionalGeneration"]}),
        ("damaged", {"model_type": "bert", "architectures": ["BertForSequenceClassification"]}),
        ("ours", {"model_type": "semfocus", "architectures": ["SemFocusForSequenceClassification"]}),
    ):
        (others / name).mkdir(exist_ok=True)
        (others / name / "config.json").write_text(json.dumps(model))
        (others / name / "model.safetensors").write_bytes(b"cut")
    refused([part.replace("OTHERS", str(others)) for part in arguments], words, tmp_path / "out", capsys)
