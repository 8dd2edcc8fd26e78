"""Builders: cached by what changes rows, equal rows by every way of making them, types that survive a round trip."""

import datasets
import pytest

from hf_semfocus.data import build_task, label_statistics, load_task, options
from hf_semfocus.data.builders import nnch

from .rows import split_rows

SMALL = {"train_size": 40, "validation_size": 10, "test_size": 20}


@pytest.fixture(autouse=True)
def no_progress():
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


def test_load_task(tmp_path):
    data = load_task("stack_manipulation", length=10, cache_dir=tmp_path, length_splits=[20], **SMALL)
    assert data.num_rows == {"train": 40, "validation": 10, "test": 20, "length_20": 20}
    for split, rows in data.items():
        more = {"length_splits": [20]} if split == "length_20" else {}
        assert rows.to_list() == split_rows("stack_manipulation", split, len(rows), length=10, **more)
    assert set(data["length_20"]["length"]) == {20}


@pytest.mark.parametrize(
    ("name", "length"), [("parity_check", 40), ("stack_manipulation", (5, 12)), ("listops", (4, 60))]
)
def test_types_survive_parquet(tmp_path, name, length):
    data = load_task(name, length=length, cache_dir=tmp_path / "cache", **SMALL)
    for split in data:
        data[split].to_parquet(tmp_path / f"{split}.parquet")
    files = {split: str(tmp_path / f"{split}.parquet") for split in data}
    back = datasets.load_dataset("parquet", data_files=files, cache_dir=str(tmp_path / "cache"))
    assert list(back) == list(data)
    for split in data:
        assert back[split].features == data[split].features
        assert back[split].to_list() == data[split].to_list()
    label = back["train"].features["labels"]
    label = label if isinstance(label, datasets.ClassLabel) else label.feature
    assert label.names == {"parity_check": ["0", "1"], "stack_manipulation": ["0", "1", "END"]}.get(
        name, [str(digit) for digit in range(10)]
    )


def test_unlabelled_positions_survive_shuffling_mapping_and_streaming(tmp_path):
    data = load_task("reverse_string", length=10, cache_dir=tmp_path, **SMALL)["train"]
    rows = {row["text"]: row["labels"] for row in data}
    for other in (
        data.shuffle(seed=0),
        data.map(lambda row: {"labels": row["labels"]}, load_from_cache_file=False),
        data.to_iterable_dataset().shuffle(seed=0, buffer_size=7),
        datasets.Dataset.from_list(data.to_list(), features=data.features),
    ):
        assert {row["text"]: row["labels"] for row in other} == rows


def test_the_cache_is_hit_or_fresh(tmp_path, monkeypatch):
    def folder(**more):
        data = load_task("even_pairs", length=12, cache_dir=tmp_path, **{**SMALL, **more})
        return data["train"].cache_files[0]["filename"]

    made = []
    generate = nnch.NNCH._generate_tables
    monkeypatch.setattr(nnch.NNCH, "_generate_tables", lambda self, shards: made.append(1) or generate(self, shards))
    first = folder()
    assert made
    made.clear()
    assert folder() == first
    assert folder(seed=0, pooling="mean") == first
    assert not made
    others = {
        folder(seed=1),
        folder(train_size=41),
        folder(pooling="cls"),
        folder(allow_duplicates=True),
        folder(length_splits=[13]),
    }
    monkeypatch.setattr(options, "source_digest", lambda: "another source")
    others.add(folder())
    monkeypatch.setattr(options, "GENERATOR_VERSION", "0.0.1")
    others.add(folder())
    assert len(others | {first}) == 8


def test_the_source_digest_sees_every_task(tmp_path):
    files = {path.parts[-2] for path in options.source_files()}
    assert files == {"core", "regular", "dcf", "cs", "listops"}
    assert len(options.source_digest()) == 16


@pytest.mark.parametrize("name", ["missing_duplicate_string", "listops"])
def test_workers_make_the_same_rows(tmp_path, name, monkeypatch):
    monkeypatch.setattr("hf_semfocus.data.generation.SHARD_ROWS", 50)
    monkeypatch.setattr("hf_semfocus.data.builders.common.SHARD_ROWS", 50)
    sizes = {"train_size": 130, "validation_size": 60, "test_size": 20, "length": 12 if name != "listops" else (5, 20)}
    one = load_task(name, cache_dir=tmp_path / "one", **sizes)
    two = load_task(name, cache_dir=tmp_path / "two", num_proc=2, **sizes)
    for split in one:
        assert two[split].to_list() == one[split].to_list()


def test_streaming_gives_the_same_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("hf_semfocus.data.generation.SHARD_ROWS", 50)
    monkeypatch.setattr("hf_semfocus.data.builders.common.SHARD_ROWS", 50)
    sizes = {"train_size": 130, "validation_size": 10, "test_size": 10}
    stored = load_task("cycle_navigation", cache_dir=tmp_path, **sizes)["train"].to_list()
    stream = build_task("cycle_navigation", cache_dir=tmp_path, **sizes).as_streaming_dataset()["train"]
    assert stream.num_shards == 3
    assert list(stream) == stored
    shuffled = stream.shuffle(seed=1, buffer_size=40)
    epochs = []
    for epoch in (0, 1, 0):
        shuffled.set_epoch(epoch)
        epochs.append([row["text"] for row in shuffled])
    assert epochs[0] == epochs[2] != epochs[1]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(row["text"] for row in stored)


def test_statistics(tmp_path):
    data = load_task("parity_check", cache_dir=tmp_path, length=12, **SMALL)["test"]
    counts = {label: data["target"].count(label) for label in "01"} if isinstance(data["target"], list) else None
    counts = counts or {label: list(data["target"]).count(label) for label in "01"}
    statistics = label_statistics(data, "parity_check")
    assert statistics["histogram"] == counts
    assert statistics["chance"] == 0.5
    assert statistics["majority_accuracy"] == max(counts.values()) / 20
    assert counts[statistics["majority_label"]] == max(counts.values())
    part = label_statistics(data.shuffle(seed=0).select(range(5)), "parity_check")
    assert sum(part["histogram"].values()) == 5
    tokens = label_statistics(
        load_task("stack_manipulation", cache_dir=tmp_path, length=6, **SMALL)["test"], "stack_manipulation"
    )
    assert tokens["histogram"]["END"] == 20
    assert tokens["chance"] == pytest.approx(1 / 3)
    assert 0 < tokens["majority_sequence_accuracy"] < 1
    with pytest.raises(ValueError, match="unknown task"):
        label_statistics(data, "parity")


def test_builder_mistakes(tmp_path):
    with pytest.raises(ValueError, match="types are fixed"):
        nnch.NNCH(
            config_name="parity_check",
            cache_dir=str(tmp_path),
            features=datasets.Features({"text": datasets.Value("string")}),
        )
    with pytest.raises(ValueError, match="got '40'"):
        nnch.NNCH(config_name="parity_check", cache_dir=str(tmp_path), length="40")
    with pytest.raises(ValueError, match="data_dir"):
        nnch.NNCH(config_name="parity_check", cache_dir=str(tmp_path), data_dir=str(tmp_path))


def test_too_few_examples_leave_nothing_behind(tmp_path):
    with pytest.raises(ValueError, match=r"even_pairs: the train split .* \(allow_duplicates\)"):
        load_task("even_pairs", length=6, cache_dir=tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".arrow", ".json")]
    assert (
        load_task("even_pairs", length=6, cache_dir=tmp_path, allow_duplicates=True, **SMALL).num_rows["train"] == 40
    )


def test_a_run_that_dies_half_way_is_not_seen_as_complete(tmp_path, monkeypatch):
    generate = nnch.NNCH._generate_tables

    def dies(self, shards):
        yield from list(generate(self, shards))[:1]
        raise OSError("No space left on device")

    monkeypatch.setattr(nnch.NNCH, "_generate_tables", dies)
    with pytest.raises(Exception, match="generating the dataset"):
        load_task("parity_check", cache_dir=tmp_path, **SMALL)
    monkeypatch.setattr(nnch.NNCH, "_generate_tables", generate)
    assert load_task("parity_check", cache_dir=tmp_path, **SMALL).num_rows["train"] == 40
