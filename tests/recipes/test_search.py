"""The search for hyperparameters: its points and scores, a run at a tiny size, and what it may not see."""

import csv
import io
import json
from pathlib import Path

import pytest
import yaml

from hf_semfocus.data import load_task
from hf_semfocus.experiments.experiment import Experiment
from hf_semfocus.files import read_json_lines
from hf_semfocus.model.modeling_semfocus import SemFocusForSequenceClassification
from hf_semfocus.schema import Epoch, RunResult, SpecRecord
from hf_semfocus.training import setup as run_setup
from hf_semfocus.training.accuracy import measure_accuracy
from hf_semfocus.training.rows import TensorRows
from hf_semfocus.training.run import train_run
from hf_semfocus.training.run_files import Run, read_run
from tests.recipes.recipe_modules import recipe

trials = recipe("search_trials")
RECIPES = Path(__file__).parents[2] / "recipes"
TINY = [
    *("--tasks", "even_pairs", "--trials", "2", "--epochs", "3", "--jobs", "1", "--length", "12", "--layers", "1"),
    *("--width", "16", "--train-size", "200", "--validation-size", "60"),
]


@pytest.fixture(scope="module")
def search():
    return recipe("search")


@pytest.fixture
def in_process(search, monkeypatch):
    """Trains without workers; the list that it gives holds the folders of the trials that were trained."""
    trained = []

    def train_all(units, folders, jobs, on_progress):
        results = []
        for unit, folder in zip(units, folders, strict=True):
            trained.append(folder)
            results.append(train_run(unit, folder))
        on_progress([search.Standing(u, r["status"]) for u, r in zip(units, results, strict=True)])
        return results

    monkeypatch.setattr(search, "train_all", train_all)
    return trained


def options(search, tmp_path, *more):
    return search.parser().parse_args([*TINY, "--output", str(tmp_path / "out"), *more])


def outcomes(path):
    """A history without what the clock says."""
    return [{key: value for key, value in row.items() if "seconds" not in key} for row in read_json_lines(path)]


def rows(path):
    return list(csv.DictReader(io.StringIO(Path(path).read_text(encoding="utf-8"))))


def test_points_start_with_the_known_setting_and_more_continue_the_list(search):
    ten = search.points(10, 1000)
    assert ten[0] == search.FIRST
    assert search.points(1, 1000) == ten[:1]
    assert search.points(21, 1000)[:10] == ten
    assert search.points(10, 1001)[1:] != ten[1:]
    assert len({json.dumps(point) for point in ten}) == 10
    for name in search.FIRST:
        values = [point[name] for point in ten]
        if name in trials.LOG:
            low, high = trials.LOG[name]
            assert all(low <= value <= high for value in values)
            assert min(values) < (low * high) ** 0.5 < max(values), "both halves of the range are tried"
        else:
            assert set(values) == set(trials.CHOICES[name])


def history(*accuracies, heldout=0.5):
    return [
        Epoch(epoch=e, train_accuracy=a, heldout_accuracy=heldout, train_seconds=e, seconds=e)
        for e, a in enumerate(accuracies, start=1)
    ]


def run_of(epochs, rows, status):
    training = {"tau": 0.95, "heldout_tau": 1e-9, "epochs": epochs}
    spec = SpecRecord.model_validate({"task": "even_pairs", "mask": "full", "seed": 0, "training": training})
    stopped = "budget" if status == "censored" else status
    return Run(spec, None, rows, RunResult(status=status, stopped=stopped))


def test_scores_put_early_before_late_before_never_before_diverged(search):
    def scored(status, *accuracies, **more):
        return search.scored(run_of(4, history(*accuracies, **more), status), 4)

    early, late = scored("reached", 0.5, 0.96), scored("reached", 0.5, 0.5, 0.6, 0.99)
    nearly, never = scored("censored", 0.5, 0.94, 0.5, 0.5), scored("censored", 0.5, 0.5, 0.5, 0.5)
    diverged, general = scored("diverged", 0.9), scored("reached", 0.1, 0.96, heldout=0.8)
    assert [score.value for score in (early, late, nearly, never, diverged)] == pytest.approx([2, 4, 4.06, 4.5, 5])
    assert sorted([never, diverged, nearly, late, early, general], key=lambda score: score.rank) == [
        general, early, late, nearly, never, diverged,
    ]  # fmt: skip


def test_a_search_killed_in_a_trial_goes_on_and_ends_as_it_would_have(
    search, tmp_path, capsys, monkeypatch, in_process
):
    monkeypatch.chdir(tmp_path)
    asked = options(search, tmp_path)
    units = [search.specification(asked, "even_pairs", point) for point in search.points(2, asked.seed)]
    folders = [asked.output / "even_pairs" / f"trial-{number:02}" for number in range(2)]

    def killed(entry):
        if entry["epoch"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(units[0], folders[0], on_epoch=killed)
    arguments = [*TINY, "--output", str(asked.output), "--write", "recipes/tasks"]
    assert search.main(arguments) == 0
    train_run(units[0], tmp_path / "whole")
    assert outcomes(folders[0] / "history.jsonl") == outcomes(tmp_path / "whole" / "history.jsonl")
    table = rows(asked.output / "even_pairs.csv")
    assert [int(row["trial"]) for row in table] == [0, 1]
    assert float(table[0]["learning_rate"]) == 0.3
    for row, folder in zip(table, folders, strict=True):
        score = search.scored(read_run(folder), 3)
        assert float(row["score"]) == pytest.approx(score.value, abs=1e-6)
    chosen = min(table, key=lambda row: (float(row["score"]), -float(row["validation_accuracy"])))
    assert [row["chosen"] for row in table] == ["1" if row is chosen else "0" for row in table]

    # Started again it trains nothing.
    stamps = {path: path.stat().st_mtime_ns for path in asked.output.rglob("trial-*/*") if path.name != ".lock"}
    assert search.main(arguments) == 0
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    assert rows(asked.output / "even_pairs.csv") == table
    assert f"chosen: trial {chosen['trial']}" in capsys.readouterr().out

    path = Path("recipes/tasks/even_pairs.yaml")
    _check_recipe(path, Path("recipes/results/search/even_pairs.csv"))
    text = path.read_text(encoding="utf-8")
    assert f"python recipes/search.py {' '.join(TINY)}" in text
    assert "Budget: 2 trials of at most 3 epochs" in text
    assert "0 of 2 trials reached 95" in text


def test_a_search_whose_data_cannot_be_made_leaves_no_settings_behind(
    search, tmp_path, capsys, monkeypatch, in_process
):
    monkeypatch.chdir(tmp_path)
    at = TINY.index("--validation-size")
    too_many = [*TINY[: at + 1], "100000", *TINY[at + 2 :], "--output", "out"]
    assert search.main(too_many) == 2
    assert "100000" in capsys.readouterr().err.replace(",", "")
    assert search.main([*TINY, "--output", "out"]) == 0


def _check_recipe(path, table):
    """A recipe is a comparison of its own, with the hyperparameters of the table's chosen trial."""
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0] == f"# semfocus compare --config recipes/tasks/{path.name} --output runs/{path.stem}"
    experiment = Experiment.from_yaml(path)
    assert "size" in experiment.note
    assert list(experiment.tasks) == [path.stem]
    assert max(experiment.seeds) < 1000
    (chosen,) = [row for row in rows(table) if row["chosen"] == "1"]
    spec = experiment.spec(path.stem, "full", 0)
    assert (spec.training.heldout_split, spec.test_size) == ("test", 2000)
    for name in ("learning_rate", "max_grad_norm", "lr_decay", "batch_size"):
        assert getattr(spec.training, name) == float(chosen[name])
    for name in ("embedding_std", "position_std", "attention_gain"):
        assert spec.model[name] == float(chosen[name])


@pytest.mark.parametrize("path", sorted((RECIPES / "tasks").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_stored_recipes_are_those_of_their_tables(path):
    _check_recipe(path, RECIPES / "results" / "search" / f"{path.stem}.csv")


def test_the_test_split_is_not_looked_at(search, tmp_path, monkeypatch):
    spec = search.specification(options(search, tmp_path), "even_pairs", search.FIRST)
    train_run(spec, tmp_path / "plain")

    def without_test(*arguments, **values):
        data = load_task(*arguments, **values)
        del data["test"]
        return data

    monkeypatch.setattr(run_setup, "load_task", without_test)
    train_run(spec, tmp_path / "without")
    assert outcomes(tmp_path / "plain" / "history.jsonl") == outcomes(tmp_path / "without" / "history.jsonl")


def test_held_out_is_validation_where_it_is_asked_for(search, tmp_path):
    spec = search.specification(options(search, tmp_path), "even_pairs", search.FIRST)
    assert (spec.seed, spec.test_size, spec.mask) == (1000, 1, "full")

    train_run(spec, tmp_path)
    data = load_task("even_pairs", **spec.data_options())
    model = SemFocusForSequenceClassification.from_pretrained(tmp_path / "model")
    measured = measure_accuracy(model, TensorRows(data["validation"], model.config.pad_token_id), 250)
    assert read_json_lines(tmp_path / "history.jsonl")[-1]["heldout_accuracy"] == measured.accuracy


@pytest.mark.slow
@pytest.mark.long
def test_trials_of_several_tasks_run_in_workers(search, tmp_path, capsys):
    assert search.main([*TINY, "--output", str(tmp_path), "--tasks", "even_pairs", "parity_check", "--jobs", "2"]) == 0
    printed = capsys.readouterr().out
    for task in ("even_pairs", "parity_check"):
        assert f"{task} trial 1: " in printed
        assert len(rows(tmp_path / f"{task}.csv")) == 2


def test_more_trials_join_and_other_settings_are_refused(search, tmp_path, capsys, in_process):
    arguments = [*TINY, "--output", str(tmp_path / "out")]
    assert search.main([*arguments, "--trials", "1"]) == 0
    first = rows(tmp_path / "out" / "even_pairs.csv")
    assert search.main([*arguments, "--trials", "2"]) == 0
    assert [{**row, "chosen": ""} for row in rows(tmp_path / "out" / "even_pairs.csv")][:1] == [
        {**row, "chosen": ""} for row in first
    ]
    before = len(in_process)
    for more, words in (
        (["--epochs", "4"], "epochs"),
        (["--length", "10"], "length"),
    ):
        capsys.readouterr()
        assert search.main([*arguments, *more]) == 2
        told = capsys.readouterr().err
        assert words in told
        assert told.startswith("search: ")
        assert told.count("\n") == 1
    assert len(in_process) == before


@pytest.mark.long
def test_points_chosen_by_hand_join_a_search_and_are_named(search, tmp_path, capsys, monkeypatch, in_process):
    monkeypatch.chdir(tmp_path)
    arguments = [*TINY, "--output", "out", "--write", "recipes/tasks"]
    assert search.main(arguments) == 0
    drawn = rows("out/even_pairs.csv")
    # Beyond the ranges that are drawn from, and one that was drawn: that is no new trial.
    chosen = ["--point", "learning_rate=2", "batch_size=20", "max_grad_norm=0", "--point", "learning_rate=0.3"]
    assert search.main([*arguments, *chosen]) == 0
    table = rows("out/even_pairs.csv")
    assert len(in_process) == 2 + 3  # the finished two are asked for again and not trained
    assert [row["by_hand"] for row in table] == ["0", "0", "1"]
    assert [{**row, "chosen": ""} for row in table[:2]] == [{**row, "chosen": ""} for row in drawn]
    expected = {**search.FIRST, "learning_rate": 2.0, "batch_size": 20, "max_grad_norm": 0.0}
    assert {name: float(table[2][name]) for name in search.FIRST} == expected
    spec = json.loads(Path("out/even_pairs/trial-02/spec.json").read_text(encoding="utf-8"))
    assert (spec["training"]["learning_rate"], spec["training"]["batch_size"]) == (2.0, 20)
    text = Path("recipes/tasks/even_pairs.yaml").read_text(encoding="utf-8")
    assert "Budget: 3 trials (1 at points chosen by hand) of at most 3 epochs" in text
    _check_recipe(Path("recipes/tasks/even_pairs.yaml"), Path("recipes/results/search/even_pairs.csv"))
    # Another drawn one comes behind it; without the point the search answers as if it had never been tried.
    assert search.main([*arguments, "--trials", "3", *chosen]) == 0
    assert [row["by_hand"] for row in rows("out/even_pairs.csv")] == ["0", "0", "1", "0"]
    assert search.main(arguments) == 0
    assert rows("out/even_pairs.csv") == drawn
    text = Path("recipes/tasks/even_pairs.yaml").read_text(encoding="utf-8")
    assert "# Not among them, and trained before: trials 2, 3." in text


def test_where_tables_go_and_that_it_can_be_written_is_known_at_once(search, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert search.results_folder(Path("recipes/tasks")) == Path("recipes/results/search")
    assert search.results_folder(Path(".")) == Path("../results/search")
    (tmp_path / "file").touch()
    monkeypatch.setattr(search, "train_all", None)  # nothing is trained
    assert search.main([*TINY, "--output", "out", "--write", "file"]) == 2
    assert capsys.readouterr().err.startswith("search: ")


def test_no_recipe_of_a_task_with_a_failed_trial(search, tmp_path, capsys, monkeypatch):
    def failing(units, folders, jobs, on_progress):
        results = [train_run(units[0], folders[0]), RunResult(status="failed", error="killed")]
        on_progress([search.Standing(u, r["status"]) for u, r in zip(units, results, strict=True)])
        return results

    monkeypatch.setattr(search, "train_all", failing)
    assert search.main([*TINY, "--output", str(tmp_path / "out"), "--write", str(tmp_path / "tasks")]) == 1
    assert "trial-01 failed" in capsys.readouterr().err
    assert list((tmp_path / "tasks").iterdir()) == []
    assert not (tmp_path / "out" / "even_pairs.csv").exists()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--seed", "3"], "--seed is 3; allowed: at least 1000"),
        (["--trials", "0"], "--trials is 0"),
        (["--jobs", "0"], "--jobs is 0"),
        (["--tasks", "even_pears"], "even_pairs"),
        (["--point", "learning_rate"], "learning_rate is None"),
        (["--point", "momentum=0.9"], "allowed: NAME=VALUE with one of learning_rate"),
        (["--point", "learning_rate=0"], "learning_rate is 0"),
        (["--point", "batch_size=2.5"], "allowed: a whole number"),
        (["--length", "x"], "length is 'x'"),
        (["--epochs", "0"], "epochs is 0"),
    ],
)
def test_bad_input_is_one_line(search, tmp_path, capsys, more, words):
    assert search.main([*TINY, "--output", str(tmp_path / "out"), *more]) == 2
    told = capsys.readouterr().err
    assert words in told
    assert told.count("\n") == 1


def test_a_recipe_serves_another_size(search, tmp_path):
    """What the search writes is what `recipe:` takes: its hyperparameters, and the sizes of the experiment that names it."""
    made = search.Search.__new__(search.Search)
    made.task, made.options, made.before = "even_pairs", options(search, tmp_path), []
    made.options.command_line = "python recipes/search.py"
    made.parameters, made.by_hand = dict(enumerate(search.points(3, 1000))), set()
    made.scores = dict.fromkeys(range(2), search.scored(run_of(3, history(0.5), "censored"), 3))
    made.scores[2] = search.scored(run_of(3, history(0.5, 0.97), "reached"), 3)
    assert made.chosen == 2
    path = tmp_path / "tasks" / "even_pairs.yaml"
    path.parent.mkdir()
    path.write_text(made.recipe(path, tmp_path / "even_pairs.csv"), encoding="utf-8")
    assert "1 of 3 trials reached 95" in path.read_text(encoding="utf-8")
    big = {
        "name": "big",
        "tasks": {"even_pairs": {"recipe": "tasks/even_pairs.yaml"}},
        "masks": ["full", "topk:5"],
        "seeds": [0],
        "defaults": {
            "length": 40,
            "model": {"num_hidden_layers": 5},
            "training": {"epochs": 300, "learning_rate": 9.0},
        },
    }
    (tmp_path / "big.yaml").write_text(yaml.safe_dump(big), encoding="utf-8")
    spec = Experiment.from_yaml(tmp_path / "big.yaml").spec("even_pairs", "topk:5", 0)
    assert (spec.length, spec.model["num_hidden_layers"], spec.training.epochs) == (40, 5, 300)
    assert spec.training.learning_rate == made.parameters[2]["learning_rate"]
    assert spec.model["embedding_std"] == made.parameters[2]["embedding_std"]
