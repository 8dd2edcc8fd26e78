"""The stored results hold what their archives say, and their numbers follow from the definitions alone."""

import csv
import hashlib
import importlib
import json
import math
import re
import statistics
import sys
from pathlib import Path

import pytest

from tests.report.synthetic import EVERYTHING, write_run_directory

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "recipes"
RESULTS = RECIPES / "results"
STORED = sorted(path.parent for path in RESULTS.rglob("histories.tar.xz"))
each_stored = pytest.mark.parametrize("stored", STORED, ids=lambda path: path.name)


def recipe(name):
    """A module of recipes/, with its neighbours within reach as they are for a script."""
    sys.path.insert(0, str(RECIPES))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(RECIPES))


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory):
    """The run directory of a stored result, unpacked once."""
    made = {}

    def get(stored):
        if stored not in made:
            made[stored] = recipe("store_results").unpack(stored, tmp_path_factory.mktemp(stored.name))
        return made[stored]

    return get


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory):
    """A comparison with every outcome, and what was stored of it without pictures."""
    folder = tmp_path_factory.mktemp("synthetic")
    run_dir = write_run_directory(folder / "run", EVERYTHING)
    recipe("store_results").store(run_dir, folder / "results" / "all", pictures=())
    return run_dir, folder / "results" / "all"


def numbers(value):
    """JSON values with approximate numbers: the last bits are the libraries' own."""
    if isinstance(value, dict):
        return {name: numbers(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [numbers(entry) for entry in value]
    return pytest.approx(value, rel=1e-9, abs=1e-12) if isinstance(value, float) else value


def check_summary(stored, run_dir):
    from hf_semfocus.training.summary import summarise

    made = json.loads(json.dumps(recipe("store_results").stored_summary(summarise(run_dir))))
    assert json.loads((stored / "summary.json").read_text(encoding="utf-8")) == numbers(made)


def own_epochs(run_dir):
    """Epochs, from the definition: {(task, mask, seed, quantity): (the first with the accuracy, or None; epochs trained)}."""
    found = {}
    for folder in run_dir.glob("runs/*/*/seed-*"):
        spec = json.loads((folder / "spec.json").read_text(encoding="utf-8"))
        path = folder / "history.jsonl"
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
        result = folder / "result.json"
        status = json.loads(result.read_text(encoding="utf-8"))["status"] if result.exists() else "unfinished"
        if status == "failed" or (status == "unfinished" and not rows):
            continue
        for quantity, threshold in (("train", "tau"), ("heldout", "heldout_tau")):
            goal = spec["training"][threshold]
            hits = [row["epoch"] for row in rows if (row[f"{quantity}_accuracy"] or 0.0) >= goal]
            key = spec["task"], spec["mask"], spec["seed"], quantity
            found[key] = (min(hits, default=None), len(rows), rows)
    return found


def check_runs(stored, run_dir):
    """summary.csv, a row a run: epochs to both thresholds and both accuracies."""
    own = own_epochs(run_dir)
    with open(stored / "summary.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    told = {(row["task"], row["mask"], int(row["seed"])): row for row in rows if row["epochs_trained"] != "0"}
    assert {key[:3] for key in own} == {key for key, row in told.items() if row["status"] != "failed"}
    for (task, mask, seed, quantity), (reached, trained, history) in own.items():
        row = told[task, mask, seed]
        name = {"train": "epochs_to_tau", "heldout": "epochs_to_heldout_tau"}[quantity]
        assert row[name] == ("" if reached is None else str(reached))
        assert int(row["epochs_trained"]) == trained
        values = [line[f"{quantity}_accuracy"] for line in history if line[f"{quantity}_accuracy"] is not None]
        assert float(row[f"final_{quantity}_accuracy"]) == values[-1]
        if quantity == "heldout":
            assert float(row["best_heldout_accuracy"]) == max(values)


def check_speedups(stored, run_dir):
    """speedups.csv: every ratio of epochs, from the epochs above; intervals by Student's t; bounds where runs are censored."""
    own = own_epochs(run_dir)
    summary = json.loads((stored / "summary.json").read_text(encoding="utf-8"))
    with open(stored / "speedups.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    # 97.5 % points of Student's t for 2 to 8 degrees of freedom, from a printed table.
    table = {2: 4.3027, 3: 3.1824, 4: 2.7764, 5: 2.5706, 6: 2.4469, 7: 2.3646, 8: 2.3060}
    for row in rows:
        lows, highs = [], []
        for seed in summary["seeds"]:
            base, mask = (
                own.get((row["task"], name, seed, row["quantity"])) for name in (summary["baseline"], row["mask"])
            )
            if base is None or mask is None:
                continue
            (base_at, base_ran, _), (mask_at, mask_ran, _) = base, mask
            lows.append((base_at or base_ran) / mask_at if mask_at else 0.0)
            highs.append(base_at / (mask_at or mask_ran) if base_at else math.inf)
            if mask_at is None and base_at is not None:
                assert mask_ran > 0
        assert int(row["n_pairs"]) == len(lows)
        exact = [low for low, high in zip(lows, highs, strict=True) if low == high]
        directions = ["faster" if low > 1 or (low == 1 and high > 1) else "slower" if high < 1 or (high == 1 and low < 1)
                      else "equal" if low == high else "undetermined" for low, high in zip(lows, highs, strict=True)]  # fmt: skip
        for name in ("faster", "slower", "equal", "undetermined"):
            assert int(row[name]) == directions.count(name), row
        if not lows:
            assert row["text"] == "no pairs"
        elif len(exact) == len(lows):
            logs = [math.log(ratio) for ratio in exact]
            assert float(row["estimate"]) == pytest.approx(math.exp(statistics.fmean(logs)))
            if 3 <= len(logs) <= 9:
                half = table[len(logs) - 1] * statistics.stdev(logs) / math.sqrt(len(logs))
                for name, sign in (("low", -1), ("high", 1)):
                    assert math.log(float(row[name])) == pytest.approx(statistics.fmean(logs) + sign * half, abs=1e-3)
        else:
            middle = lambda values: math.prod(sorted(values)[(len(values) - 1) // 2 : len(values) // 2 + 1])  # noqa: E731
            root = 1 if len(lows) % 2 else 2
            assert float(row["low"]) == pytest.approx(middle(lows) ** (1 / root))
            high = middle(highs) ** (1 / root)
            assert row["high"] == "" if high == math.inf else float(row["high"]) == pytest.approx(high)


@each_stored
def test_a_stored_summary_is_what_its_histories_give(stored, unpacked):
    check_summary(stored, unpacked(stored))


@each_stored
def test_every_number_of_a_stored_table_follows_from_the_histories(stored, unpacked):
    check_runs(stored, unpacked(stored))
    check_speedups(stored, unpacked(stored))


@each_stored
def test_a_stored_result_tells_no_place_of_the_machine_that_made_it(stored, unpacked):
    places = re.compile(r"(?<![\w.])/(?:home|root|work|tmp|Users)/")
    for path in [
        *unpacked(stored).rglob("*.json*"),
        *stored.glob("*.json"),
        *stored.glob("*.csv"),
        stored / "README.md",
    ]:
        assert not places.search(path.read_text(encoding="utf-8")), path


def test_the_same_checks_hold_for_every_outcome_that_a_run_can_have(synthetic, tmp_path):
    run_dir, stored = synthetic
    folder = recipe("store_results").unpack(stored, tmp_path / "back")
    check_summary(stored, folder)
    check_runs(stored, folder)
    check_speedups(stored, folder)
    assert not [path for path in folder.rglob("*") if path.is_file() and path.name not in
                ("experiment.json", "spec.json", "history.jsonl", "result.json")]  # fmt: skip
    for path in run_dir.rglob("history.jsonl"):
        assert (folder / path.relative_to(run_dir)).read_bytes() == path.read_bytes()


def test_a_changed_history_is_noticed(synthetic, tmp_path):
    """The checks can fail: one epoch's accuracy, one speed-up."""
    _, stored = synthetic
    folder = recipe("store_results").unpack(stored, tmp_path / "back")
    path = folder / "runs/even_pairs/topk-5/seed-0/history.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[6]["train_accuracy"] = 0.96  # an epoch sooner than it was
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(AssertionError):
        check_runs(stored, folder)
    with pytest.raises(AssertionError):
        check_speedups(stored, folder)


def test_what_is_unfinished_stays_in_sight(synthetic):
    _, stored = synthetic
    text = (stored / "README.md").read_text(encoding="utf-8")
    assert ("24 asked for; 21 finished (9 reached τ, 11 censored, 1 diverged), 1 failed, 1 unfinished, "
            "1 not started") in text  # fmt: skip
    assert "- missing_duplicate_string `block:5`, seed 1: unfinished" in text
    assert "- missing_duplicate_string `block:5`, seed 2: not started, or no epoch yet" in text
    assert "- even_pairs `block:5`, seed 1: diverged in epoch 3" in text
    assert "semfocus compare --preset quickstart --output runs/quickstart" in text
    assert "a processor, 2 cores" in text
    assert "torch 2.13.0" in text


def test_the_same_runs_give_the_same_bytes_and_other_runs_replace_them_whole(synthetic, tmp_path):
    store_results = recipe("store_results")
    run_dir, stored = synthetic
    target = tmp_path / "all"

    def digests(folder):
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}

    store_results.store(run_dir, target, pictures=())
    assert digests(target) == digests(stored)
    (target / "left_over.png").write_bytes(b"a picture of an earlier state")
    other = write_run_directory(tmp_path / "other", {"even_pairs": {"full": [27], "topk:5": [8]}})
    store_results.store(other, target, pictures=("speedups",))
    assert {path.name for path in target.iterdir()} == {
        "README.md", "histories.tar.xz", "speedups.csv", "speedups.png", "summary.csv", "summary.json",
    }  # fmt: skip
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_store_that_fails_leaves_what_was_there(synthetic, tmp_path, monkeypatch):
    store_results = recipe("store_results")
    run_dir, _ = synthetic
    target = tmp_path / "all"
    store_results.store(run_dir, target, pictures=())
    before = (target / "summary.json").read_bytes()
    with pytest.raises(ValueError, match=r"experiment\.json"):
        store_results.store(tmp_path / "nothing", target)
    monkeypatch.setattr(store_results, "about", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        store_results.store(run_dir, target, pictures=())
    assert (target / "summary.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["all"]
    (tmp_path / "search").mkdir()
    with pytest.raises(ValueError, match="holds no stored comparison"):
        store_results.store(run_dir, tmp_path / "search")


def test_a_store_killed_between_its_renames_is_mended(synthetic, tmp_path):
    store_results = recipe("store_results")
    run_dir, _ = synthetic
    store_results.store(run_dir, tmp_path / "all", pictures=())
    (tmp_path / "all").rename(tmp_path / ".all.old")
    store_results.store(run_dir, tmp_path / "all", pictures=())
    assert [path.name for path in tmp_path.iterdir()] == ["all"]


def test_pictures_beyond_the_limit_are_left_out_and_named(synthetic, tmp_path, monkeypatch):
    store_results = recipe("store_results")
    monkeypatch.setattr(store_results, "LARGEST_PICTURE", 10)
    store_results.store(synthetic[0], tmp_path / "all", pictures=("dispersion",))
    assert not list((tmp_path / "all").glob("*.png"))
    assert "Left out for its size: dispersion.png" in (tmp_path / "all" / "README.md").read_text(encoding="utf-8")


def test_places_of_the_machine_are_taken_out(tmp_path):
    store_results = recipe("store_results")
    run_dir = write_run_directory(tmp_path / "run", {"even_pairs": {"full": [27], "topk:5": [8]}})
    path = run_dir / "experiment.json"
    experiment = json.loads(path.read_text())
    experiment["command"] = f"semfocus compare --config {ROOT}/recipes/reduced.yaml --output {Path.home()}/out"
    path.write_text(json.dumps(experiment))
    kept = store_results.store(run_dir, tmp_path / "all", pictures=())
    assert kept["command"] == "semfocus compare --config recipes/reduced.yaml --output ~/out"


def test_the_command_line_says_what_is_wrong(tmp_path, capsys):
    main = recipe("store_results").main
    assert main([str(tmp_path), "--as", "../there"]) == 2
    assert main([str(tmp_path), "--as", "nothing_there"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "store_results: --as is '../there'; allowed: small letters, digits and '_'"
    assert "is not a run directory" in said[1]
    assert not (RESULTS / "nothing_there").exists()
