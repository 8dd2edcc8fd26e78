"""generate: folders that load with types and splits, complete or absent, with a card that says what they are."""

import json
import os
from itertools import combinations

import datasets
import pytest

from hf_semfocus.data import export as export_module
from hf_semfocus.data import generate, label_statistics, load_task
from hf_semfocus.data.bench import GOALS, bench_data
from hf_semfocus.data.cards import card_of
from hf_semfocus.data.options import check_options
from hf_semfocus.data.tasks import TASKS

SMALL = {"train_size": 30, "validation_size": 10, "test_size": 20}


@pytest.mark.parametrize("file_format", ["parquet", "jsonl"])
@pytest.mark.parametrize("name", ["parity_check", "stack_manipulation"])
def test_a_folder_loads_like_the_task(tmp_path, name, file_format):
    seen = []
    folder = generate(
        name,
        tmp_path / "out",
        file_format=file_format,
        length=12,
        length_splits=[20],
        progress=lambda *step: seen.append(step),
        **SMALL,
    )
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["README.md", *(f"{split}.{file_format}" for split in ("train", "validation", "test", "length_20"))]
    )
    assert [step for step in seen if step[0] == "train"] == [("train", 0, 30), ("train", 30, 30)]
    loaded = datasets.load_dataset(str(folder), cache_dir=str(tmp_path / "cache"))
    made = load_task(name, length=12, length_splits=[20], cache_dir=tmp_path / "cache", **SMALL)
    assert list(loaded) == list(made)
    for split in made:
        assert loaded[split].features == made[split].features
        assert loaded[split].to_list() == made[split].to_list()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_the_card(tmp_path):
    folder = generate("parity_check", tmp_path / "out", length=12, command="semfocus generate parity_check", **SMALL)
    card = (folder / "README.md").read_text()
    call = (
        "load_task('parity_check', length=12, train_size=30, validation_size=10, test_size=20, seed=0, pooling='mean')"
    )
    assert call in card
    assert "$ semfocus generate parity_check" in card
    assert "`1 0 1 0 1 0 0` is `1`" in card
    data = eval(call, {"load_task": lambda *a, **k: load_task(*a, cache_dir=tmp_path / "cache", **k)})
    statistics = label_statistics(data["train"], "parity_check")
    assert f"| train | 30 | 0.500 | {statistics['majority_label']} | {statistics['majority_accuracy']:.3f} |" in card
    assert f"0: {statistics['histogram']['0']}, 1: {statistics['histogram']['1']}" in card
    options = check_options("parity_check", {"length": 12, **SMALL})
    pushed = card_of(data, options, command="semfocus generate parity_check")
    # it says where push_to_hub puts the files, and nothing else differs
    assert pushed.replace("data/", "").replace("-*", ".parquet") == card


@pytest.mark.parametrize("more", [{}, {"length_splits": [8, 9]}, {"allow_duplicates": True}], ids=str)
def test_the_card_says_which_inputs_occur_twice(more, tmp_path):
    sizes = {"train_size": 100, "validation_size": 20, "test_size": 40, "length": 8}
    data = load_task("parity_check", cache_dir=tmp_path, **sizes, **more)
    card = card_of(data, check_options("parity_check", {**sizes, **more}))
    inputs = {split: [tuple(ids) for ids in rows["input_ids"]] for split, rows in data.items()}
    in_a_split = any(len(set(rows)) < len(rows) for rows in inputs.values())
    shared = {tuple(sorted(pair)) for pair in combinations(inputs, 2) if {*inputs[pair[0]]} & {*inputs[pair[1]]}}
    match more:
        case {"allow_duplicates": True}:
            assert in_a_split
            assert not shared
            assert "Inputs may occur twice in a split; none of one split is in another." in card
        case {"length_splits": _}:
            assert not in_a_split
            assert shared == {("length_8", "test")}
            assert "Splits `length_<n>` may have inputs of `test`, and none of the others." in card
        case _:
            assert not in_a_split
            assert not shared
            assert "No input occurs twice, in a split or in two." in card


def test_every_task_has_a_card(tmp_path):
    data = load_task("parity_check", length=12, cache_dir=tmp_path, **SMALL)
    for name in TASKS:
        length = (8, 20) if name == "listops" else 12
        assert f"# {name}" in card_of(data, check_options(name, {"length": length, **SMALL}))


def test_json_lines_are_readable(tmp_path):
    folder = generate("even_pairs", tmp_path / "out", file_format="jsonl", length=12, **SMALL)
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    assert len(rows) == 30
    assert set(rows[0]) == {"text", "target", "input_ids", "labels", "length"}


@pytest.mark.parametrize("error", [OSError("No space left on device"), KeyboardInterrupt()])
def test_a_failure_leaves_nothing(tmp_path, monkeypatch, error):
    def fails(*args, **options):
        raise error

    monkeypatch.setattr(export_module, "dataset_card", fails)
    with pytest.raises(type(error)):
        generate("parity_check", tmp_path / "out", **SMALL)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_run_is_cleared_away(tmp_path):
    left = tmp_path / ".out.incomplete-abc"
    left.mkdir()
    (left / "train.parquet").write_bytes(b"half")
    running = tmp_path / ".out.incomplete-def"
    running.mkdir()
    os.utime(left / "train.parquet", (0, 0))
    os.utime(left, (0, 0))
    generate("parity_check", tmp_path / "out", **SMALL)
    # One that may still be at work is left alone.
    assert {path.name for path in tmp_path.iterdir()} == {"out", running.name}


def test_what_is_in_the_way(tmp_path):
    out = tmp_path / "out"
    generate("parity_check", out, **SMALL)
    with pytest.raises(ValueError, match="not empty"):
        generate("parity_check", out, **SMALL)
    generate("even_pairs", out, overwrite=True, **SMALL)
    assert "# even_pairs" in (out / "README.md").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    (out / "thesis.tex").write_text("mine")
    with pytest.raises(ValueError, match="not overwritten"):
        generate("parity_check", out, overwrite=True, **SMALL)
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(ValueError, match="is a file"):
        generate("parity_check", file, overwrite=True, **SMALL)
    with pytest.raises(ValueError, match="did you mean 'parquet'"):
        generate("parity_check", tmp_path / "new", file_format="parket", **SMALL)
    with pytest.raises(ValueError, match=r"\(allow_duplicates\)"):
        generate("even_pairs", tmp_path / "new", length=6)
    assert not (tmp_path / "new").exists()


def test_bench():
    assert set(GOALS) == set(TASKS)
    (speed,) = bench_data(["parity_check"], rows=800, repeats=1)
    assert (speed.rows, speed.length, speed.goal) == (800, (40, 40), 300_000)
    assert speed.examples_per_second == pytest.approx(1000 / speed.milliseconds_per_example)
    with pytest.raises(ValueError, match="at least 8"):
        next(bench_data(["parity_check"], rows=4))
