"""The summary of synthetic run directories: every outcome in its place, and damage named."""

import csv
import json
import re
import shutil
from functools import partial

import pytest

from hf_semfocus.comparison.summary import summarise, write_summary
from hf_semfocus.report.html import write_report
from hf_semfocus.report.words import epochs_of, median_epochs_text, median_seconds_text, paired_seconds, speed_up_words
from tests.report.synthetic import EVERYTHING, QUICKSTART, write_run_directory


@pytest.fixture
def everything(tmp_path):
    return write_run_directory(tmp_path / "run", EVERYTHING)


def find(entries, **wanted):
    (found,) = [entry for entry in entries if all(entry[name] == value for name, value in wanted.items())]
    return found


def test_every_run_that_was_asked_for_appears_with_its_outcome(everything):
    summary = summarise(everything)
    assert len(summary["runs"]) == 2 * 4 * 3
    status = {(run["task"], run["mask"], run["seed"]): run["status"] for run in summary["runs"]}
    assert status["even_pairs", "full", 0] == "reached"
    assert status["even_pairs", "banded:5", 0] == "censored"
    assert status["even_pairs", "block:5", 1] == "diverged"
    assert status["missing_duplicate_string", "banded:5", 2] == "failed"
    assert status["missing_duplicate_string", "block:5", 1] == "unfinished"
    assert status["missing_duplicate_string", "block:5", 2] == "unfinished"  # asked for, and never started
    missing = find(summary["runs"], task="missing_duplicate_string", mask="block:5", seed=2)
    assert (missing["path"], missing["epochs_trained"], missing["budget"]) == (None, 0, None)
    assert "worker" in find(summary["runs"], status="failed")["error"]


def test_a_run_by_hand(everything):
    run = find(summarise(everything)["runs"], task="even_pairs", mask="topk:5", seed=0)
    assert (run["epochs_to_tau"], run["epochs_to_heldout_tau"], run["epochs_trained"], run["budget"]) == (
        8,
        10,
        10,
        40,
    )
    assert (run["seconds_to_tau"], run["seconds_to_heldout_tau"], run["seconds"]) == (10.0, 12.5, 15.0)
    assert (run["final_train_accuracy"], run["final_heldout_accuracy"]) == (0.991, 0.96)
    assert run["path"] == "runs/even_pairs/topk-5/seed-0"
    assert [row["epoch"] for row in run["history"]] == list(range(1, 11))


def test_aggregates_by_hand(everything):
    summary = summarise(everything)
    topk = find(summary["aggregates"], task="even_pairs", mask="topk:5")
    assert epochs_of(summary.runs_of("even_pairs", "topk:5"), "train") == "8, 6, 9"
    assert topk["median_epochs"] == 8
    assert (topk["n_runs"], topk["n_reached"], topk["n_censored"]) == (3, 3, 0)
    assert topk["seconds_per_epoch"] == pytest.approx(1.25)
    # the shortest run that did not diverge is topk:5 seed 1, which stopped in epoch 8
    assert {entry["common_epoch"] for entry in summary["aggregates"] if entry["task"] == "even_pairs"} == {8}
    block = find(summary["aggregates"], task="even_pairs", mask="block:5")
    runs = summary.runs_of("even_pairs", "block:5")
    assert epochs_of(runs, "train") == ">40, >3 (diverged), >40"
    assert (block["n_censored"], block["n_diverged"], block["n_common"]) == (2, 1, 2)
    assert (block["median_epochs"], block["median_seconds"]) == (None, None)
    assert median_epochs_text([run.convergence("train") for run in runs]) == ">40"
    assert median_seconds_text(runs, "train") == ">50"
    banded = find(summary["aggregates"], task="missing_duplicate_string", mask="banded:5")
    assert epochs_of(summary.runs_of("missing_duplicate_string", "banded:5"), "train") == ">40, >40, failed"
    assert banded["n_failed"] == 1
    runs = summary.runs_of("missing_duplicate_string", "block:5")
    assert epochs_of(runs, "train") == ">40, >12 (unfinished), unfinished"


def test_accuracies_at_the_common_epoch_are_means_of_that_epoch(everything):
    summary = summarise(everything)
    for entry in summary["aggregates"]:
        runs = [run for run in summary["runs"] if (run["task"], run["mask"]) == (entry["task"], entry["mask"])]
        rows = [
            run["history"][entry["common_epoch"] - 1]
            for run in runs
            if run["status"] in ("reached", "censored") or (run["status"] == "unfinished" and run["history"])
        ]
        assert entry["n_common"] == len(rows)
        for name in ("train", "heldout"):
            mean = sum(row[f"{name}_accuracy"] for row in rows) / len(rows)
            assert entry[f"{name}_accuracy_common"] == pytest.approx(mean)


def test_speedups_by_hand(everything):
    summary = summarise(everything)
    speedups = summary["speedups"]
    assert not [entry for entry in speedups if entry["mask"] == "full"]
    topk = find(speedups, task="even_pairs", mask="topk:5", quantity="train")
    assert topk["estimate"] == pytest.approx((27 / 8 * 15 / 6 * 33 / 9) ** (1 / 3))
    assert (topk["interval_kind"], str(speed_up_words(topk))) == ("student_t_95", "3.1× [1.9, 5.2]")
    assert paired_seconds(summary, topk) == ("33.8", "10")
    heldout = find(speedups, task="even_pairs", mask="topk:5", quantity="heldout")
    assert heldout["estimate"] == pytest.approx((29 / 10 * 17 / 8 * 35 / 11) ** (1 / 3))
    banded = find(speedups, task="missing_duplicate_string", mask="banded:5", quantity="train")
    assert (banded["n_pairs"], banded["undetermined"]) == (2, 2)
    assert [one.to_json() for one in banded["without_pair"]] == [{"seed": 2, "baseline": None, "mask": "failed"}]
    censored = find(speedups, task="missing_duplicate_string", mask="topk:5", quantity="train")
    assert [(pair["lower"], pair["upper"]) for pair in censored["pairs"]] == [
        (40 / 26, None),
        (40 / 30, None),
        (0, 36 / 40),
    ]
    assert str(speed_up_words(censored)) == "median > 1.3× (2 faster, 1 slower of 3)"
    assert censored["restricted_mean_ratio"] == pytest.approx((40 + 40 + 36) / (26 + 30 + 40))


def test_a_run_that_reached_tau_and_then_diverged_keeps_its_epochs(tmp_path):
    folder = write_run_directory(tmp_path / "run", QUICKSTART)
    path = folder / "runs/even_pairs/topk-5/seed-0/result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "status": "reached", "stopped": "diverged"}))
    summary = summarise(folder)
    run = find(summary["runs"], mask="topk:5", seed=0)
    assert (run["status"], run["diverged"], run["epochs_to_tau"]) == ("reached", True, 8)
    assert find(summary["speedups"], mask="topk:5", quantity="train")["n_pairs"] == 2


@pytest.mark.parametrize("where", ["task", "defaults"])
def test_a_run_that_ended_below_the_budget_now_asked_for_is_unfinished(tmp_path, where):
    """As it is once the comparison takes it up again; a run that stopped for another reason stays as it ended."""
    outcomes = {"even_pairs": {"full": [27, 15], "topk:5": [None, 39], "block:5": ["diverged:3", "failed"]}}
    folder = write_run_directory(tmp_path / "run", outcomes, budget=40)
    before = summarise(folder)
    asked = json.loads((folder / "experiment.json").read_text())
    training = {"epochs": 60}
    if where == "task":
        asked["tasks"]["even_pairs"]["training"] = training
        asked["defaults"]["training"] = {"epochs": 40}
    else:
        asked["defaults"]["training"] = training
    (folder / "experiment.json").write_text(json.dumps(asked))
    after = summarise(folder)
    find_run = partial(find, after["runs"])
    assert find(before["runs"], mask="topk:5", seed=0)["status"] == "censored"
    told = find_run(mask="topk:5", seed=0)
    assert (told["status"], told["epochs_trained"], told["budget"]) == ("unfinished", 40, 60)
    # 39 epochs to τ are known; its held-out threshold was not met, and the run goes on for that
    told = find_run(mask="topk:5", seed=1)
    assert (told["status"], told["epochs_to_tau"], told["epochs_to_heldout_tau"]) == ("unfinished", 39, None)
    assert find_run(mask="full", seed=0)["status"] == "reached"
    assert [find_run(mask="block:5", seed=seed)["status"] for seed in (0, 1)] == ["diverged", "failed"]
    assert epochs_of(after.runs_of("even_pairs", "topk:5"), "train") == ">40 (unfinished), 39"
    # what is known before the first epoch stays
    for name in ("majority_accuracy", "parameters"):
        for kept, was in zip(after["runs"], before["runs"], strict=True):
            assert kept[name] == was[name]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tasks": {"even_pairs": {"training": {"epochs": "9"}}}}, "tasks.even_pairs.training.epochs is '9'"),
        ({"defaults": {"training": {"epochs": -1}}}, "defaults.training.epochs is '-1'"),
        ({"defaults": {"training": 9}}, "defaults.training is '9'"),
        ({"tasks": {"even_pairs": 9}}, "tasks.even_pairs is '9'"),
    ],
)
def test_settings_that_no_comparison_writes_are_named(tmp_path, change, message):
    folder = write_run_directory(tmp_path / "run", QUICKSTART)
    asked = json.loads((folder / "experiment.json").read_text())
    (folder / "experiment.json").write_text(json.dumps({**asked, **change}))
    with pytest.raises(ValueError, match=re.escape(message)):
        summarise(folder)


def test_seeds_of_both_masks_are_paired_whatever_their_order(tmp_path):
    folder = write_run_directory(tmp_path / "run", QUICKSTART)
    shutil.rmtree(folder / "runs/even_pairs/full/seed-0")
    entry = find(summarise(folder)["speedups"], mask="topk:5", quantity="train")
    assert [pair["seed"] for pair in entry["pairs"]] == [1]
    assert str(speed_up_words(entry)) == "2.5× (1 pair)"
    assert [one.to_json() for one in entry["without_pair"]] == [{"seed": 0, "baseline": "unfinished", "mask": None}]


def test_tasks_carry_chance_majority_and_shared_hyperparameters(everything):
    summary = summarise(everything)
    task = find(summary["tasks"], name="even_pairs")
    assert (task["chance"], task["majority_accuracy"], task["level"]) == (0.5, 0.511, "regular")
    assert task["hyperparameters"]["training"]["learning_rate"] == 0.3
    assert task["hyperparameters"]["model"] == {"num_hidden_layers": 3}
    assert task["differing"] == []
    assert (summary["tau"], task["tau"]) == (0.95, 0.95)
    reach = find(summary["reach"], task="even_pairs", mask="banded:5")
    assert (reach["kind"], reach["left"], reach["length"]) == ("window", 6, 20)
    assert summary["machine"]["cores"] == 2
    assert summary["versions"]["torch"] == "2.13.0"


def test_runs_of_several_machines_are_counted_by_machine(tmp_path):
    folder = write_run_directory(tmp_path, {"even_pairs": {"full": [10, 12], "topk:5": [8, "unfinished"]}})
    assert summarise(folder)["machines"] == []  # nothing recorded: experiment.json tells where
    here = {"platform": "Linux", "processor": "one of our own", "cores": 4}
    path = folder / "runs/even_pairs/full/seed-1/result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "machine": here}))
    machines = [entry.to_json() for entry in write_summary(folder)["machines"]]
    assert machines == [{"machine": None, "runs": 2}, {"machine": here, "runs": 1}]
    page = write_report(folder).read_text()
    assert "2 runs: machine not recorded." in page
    assert "1 run: platform Linux, processor one of our own, cores 4." in page


def test_settings_that_differ_between_masks_are_named(everything):
    path = everything / "runs/even_pairs/topk-5/seed-0/spec.json"
    spec = json.loads(path.read_text())
    spec["training"]["learning_rate"] = 1.0
    spec["train_size"] = 400
    path.write_text(json.dumps(spec))
    task = find(summarise(everything)["tasks"], name="even_pairs")
    assert task["differing"] == ["training.learning_rate", "train_size"]
    assert "learning_rate" not in task["hyperparameters"]["training"]


def test_the_files_agree_and_hold_strict_json(everything):
    summary = write_summary(everything)

    def refuse(constant):
        raise AssertionError(constant)

    write_report(everything)
    text = (everything / "summary.json").read_text(encoding="utf-8")
    assert json.loads(text, parse_constant=refuse) == summary.to_json()
    with open(everything / "summary.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(summary["runs"])
    assert [row["epochs_to_tau"] for row in rows[:3]] == ["27", "15", "33"]
    with open(everything / "speedups.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(summary["speedups"])
    assert rows[-2]["pairs"].startswith("seed 0: >40 / 26 = > 1.5×; ")
    assert not [path for path in everything.iterdir() if path.name.startswith(".")]
    assert write_summary(everything) == summary


@pytest.mark.parametrize("name", ["experiment.json", "summary.json", "runs/even_pairs/topk-5/seed-0/result.json"])
def test_what_a_newer_version_wrote_is_not_written_over(everything, name):
    path = everything / name
    values = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**values, "format": 99}))
    before = {path: path.read_bytes() for path in everything.rglob("*.json")}
    with pytest.raises(ValueError, match=rf"{name} was written by a newer"):
        write_summary(everything)
    assert {path: path.read_bytes() for path in everything.rglob("*.json")} == before


def test_losses_that_are_not_numbers_do_not_reach_the_json(everything):
    path = everything / "runs/even_pairs/block-5/seed-1/history.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:-1], lines[-1].replace("null", "NaN", 1)]) + "\n")
    run = find(write_summary(everything)["runs"], task="even_pairs", mask="block:5", seed=1)
    assert run["history"][-1]["train_loss"] is None


SEED = "runs/even_pairs/topk-5/seed-0"


@pytest.mark.parametrize(
    ("path", "change", "message"),
    [
        ("experiment.json", lambda text: text[:40], "not JSON"),
        ("experiment.json", lambda text: text.replace('"masks"', '"masques"'), "masks is missing"),
        (f"{SEED}/spec.json", lambda text: text.replace('"mask"', '"masque"'), "mask is missing"),
        (f"{SEED}/spec.json", lambda text: text.replace('"tau"', '"t"'), "training.tau is missing"),
        (f"{SEED}/history.jsonl", lambda text: text[:-20], "line 10: it is not JSON"),
        (f"{SEED}/history.jsonl", lambda text: text.replace('"epoch": 4,', '"epoch": 5,'), "line 4 is epoch 5"),
        (f"{SEED}/history.jsonl", lambda text: text.replace("0.991", "NaN"), "train_accuracy is 'nan'"),
        (
            f"{SEED}/history.jsonl",
            lambda text: re.sub(r'"heldout_accuracy": [0-9.]+', '"heldout_accuracy": null', text, count=1),
            "heldout_accuracy is 'None'",
        ),
        (f"{SEED}/history.jsonl", lambda text: text.split("\n", 1)[0] + "\n", "epochs_trained is 10"),
        (f"{SEED}/result.json", lambda text: text.replace('"reached"', '"arrived"', 1), "status is 'arrived'"),
        (f"{SEED}/result.json", lambda text: text.replace('tau": 8', 'tau": 7'), "epochs_to_tau is 7"),
    ],
)
def test_a_damaged_file_raises_and_is_named(everything, path, change, message):
    file = everything / path
    before = file.read_text(encoding="utf-8")
    after = change(before)
    assert after != before
    file.write_text(after, encoding="utf-8")
    with pytest.raises(ValueError, match="damaged") as caught:
        write_summary(everything)
    assert message in str(caught.value)
    assert file.parent.name in str(caught.value)
    assert "restore it, or move" in str(caught.value)
    assert not (everything / "summary.json").exists()


def test_lost_and_double_files_raise(everything, tmp_path):
    with pytest.raises(ValueError, match=r"not a run directory.*experiment\.json"):
        summarise(tmp_path / "nowhere")
    shutil.copytree(everything / SEED, everything / "runs/even_pairs/topk-5/seed-00")
    with pytest.raises(ValueError, match=r"seed-00 holds the run of even_pairs/topk-5/seed-0"):
        summarise(everything)
    shutil.rmtree(everything / "runs/even_pairs/topk-5/seed-00")
    history = (everything / SEED / "history.jsonl").read_bytes()
    (everything / SEED / "history.jsonl").unlink()
    with pytest.raises(ValueError, match=r"history\.jsonl is missing beside .*result\.json"):
        summarise(everything)
    (everything / SEED / "history.jsonl").write_bytes(history)
    (everything / SEED / "spec.json").unlink()
    with pytest.raises(ValueError, match=r"spec\.json is missing"):
        summarise(everything)
    (everything / "experiment.json").rename(everything / "histories.tar.xz")  # a stored result, not yet unpacked
    with pytest.raises(ValueError, match=r"unpack it first: python -m recipes.reproduction.archive --unpack"):
        summarise(everything)


def test_a_comparison_without_an_epoch_yet(tmp_path):
    folder = write_run_directory(tmp_path / "run", {"even_pairs": {"full": ["missing"], "topk:5": ["unfinished:0"]}})
    summary = write_summary(folder)
    entry = find(summary["speedups"], quantity="train")
    assert (entry["n_pairs"], str(speed_up_words(entry))) == (0, "no pairs")
    assert find(summary["aggregates"], mask="topk:5")["common_epoch"] is None
