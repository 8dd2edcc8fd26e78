"""The stored results hold what their archives say, and their numbers follow from the definitions alone."""

import csv
import hashlib
import json
import lzma
import math
import re
import shutil
import statistics
from pathlib import Path

import pytest

from hf_semfocus.files import read_record
from hf_semfocus.summary_schema import Analysis, Matched, MatchedPair, Summary
from hf_semfocus.training.checkpoints import write_manifest
from recipes.reproduction import archive, blocks, claims, readme, rules
from recipes.reproduction.verdicts import verdict_words
from tests.report.synthetic import EVERYTHING, write_run_directory

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "recipes"
RESULTS = RECIPES / "results"
STORED = sorted(path.parent for path in RESULTS.glob("[!.]*/histories.tar.xz"))  # a killed store leaves dot-folders
each_stored = pytest.mark.parametrize("stored", STORED, ids=lambda path: path.name)


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory):
    """The run directory of a stored result, unpacked once."""
    made = {}

    def get(stored):
        if stored not in made:
            made[stored] = archive.unpack(stored, tmp_path_factory.mktemp(stored.name))
        return made[stored]

    return get


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory):
    """A comparison with every outcome, and what was stored of it without pictures."""
    folder = tmp_path_factory.mktemp("synthetic")
    run_dir = write_run_directory(folder / "run", EVERYTHING)
    archive.store(run_dir, folder / "results" / "all", pictures=())
    return run_dir, folder / "results" / "all"


def numbers(value):
    """JSON values with approximate numbers: the last bits are the libraries' own."""
    if isinstance(value, dict):
        return {name: numbers(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [numbers(entry) for entry in value]
    return pytest.approx(value, rel=1e-9, abs=1e-12) if isinstance(value, float) else value


def check_summary(stored, run_dir):
    from hf_semfocus.comparison.summary import summarise
    from hf_semfocus.report.tables import markdown_table

    made = archive.stored_summary(summarise(run_dir))
    assert markdown_table(made) in (stored / "README.md").read_text(encoding="utf-8") + "\n"
    assert read_record(stored / "summary.json", Summary, "").to_json() == numbers(made.to_json())


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
            key = spec["task"], spec.get("variant") or spec["mask"], spec["seed"], quantity
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
        final = row[f"final_{quantity}_accuracy"]
        if final == "":  # an unfinished run whose last evaluation was cut short
            assert (row["status"], history[-1][f"{quantity}_accuracy"]) == ("unfinished", None)
        else:
            assert float(final) == values[-1]
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
def test_a_stored_experiment_asks_for_the_runs_that_there_are(stored, unpacked):
    """So it can be repeated where its recipe was changed since, and its page says how."""
    from hf_semfocus.experiments.experiment import Experiment
    from hf_semfocus.experiments.spec import difference

    experiment = Experiment.from_yaml(unpacked(stored) / "experiment.json")
    paths = [*unpacked(stored).glob("runs/*/*/seed-*/spec.json")]
    assert paths
    for path in paths:
        ran = json.loads(path.read_text(encoding="utf-8"))
        label = ran.get("variant") or ran["mask"]
        asked = experiment.spec(ran["task"], label, ran["seed"]).to_dict()
        # A budget may have been raised for the runs that did not need less.
        assert ran["training"]["epochs"] <= asked["training"]["epochs"]
        assert difference(ran, json.loads(json.dumps(asked))) is None  # an option that came later had its default
        assert ran["seed"] in experiment.seeds
        assert label in experiment.masks
    assert "--config DIR/experiment.json" in (stored / "README.md").read_text(encoding="utf-8")


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
    folder = archive.unpack(stored, tmp_path / "back")
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
    folder = archive.unpack(stored, tmp_path / "back")
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
    assert (
        "24 asked for; 21 finished (9 reached τ, 11 censored, 1 diverged), 1 failed, 1 unfinished, 1 not started"
        in text
    )
    for line in (
        "missing_duplicate_string `block:5`, seed 1: unfinished",
        "even_pairs `block:5`, seed 1: diverged in epoch 3",
    ):
        assert f"- {line}" in text


def test_the_same_runs_give_the_same_bytes_and_other_runs_replace_them_whole(synthetic, tmp_path):
    run_dir, stored = synthetic
    target = tmp_path / "all"

    def digests(folder):
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}

    archive.store(run_dir, target, pictures=())
    assert digests(target) == digests(stored)
    (target / "left_over.png").write_bytes(b"a picture of an earlier state")
    other = write_run_directory(tmp_path / "other", {"even_pairs": {"full": [27], "topk:5": [8]}})
    with pytest.raises(ValueError, match=r"finished runs that are not there now, .* give --replace"):
        archive.store(other, target, pictures=("speedups",))
    assert (target / "left_over.png").exists()
    summary = (target / "summary.json").read_bytes()
    (target / "summary.json").write_text('{"tasks": [{}]}', encoding="utf-8")
    with pytest.raises(ValueError, match=r"summary\.json .* give --replace"):
        archive.store(run_dir, target, pictures=())
    (target / "summary.json").write_bytes(summary)
    archive.store(other, target, pictures=("speedups",), replace=True)
    assert {path.name for path in target.iterdir()} == {
        "README.md", "histories.tar.xz", "speedups.csv", "speedups.png", "summary.csv", "summary.json",
    }  # fmt: skip
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_what_a_store_would_lose_is_known():
    kept = read_record(RESULTS / "theory" / "summary.json", Summary, "")
    assert archive.lost(kept, kept) is None
    longer, hotter = (kept.model_copy(deep=True) for _ in range(2))
    for task in longer.tasks:
        task.hyperparameters["training"]["epochs"] = 90
    assert archive.lost(kept, longer) is None
    hotter.tasks[0].hyperparameters["model"]["attention_gain"] = 2.0
    assert archive.lost(kept, hotter) == f"another comparison, with other settings of {kept.tasks[0].name}"
    for name, value in (("length", 12), ("train_size", 10), ("task_options", {"answer": "top"})):
        other = kept.model_copy(deep=True)
        if name == "task_options":
            other.tasks[0].hyperparameters[name] = value
        else:
            setattr(other.tasks[0], name, value)
        assert archive.lost(kept, other) == f"another comparison, with other settings of {kept.tasks[0].name}"
    shorter = kept.model_copy(update={"runs": kept.runs[1:]})
    assert archive.lost(shorter, kept) is None
    assert archive.lost(kept, shorter).startswith("1 finished runs that are not there now, even_pairs/full/seed-0")


def test_a_store_that_fails_leaves_what_was_there(synthetic, tmp_path, monkeypatch):
    run_dir, _ = synthetic
    target = tmp_path / "all"
    archive.store(run_dir, target, pictures=())
    before = (target / "summary.json").read_bytes()
    with pytest.raises(ValueError, match=r"experiment\.json"):
        archive.store(tmp_path / "nothing", target)
    monkeypatch.setattr(archive, "about", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        archive.store(run_dir, target, pictures=())
    assert (target / "summary.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["all"]
    (tmp_path / "search").mkdir()
    with pytest.raises(ValueError, match="holds no stored comparison"):
        archive.store(run_dir, tmp_path / "search")


def stopped_run(folder, spec, after):
    """A run that stopped in its epoch `after` + 1, in a comparison's folder."""
    from hf_semfocus.training.run import train_run

    def stop(entry):
        if entry["epoch"] > after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(spec, folder / "runs" / spec.name, on_epoch=stop)


@pytest.mark.slow
def test_an_unfinished_run_goes_on_from_what_is_stored(tmp_path, monkeypatch):
    """To the result it would have had, on a machine that its record tells apart from the first."""
    from hf_semfocus.comparison import compare as training
    from hf_semfocus.experiments.experiment import Experiment
    from hf_semfocus.training.run import train_run

    model = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    options = {"epochs": 4, "batch_size": 50, "stop_early": False}
    sizes = {"length": 12, "train_size": 200, "validation_size": 60, "test_size": 100}
    experiment = Experiment(
        "tiny", {"even_pairs": {}}, ("full",), (0,), {**sizes, "model": model, "training": options}
    )
    (spec,) = experiment.units()
    command = "semfocus compare --config tiny.yaml --output /elsewhere/out/tiny"
    for name in ("stopped", "whole"):
        before = training.RunDirectory.read(tmp_path / name, required=False)
        training.write_json(tmp_path / name / "experiment.json", training._described(experiment, command, before))
    stopped_run(tmp_path / "stopped", spec, after=2)
    (stored_as := tmp_path / "results").mkdir()
    kept = archive.store(tmp_path / "stopped", stored_as / "tiny", pictures=())
    assert kept["command"] == "semfocus compare --config tiny.yaml --output runs/tiny"
    assert "go on from a stored checkpoint: 1." in (stored_as / "tiny" / "README.md").read_text(encoding="utf-8")

    back = archive.unpack(stored_as / "tiny", tmp_path / "back")
    run = back / "runs" / spec.name
    (checkpoint,) = (run / "checkpoints").iterdir()
    assert checkpoint.name == "checkpoint-8"  # two epochs of four steps: the third one's end was not saved
    assert not any(str(tmp_path).encode() in path.read_bytes() for path in run.rglob("*") if path.is_file())
    (told,) = json.loads((run / "machines.json").read_text(encoding="utf-8"))
    assert told["epochs"] == 2
    monkeypatch.setattr("hf_semfocus.training.results.machine", lambda: {**told["machine"], "processor": "another"})
    seen = []
    result = train_run(spec, run, on_epoch=seen.append)
    whole = train_run(spec, tmp_path / "whole" / "runs" / spec.name)
    assert [entry["epoch"] for entry in seen] == [3, 4]
    weights = [
        path / spec.name / "model" / "model.safetensors" for path in (back / "runs", tmp_path / "whole" / "runs")
    ]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert result["epochs_trained"] == whole["epochs_trained"] == 4

    archive.store(back, stored_as / "tiny", pictures=())
    again = archive.unpack(stored_as / "tiny", tmp_path / "again") / "runs" / spec.name
    assert not (again / "checkpoints").exists()
    machines = json.loads((again / "machines.json").read_text(encoding="utf-8"))
    assert [entry["epochs"] for entry in machines] == [2, 4]
    assert not archive.same_machine(*(entry["machine"] for entry in machines))
    # Stored once more, without a further epoch, it is the same.
    archive.store(again.parents[3], stored_as / "twice", pictures=())
    twice = archive.unpack(stored_as / "twice", tmp_path / "twice") / "runs" / spec.name
    assert json.loads((twice / "machines.json").read_text(encoding="utf-8")) == machines


@pytest.mark.parametrize("fault", ["large", "half", "ended"])
def test_a_checkpoint_that_is_large_or_not_whole_is_not_stored(synthetic, tmp_path, monkeypatch, fault):
    run_dir = shutil.copytree(synthetic[0], tmp_path / "run")
    unfinished = next(
        path.parent for path in run_dir.rglob("history.jsonl") if not (path.parent / "result.json").exists()
    )
    run = next(path.parent for path in run_dir.rglob("result.json")) if fault == "ended" else unfinished
    checkpoint = run / "checkpoints" / "checkpoint-12"
    checkpoint.mkdir(parents=True)
    (checkpoint / "trainer_state.json").write_text('{"epoch": 12.0}')
    (checkpoint / "model.safetensors").write_bytes(bytes(1000))
    write_manifest(checkpoint)
    if fault == "large":
        monkeypatch.setattr(archive, "LARGEST_CHECKPOINT", 100)
    elif fault == "half":
        (checkpoint / "model.safetensors").write_bytes(bytes(500))
    archive.store(run_dir, tmp_path / "stored", pictures=())
    back = archive.unpack(tmp_path / "stored", tmp_path / "back")
    assert not list(back.rglob("checkpoints"))
    assert not list(back.rglob("machines.json"))


@pytest.mark.parametrize("why", ["more", "failed"])
def test_a_run_with_a_result_that_goes_on_keeps_its_checkpoint(synthetic, tmp_path, why):
    run_dir = shutil.copytree(synthetic[0], tmp_path / "run")
    results = {path: json.loads(path.read_text(encoding="utf-8")) for path in run_dir.rglob("result.json")}
    path, result = next(item for item in results.items() if item[1]["stopped"] == "budget")
    if why == "failed":
        path.write_text(json.dumps({**result, "status": "failed", "error": "no memory"}), encoding="utf-8")
    else:
        experiment = json.loads((run_dir / "experiment.json").read_text(encoding="utf-8"))
        for settings in (experiment["defaults"], *experiment["tasks"].values()):
            settings.setdefault("training", {})["epochs"] = result["epochs_trained"] + 10
        (run_dir / "experiment.json").write_text(json.dumps(experiment), encoding="utf-8")
    checkpoint = path.parent / "checkpoints" / "checkpoint-12"
    checkpoint.mkdir(parents=True)
    (checkpoint / "trainer_state.json").write_text(json.dumps({"epoch": float(result["epochs_trained"])}))
    write_manifest(checkpoint)
    archive.store(run_dir, tmp_path / "stored", pictures=())
    back = archive.unpack(tmp_path / "stored", tmp_path / "back")
    assert [found.parent for found in back.rglob("checkpoints")] == [back / path.parent.relative_to(run_dir)]


def test_pictures_beyond_the_limit_are_left_out_and_named(synthetic, tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "LARGEST_PICTURE", 10)
    archive.store(synthetic[0], tmp_path / "all", pictures=("dispersion",))
    assert not list((tmp_path / "all").glob("*.png"))
    assert "Left out for its size: dispersion.png" in (tmp_path / "all" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("ran", "stored"),
    [
        (
            f"--config {ROOT}/recipes/reduced.yaml --output {Path.home()}/out",
            "--config recipes/reduced.yaml --output ~/out",
        ),
        (
            '--config /elsewhere/clone/recipes/a/b_2.yaml "/a/b/recipes/c.yaml"',
            '--config recipes/a/b_2.yaml "recipes/c.yaml"',
        ),
        ("--config my/recipes/own.yaml", "--config my/recipes/own.yaml"),
    ],
)
def test_places_of_the_machine_are_taken_out(ran, stored, tmp_path):
    run_dir = write_run_directory(tmp_path / "run", {"even_pairs": {"full": [27], "topk:5": [8]}})
    path = run_dir / "experiment.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "command": f"semfocus compare {ran}"}))
    assert archive.store(run_dir, tmp_path / "all", pictures=())["command"] == f"semfocus compare {stored}"


def test_the_command_line_says_what_is_wrong(tmp_path, capsys):
    assert archive.main([str(tmp_path), "--as", "../there"]) == 2
    assert archive.main([str(tmp_path), "--as", "nothing_there"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "archive: --as is '../there'; allowed: small letters, digits and '_'"
    assert "is not a run directory" in said[1]
    assert not (RESULTS / "nothing_there").exists()


# --- claims ------------------------------------------------------------------------------------------------------------


NNCH = ("parity_check", "even_pairs", "missing_duplicate_string", "stack_manipulation", "cycle_navigation",
        "modular_arithmetic_brackets", "solve_equation")  # fmt: skip
FASTER = {"full": [30, 32, 28, 31, 29], "topk:5": [10, 11, 9, 10, 12]}
SLOWER = {"full": [10, 11, 9, 10, 12], "topk:5": [30, 32, 28, 31, 29]}
ALIKE = {"full": [20, 25, 21, 24, 22], "topk:5": [21, 24, 22, 23, 22]}
NEITHER = {"full": [None] * 5, "topk:5": [None] * 5}
ONLY_TOPK = {"full": [None] * 5, "topk:5": [10, 11, 9, 10, 12]}


@pytest.fixture
def summary_of(tmp_path, monkeypatch):
    """Summaries of runs by formula: outcomes {task: {mask: [epoch of τ a seed, or None, …]}}."""
    from hf_semfocus.comparison.summary import summarise
    from tests.report import synthetic as made

    monkeypatch.setattr(made, "CHANCE", dict.fromkeys([*NNCH, "listops"], 0.5))
    count = iter(range(100))

    def get(outcomes, **options):
        folder = made.write_run_directory(tmp_path / f"made-{next(count)}", outcomes, **options)
        return archive.stored_summary(summarise(folder))

    return get


def verdicts(stored):
    """{(claim, size without its details): verdict}"""
    found = claims.judged(stored)
    return {(entry["name"], entry["size"].split(" (")[0]): entry["verdict"] for entry in found["claims"]}


def test_the_claims_are_what_the_stored_results_give():
    found = claims.judged(claims.load())
    assert json.loads((RESULTS / "claims.json").read_text(encoding="utf-8")) == json.loads(json.dumps(found))
    assert (RESULTS / "claims.md").read_text(encoding="utf-8") == claims.markdown(found)
    assert blocks.block("claims") == readme.claims_section(found)


def test_every_result_with_missing_runs_says_why():
    found = claims.judged(claims.load())
    short = {name for name, runs in found["stored"].items() if runs is None or runs["finished"] < runs["recipe"]}
    assert set(claims.WHY_MISSING) == short
    text = claims.markdown({**found, "stored": {"another": None}})
    assert "- another: no reason is recorded." in text


def test_every_claim_has_a_verdict_a_source_and_a_size():
    found = claims.judged({})
    names = [(entry["name"], entry["size"]) for entry in found["claims"]]
    assert len(set(names)) == len(names)
    assert {entry["verdict"] for entry in found["claims"]} == {"not tested"}
    for entry in found["claims"]:
        assert entry["source"] in claims.SOURCE_WORDS
        assert entry["size"] in ("reduced size", "paper size")
        assert entry["numbers"] == f"not stored: {', '.join(entry['read'])}"
        assert set(entry["read"]) <= set(claims.SOURCES)


def test_every_result_that_claims_read_has_an_experiment():
    files = {
        path.stem
        for path in [*RECIPES.glob("*.yaml"), *RECIPES.glob("ablations/*.yaml"), *RECIPES.glob("first/*.yaml")]
    }
    assert set(claims.SOURCES) <= files


@pytest.mark.parametrize(
    ("outcomes", "over_tasks", "even_pairs"),
    [
        (dict.fromkeys(NNCH, FASTER), "reproduced", "reproduced"),  # by an interval
        (dict.fromkeys(NNCH, SLOWER), "not reproduced", "not reproduced"),
        (dict.fromkeys(NNCH, ALIKE), "not reproduced", "not reproduced"),
        (dict.fromkeys(NNCH, FASTER) | {"even_pairs": SLOWER}, "mixed", "not reproduced"),
        (dict.fromkeys(NNCH, NEITHER), "not tested", "not tested"),
        # An interval that includes 1 is not overruled by signs.
        (
            {"even_pairs": {"full": [12, 40, 13, 12, 13], "topk:5": [11, 4, 12, 11, 12]}},
            "not tested",
            "not reproduced",
        ),
        # Four tasks that someone learns are too few for a claim over the tasks, however clear; five are enough.
        (dict.fromkeys(NNCH, NEITHER) | dict.fromkeys(NNCH[:4], ONLY_TOPK), "not tested", "reproduced"),
        (dict.fromkeys(NNCH, NEITHER) | dict.fromkeys(NNCH[:5], ONLY_TOPK), "reproduced", "reproduced"),
    ],
)
def test_top_k_is_faster_over_the_tasks_and_on_one(summary_of, outcomes, over_tasks, even_pairs):
    found = verdicts({"reduced": summary_of(outcomes)})
    assert found["topk_faster", "reduced size"] == over_tasks
    assert found["topk_faster_even_pairs", "reduced size"] == even_pairs
    assert found["full_fits_all", "reduced size"] == "not tested"  # ListOps is missing
    for (name, size), verdict in found.items():
        if size == "paper size" or "listops" in name:
            assert verdict == "not tested", (name, size)


@pytest.mark.parametrize(
    ("topk", "verdict"),
    [
        ([10, 11, 9, 10, 12], "reproduced"),  # 5 of 5: p = 1/32
        ([10, 11, 9, 10, None], "not reproduced"),  # one undetermined: it counts against
        ([10, 11, 9, 10], "not reproduced"),  # 4 of 4: p = 1/16
        ([10, 11], "not tested"),
        ([None] * 5, "not tested"),
    ],
)  # fmt: skip
def test_censored_pairs_are_judged_by_their_signs(summary_of, topk, verdict):
    found = verdicts({"reduced": summary_of({"even_pairs": {"full": [None] * len(topk), "topk:5": topk}})})
    assert found["topk_faster_even_pairs", "reduced size"] == verdict


def test_runs_that_are_not_finished_are_not_judged_until_their_bounds_decide(summary_of):
    waiting = {"even_pairs": {"full": ["unfinished:5"] * 5, "topk:5": [10, 11, 9, 10, 12]}}
    decided = {"even_pairs": {"full": ["unfinished:20"] * 5, "topk:5": [10, 11, 9, 10, 12]}}
    assert verdicts({"reduced": summary_of(waiting)})["topk_faster_even_pairs", "reduced size"] == "not tested"
    found = claims.judged({"reduced": summary_of(decided)})["claims"]
    (entry,) = (one for one in found if one["name"] == "topk_faster_even_pairs" and one["size"].startswith("reduced"))
    assert (entry["verdict"], entry["provisional"]) == ("reproduced", True)


def test_input_agnostic_masks(summary_of):
    masks = {"full": FASTER["topk:5"], "topk:5": FASTER["topk:5"]}
    short = {**masks, "banded:5": [None] * 5, "block:5": [None] * 5}
    helped = {**masks, "banded:5": [3, 4, 3, 3, 4], "block:5": [None] * 5}
    undecided = {"full": [None] * 5, "topk:5": [10] * 5, "banded:5": [None] * 5, "block:5": [None] * 5}
    name = "agnostic_not_better", "reduced size"
    assert verdicts({"reduced": summary_of(dict.fromkeys(NNCH, short))})[name] == "reproduced"
    assert verdicts({"reduced": summary_of(dict.fromkeys(NNCH, helped))})[name] == "mixed"
    found = verdicts({"reduced": summary_of(dict.fromkeys(NNCH, undecided))})
    assert found[name] == "not reproduced"
    judged = claims.judged({"reduced": summary_of(dict.fromkeys(NNCH, undecided))})["claims"]
    (entry,) = (one for one in judged if one["name"] == name[0] and one["size"].startswith("reduced"))
    assert entry["left_open"]  # no mask is better, and none is shown to be worse
    every = ("banded:5", "block:5", "banded:5+global:1", "block:5+global:1")
    for asked, incomplete in ((every, True), (every[:2], False)):
        found = rules.not_consistently_better([summary_of(dict.fromkeys(NNCH, short))], NNCH, asked)
        assert (found.verdict, found.incomplete) == ("reproduced", incomplete)
        assert ("not run: banded:5+global:1, block:5+global:1" in found.numbers) is incomplete
    found = verdicts({"reduced": summary_of(dict.fromkeys(NNCH, short))})
    assert found["short_banded", "reduced size"] == found["short_block", "reduced size"] == "reproduced"


def test_all_eight_tasks(summary_of):
    """100 % on all, generalising on four: by size, with ListOps stored apart."""
    learnt, by_heart = summary_of(dict.fromkeys(NNCH[:4], FASTER)), summary_of({"listops": FASTER}, generalises=False)
    others = summary_of(dict.fromkeys(NNCH[4:], FASTER), generalises=False)
    suite = (*NNCH, "listops")
    assert rules.fits_all([learnt, others, by_heart], suite).verdict == "reproduced"
    assert rules.generalises_on([learnt, others, by_heart], suite, 4).verdict == "reproduced"
    assert rules.generalises_on([learnt, others], suite, 4).verdict == "not tested"
    assert rules.generalises_on([learnt, others, by_heart], suite, 3).verdict == "not reproduced"
    assert (
        rules.fits_all([summary_of(dict.fromkeys(suite, FASTER) | {"listops": ONLY_TOPK})], suite).verdict == "mixed"
    )


def test_the_end_of_a_budget_is_not_the_opposite_of_a_claim_about_what_is_learnt(summary_of):
    short = [summary_of(dict.fromkeys(NNCH, NEITHER))]
    fits, general = rules.fits_all(short, NNCH), rules.generalises_on(short, NNCH, 4)
    assert (fits.verdict, fits.left_open) == (general.verdict, general.left_open) == ("not reproduced", True)
    single = [summary_of({task: {"full": [None], "topk:5": [None]} for task in NNCH})]
    assert rules.fits_all(single, NNCH).verdict == "not tested"
    by_heart = rules.generalises_on([summary_of(dict.fromkeys(NNCH, FASTER), generalises=False)], NNCH, 4)
    assert (by_heart.verdict, by_heart.left_open) == ("not reproduced", False)


def test_a_verdict_is_provisional_while_a_case_of_its_claim_is_missing(summary_of):
    learnt = {"even_pairs": FASTER}
    half = rules.robust({"theory": summary_of(learnt)}, ("even_pairs", "parity_check"), "topk:5", ("theory",))
    assert half.verdict == "not tested"
    mixed = {"even_pairs": FASTER, "parity_check": {"full": [9, 9, 9], "topk:5": [9, 9, 9]}}
    three = (*mixed, "cycle_navigation")
    found = rules.robust({"theory": summary_of(mixed)}, three, "topk:5", ("theory",))
    assert (found.verdict, found.incomplete) == ("mixed", True)
    assert not rules.robust({"theory": summary_of(mixed)}, tuple(mixed), "topk:5", ("theory",)).incomplete


def test_better_on_held_out_rows(summary_of):
    better = [summary_of(dict.fromkeys(NNCH, ONLY_TOPK))]  # the budget ends full attention at its plateau
    assert rules.better_heldout(better, NNCH, "topk:5").verdict == "reproduced"
    assert rules.better_heldout([summary_of(dict.fromkeys(NNCH, FASTER))], NNCH, "topk:5").verdict == "not reproduced"
    assert (
        rules.better_heldout([summary_of(dict.fromkeys(NNCH[:4], ONLY_TOPK))], NNCH, "topk:5").verdict == "not tested"
    )


def test_robust_only_where_it_holds_everywhere(summary_of):
    two = ("even_pairs", "missing_duplicate_string")
    both, one = summary_of(dict.fromkeys(two, FASTER)), summary_of({two[0]: FASTER, two[1]: SLOWER})
    none, unknown = summary_of(dict.fromkeys(two, SLOWER)), summary_of({two[0]: FASTER, two[1]: NEITHER})
    names = ("a", "b")
    assert rules.robust({"a": both, "b": both}, two, "topk:5", names).verdict == "reproduced"
    assert rules.robust({"a": both, "b": one}, two, "topk:5", names).verdict == "mixed"
    assert rules.robust({"a": both, "b": unknown}, two, "topk:5", names).verdict == "mixed"
    assert rules.robust({"a": none, "b": none}, two, "topk:5", names).verdict == "not reproduced"
    assert rules.robust({"a": both}, two, "topk:5", names).verdict == "not tested"
    assert rules.robust({}, two, "topk:5", names).verdict == "not tested"


def test_large_k_like_full_must_be_shown(summary_of):
    def judged(values):
        outcomes = {"full": [20, 25, 21], "topk:15": values}
        return rules.like_full([summary_of({"even_pairs": outcomes})], ("even_pairs",), "topk:15", ()).verdict

    assert judged([21, 24, 22]) == "reproduced"
    assert judged([5, 6, 5]) == "not reproduced"
    assert judged([10, 38, 21]) == "not reproduced"  # the interval includes 1, and much else
    assert judged([None] * 3) == "not tested"  # slower in all pairs, and three are too few


def test_parity_near_and_above_chance(summary_of):
    near = summary_of({"parity_check": {"full": [None] * 3, "topk:5": [None] * 3}}, budget=5)
    assert verdicts({"reduced": near})["parity_near_chance", "reduced size"] == "reproduced"
    both = near["runs"] + summary_of({"parity_check": {"full": [10] * 3, "topk:5": [10, 11, 12]}})["runs"]
    runs = [run for run in both if (run["mask"] == "full") == (run["status"] == "censored")]
    assert (
        verdicts({"reduced": near.model_copy(update={"runs": runs})})["parity_near_chance", "reduced size"] == "mixed"
    )


def test_about_1_3(summary_of):
    def judged(full, topk):
        summary = summary_of({"listops": {"full": full, "topk:5": topk}})
        return verdicts({"listops_reduced": summary})["listops_1_3", "reduced size"]

    assert judged([26, 27, 25], [20, 21, 19]) == "reproduced"
    assert judged([40, 39, 38], [10, 11, 10]) == "mixed"  # faster, by far more
    assert judged([26, 27, 25], [25, 28, 26]) == "not reproduced"


def test_dispersion_and_lipschitz_estimates_over_the_tasks(summary_of):
    summary = summary_of(dict.fromkeys(NNCH, FASTER))
    assert rules.smaller_dispersion([summary], NNCH, "topk:5").verdict == "reproduced"  # half of it, by the formula
    assert rules.smaller_lipschitz([summary], NNCH, "topk:5", "gradient").verdict == "not tested"

    def with_ratios(by_task):
        matched = [
            Matched.model_construct(task=task, mask="topk:5", quantity="gradient",
                                    pairs=[MatchedPair(seed=seed, ratio=value) for seed, value in enumerate(ratios)])
            for task, ratios in by_task.items()
        ]  # fmt: skip
        return [summary.model_copy(update={"analysis": Analysis.model_construct(matched=matched)})]

    lower, higher = [0.5, 0.6, 0.55], [1.5, 1.6, 1.55]
    judge = rules.smaller_lipschitz
    assert judge(with_ratios(dict.fromkeys(NNCH, lower)), NNCH, "topk:5", "gradient").verdict == "reproduced"
    assert judge(with_ratios(dict.fromkeys(NNCH, higher)), NNCH, "topk:5", "gradient").verdict == "not reproduced"
    some = dict.fromkeys(NNCH, lower) | {"even_pairs": higher}
    assert judge(with_ratios(some), NNCH, "topk:5", "gradient").verdict == "mixed"
    assert judge(with_ratios(dict.fromkeys(NNCH[:4], lower)), NNCH, "topk:5", "gradient").verdict == "not tested"


def test_a_rate_for_each_mask_is_chosen_on_other_seeds(summary_of):
    """At 0.1 full attention is best on the seeds that choose; that it is not on the others must not be seen."""
    slow = summary_of({"even_pairs": {"full": [9, 9, 9, 39, 39], "topk:5": [10, 11, 10, 8, 8]}})
    quick = summary_of({"even_pairs": {"full": [30, 31, 29, 12, 13], "topk:5": [10, 11, 10, 35, 36]}})
    rates = {"a": 0.1, "b": 0.3}
    found = rules.tuned({"a": slow, "b": quick}, ("even_pairs",), "topk:5", rates, (3, 4))
    assert found.verdict == "reproduced"
    assert "with rates 0.3 (full) and 0.1 (topk:5)" in found.numbers
    assert rules.tuned({"a": slow}, ("even_pairs",), "topk:5", rates, (3, 4)).verdict == "not tested"


def test_a_result_under_another_one_s_name_is_refused(summary_of):
    summary = summary_of({"even_pairs": FASTER})
    claims.check("reduced", summary)
    with pytest.raises(ValueError, match=r"optimizer_adam: even_pairs has training\.optimizer 'sgd'; allowed: 'adam'"):
        claims.check("optimizer_adam", summary)
    with pytest.raises(ValueError, match="paper_size: even_pairs has length 20; allowed: 40"):
        claims.check("paper_size", summary)


def test_a_result_of_another_experiment_under_a_name_is_refused(summary_of):
    fine = summary_of({"even_pairs": FASTER})
    for change, words in (
        ({"tau": 0.5}, "tau 0.5; allowed: 0.95"),
        ({"differing": ["train_size"]}, "differ in train_size"),
        ({"name": "listops"}, "has the task listops"),
        ({"hyperparameters": {"model": {"norm_position": "pre"}, "training": {}}}, "norm_position 'pre'"),
    ):
        with pytest.raises(ValueError, match=words):
            claims.check("reduced", fine.model_copy(update={"tasks": [fine.tasks[0].model_copy(update=change)]}))
    other = fine.model_copy(deep=True)
    other.tasks[0].hyperparameters["training"]["batch_size"] = 7
    claims.check_beside("k_sweep", fine, "reduced", fine)
    with pytest.raises(ValueError, match=r"k_sweep: even_pairs has training\.batch_size 7"):
        claims.check_beside("k_sweep", other, "reduced", fine)


def test_claims_of_a_damaged_or_absent_folder(tmp_path, capsys, summary_of):
    assert claims.main(["--results", str(tmp_path / "typo")]) == 2
    assert not (tmp_path / "typo").exists()
    (tmp_path / "reduced").mkdir()
    (tmp_path / "reduced" / "histories.tar.xz").touch()
    file, whole = tmp_path / "reduced" / "summary.json", summary_of(dict.fromkeys(NNCH, FASTER)).to_json()
    parts = ({"speedups": [{}]}, {"seeds": 3}, {"masks": None}, {"runs": [{"status": "reached", "path": "x"}]})
    for damage in ("[]", "{}", "garbage", *(json.dumps({**whole, **part}) for part in parts)):
        file.write_text(damage, encoding="utf-8")
        capsys.readouterr()
        assert claims.main(["--results", str(tmp_path)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "summary.json is damaged" in line
    file.unlink()
    assert claims.main(["--results", str(tmp_path)]) == 2
    assert "summary.json" in capsys.readouterr().err
    assert not (tmp_path / "claims.json").exists()
    file.write_text(json.dumps(whole), encoding="utf-8")
    assert claims.main(["--results", str(tmp_path)]) == 0
    assert (tmp_path / "claims.json").exists()


def test_runs_that_diverged_are_no_evidence_of_accuracy_and_are_named(summary_of):
    broken = {task: {"full": ["diverged:1"] * 5, "topk:5": [4, 5, 6, 7, 8]} for task in NNCH}
    summaries = [summary_of(broken)]
    assert rules.faster_over_tasks(summaries, NNCH, "topk:5").verdict == "not tested"
    assert rules.better_heldout(summaries, NNCH, "topk:5").verdict == "not tested"
    assert rules.generalises_on(summaries, NNCH, 0).verdict == "not tested"
    assert rules.near_chance(summaries, "parity_check", ("full",)).verdict == "not tested"
    assert rules.smaller_dispersion(summaries, NNCH, "topk:5").verdict == "not tested"
    late = summary_of({"even_pairs": {"full": ["diverged:9"] * 5, "topk:5": [8, 6, 5, 4, 7]}})
    assert "5 of 10 runs diverged" in rules.faster([late], "even_pairs", "topk:5").numbers


def test_where_no_pair_tells_how_far_both_came_is_said(summary_of):
    found = rules.faster([summary_of({"parity_check": NEITHER})], "parity_check", "topk:5")
    assert found.verdict == "not tested"
    assert re.search(r"when the budget ended: full 0\.\d{3}–0\.\d{3}, topk:5 0\.\d{3}–0\.\d{3}", found.numbers)


def test_unpacking_overwrites_nothing_and_leaves_nothing_of_a_damaged_archive(synthetic, tmp_path, capsys):
    _, stored = synthetic
    there = tmp_path / "there"
    there.mkdir()
    (there / "experiment.json").write_text("mine", encoding="utf-8")
    assert archive.main(["--unpack", str(stored), "--to", str(there)]) == 2
    assert (there / "experiment.json").read_text(encoding="utf-8") == "mine"
    whole = (stored / "histories.tar.xz").read_bytes()
    raw = lzma.decompress(whole)
    damages = {
        "half": whole[: len(whole) // 2],
        "empty": b"",
        "short": whole[:-1],
        "fewer": lzma.compress(raw[: len(raw) // 2]),
    }
    for name, content in damages.items():
        (tmp_path / name).mkdir()
        shutil.copy(stored / "summary.json", tmp_path / name)
        (tmp_path / name / "histories.tar.xz").write_bytes(content)
        assert archive.main(["--unpack", str(tmp_path / name), "--to", str(tmp_path / "new")]) == 2
        assert "histories.tar.xz is damaged" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*damages, "there"])
    assert not (tmp_path / "new").exists()
    for mixed in (["runs/x", "--to", "new"], ["--to", "new", "--as", "x"], []):
        with pytest.raises(SystemExit) as ended:
            archive.main([*mixed, "--unpack", str(stored)])
        assert ended.value.code == 2


def test_the_page_shows_size_verdict_and_what_is_missing(summary_of):
    found = claims.judged({"reduced": summary_of(dict.fromkeys(NNCH, FASTER))})
    page = claims.markdown(found)
    row = next(line for line in page.splitlines() if "(`topk_faster`)" in line)
    assert "**reproduced** (provisional)<br>paper size: not tested" in row
    assert "geometric mean 2.9 [2.9, 2.9] over 7 tasks" in row
    assert "not enough runs on listops" in row
    (stored,) = (line for line in page.splitlines() if line.startswith("| [reduced](reduced/README.md)"))
    assert "70 of 70" in stored
    assert stored.endswith("| 245 |")  # of recipes/reduced.yaml
    assert "**reproduced** (provisional) | not tested |" in readme.claims_section(found)


def test_not_reproduced_says_where_nothing_was_decided_against_the_claim(summary_of):
    for outcome, expected in ((ALIKE, True), (SLOWER, False)):
        found = claims.judged({"reduced": summary_of(dict.fromkeys(NNCH, outcome))})["claims"]
        for name in ("topk_faster", "topk_faster_even_pairs"):
            (entry,) = (one for one in found if one["name"] == name and one["size"].startswith("reduced"))
            assert entry["verdict"] == "not reproduced"
            assert entry["left_open"] is expected
            assert ("undecided" in verdict_words(entry)) is expected


def test_unpacking_what_is_not_stored_names_what_is(tmp_path, capsys):
    assert archive.main(["--unpack", str(tmp_path), "--to", str(tmp_path / "made")]) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path} holds no stored comparison" in said
    assert "reduced" in said
    assert not (tmp_path / "made").exists()
