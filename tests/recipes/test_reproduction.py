"""The paper judged at its own recipe: every number once more by its definition, from the files of the runs."""

import itertools
import json
import math
import re
import shutil
import statistics
from dataclasses import asdict
from pathlib import Path

import pytest

from hf_semfocus.analysis.paper_table import beside_paper
from hf_semfocus.cli.advise import STORED
from hf_semfocus.comparison.paired_tests import Judgement, Verdict
from hf_semfocus.experiments.experiment import Experiment
from hf_semfocus.experiments.presets import PAPER_EPOCHS
from hf_semfocus.text import number
from recipes import focus_law
from recipes.focus_law import FocusRun
from recipes.reproduction import blocks, law, page, pictures, plateaus, records, theory
from recipes.reproduction.__main__ import main, read_evidence, write_page
from recipes.reproduction.archive import store, unpack
from recipes.reproduction.records import TASKS, Gap, read_task, read_tier, stored_name
from recipes.reproduction.tier1 import Untested, judge
from tests.recipes.paper_runs import MACHINE, write_comparison

RESULTS = Path(__file__).parents[2] / "recipes" / "results"
MASKS = ("full", "topk:5")
EPOCHS = {
    "even_pairs": {"full": [36, 40, 30, 50, 44, 38], "topk:5": [14, 9, 7, 20, 11, 15]},
    "stack_manipulation": {"full": [28, 31, 25, 40, 33, 29], "topk:5": [47, 20, 44, 39, 50, 35]},
    "missing_duplicate_string": {"full": [97, 90, None, 120, 88, 101], "topk:5": [46, 50, 40, 60, 41, 55]},
    "modular_arithmetic_brackets": {"full": [400, None, 350, None, 500, 420], "topk:5": [300, None, 310, 420, None, 390]},
    "solve_equation": {"full": [100, 110, 120, 95, 105, 99], "topk:5": [120, 130, 125, 119, 140, 117]},
    "cycle_navigation": {"full": [550, 500, 520, 600, 480, 510], "topk:5": [480, 490, 300, 450, 470, 400]},
    "parity_check": {"full": [None, "diverged:3", 800, 700, None, 900], "topk:5": [900, 800, None, 600, None, 850]},
}  # fmt: skip
HELDOUT = {
    "even_pairs": {"full": [0.99] * 6, "topk:5": [0.99, 0.985, 0.991, 0.98, 0.99, 0.988]},
    "stack_manipulation": {"full": [0.95] * 6, "topk:5": [0.9, 0.91, 0.92, 0.905, 0.9, 0.91]},
    "missing_duplicate_string": {"full": [0.9] * 6, "topk:5": [0.98, 0.97, 0.99, 0.98, 0.98, 0.99]},
    "solve_equation": 0.19,
    "parity_check": 0.52,
}
LISTOPS = {"full": [60, 50, 55], "topk:5": [40, 30, 50]}


def comparisons(folder, change=None, heldout=HELDOUT):
    """A comparison of each task, as in `EPOCHS` with `change`; their folders by task."""
    return {
        task: write_comparison(folder / task, task, outcomes, heldout.get(task, 0.96))
        for task, outcomes in {**EPOCHS, "listops": LISTOPS, **(change or {})}.items()
        if outcomes is not None
    }


def judged(folders):
    return judge({task: read_task(folder, task) for task, folder in folders.items()})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return comparisons(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def tier(whole):
    return judged(whole)


def claims_of(tier):
    return {claim.name: claim for claim in tier.claims}


def verdicts(tier):
    return {claim.name: claim.judgement.verdict.value for claim in tier.claims}


# --- the definitions, from files alone ---------------------------------------------------------------------------------


def runs_of(folder):
    """{(mask, seed): (epochs, reached, finished, held-out over the last five epochs, whether it reached 0.95 held out, …)}"""
    found = {}
    for path in folder.glob("runs/*/*/seed-*/spec.json"):
        spec = json.loads(path.read_text())
        history, result = path.with_name("history.jsonl"), path.with_name("result.json")
        rows = [json.loads(line) for line in history.read_text().splitlines()] if history.exists() else []
        told = json.loads(result.read_text()) if result.exists() else {}
        hit = next((row["epoch"] for row in rows if (row["train_accuracy"] or 0) >= 0.95), None)
        heldout = [row["heldout_accuracy"] for row in rows]
        found[spec["variant"], spec["seed"]] = {
            "epochs": hit or len(rows),
            "reached": hit is not None,
            "finished": told.get("status") in ("reached", "censored", "diverged"),
            "heldout": sum(heldout[-5:]) / len(heldout[-5:]) if heldout else None,
            "generalised": any(value >= 0.95 for value in heldout),
            "random": max(told.get("data", {}).get(name, 0) for name in ("chance", "majority_accuracy")),
        }
    return found


def flips(values):
    """The sign-flip test by its definition."""
    total = abs(sum(values))
    sums = [
        abs(sum(s * v for s, v in zip(signs, values, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(values))
    ]
    return sum(value >= total - 1e-12 for value in sums) / len(sums)


def interval(lows, highs):
    n = len(lows)
    rank = math.floor(0.05 * 2 ** (n - 1))
    means = [
        sorted(statistics.fmean(values[i] for i in some) if all(math.isfinite(values[i]) for i in some) else side
               for size in range(1, n + 1) for some in itertools.combinations(range(n), size))
        for values, side in ((lows, -math.inf), (highs, math.inf))
    ]  # fmt: skip
    return means[0][rank - 1], means[1][-rank]


def walsh(values):
    return statistics.median((a + b) / 2 for a, b in itertools.combinations_with_replacement(values, 2))


def own_verdict(p, towards):
    return "undecided" if p > 0.05 else "supported" if towards > 0 else "contradicted"


def check_values(told, values, above=0.0, exponent=False):
    """A judgement of finite values, one a unit."""
    low, high = interval(values, values)
    p = flips([value - above for value in values])
    assert told["p"] == pytest.approx(p)
    expected = [walsh(values), low, high]
    for name, value in zip(("estimate_low", "low", "high"), expected, strict=True):
        assert told[name] == pytest.approx(math.exp(value) if exponent else value, abs=1e-9), name
    assert told["verdict"] == own_verdict(p, sum(value - above for value in values))


def check_numbers(tier, folders):
    """Every claim of `paper.json` from the runs' own files."""
    told = {claim["name"]: claim for claim in tier["claims"]}
    runs = {task: runs_of(folder) for task, folder in folders.items()}
    complete = {
        task: [tuple(found[mask, seed] for mask in MASKS) for seed in range(6)]
        for task, found in runs.items()
        if task != "listops"
        and all(found.get((mask, seed), {"finished": False})["finished"] for mask in MASKS for seed in range(6))
    }
    restricted, gaps, without = {}, {}, set()
    for task in TASKS:
        if task not in complete:
            assert {told[f"{kind}:{task}"]["judgement"]["verdict"] for kind in ("faster", "heldout", "better")} == {
                "not_tested"
            }
            continue
        pairs, ceiling = complete[task], PAPER_EPOCHS[task]
        lows = [math.log(b["epochs"] / m["epochs"]) if m["reached"] else -math.inf for b, m in pairs]
        highs = [math.log(b["epochs"] / m["epochs"]) if b["reached"] else math.inf for b, m in pairs]
        judgement = told[f"faster:{task}"]["judgement"]
        if lows == highs:
            check_values(judgement, lows, exponent=True)
        else:
            faster, slower = sum(low >= 0 for low in lows), sum(high <= 0 for high in highs)
            most = max(faster, slower)
            p = min(1, 2 * sum(math.comb(6, count) for count in range(most, 7)) / 64)
            assert (judgement["p"], judgement["verdict"]) == (pytest.approx(p), own_verdict(p, faster - slower))
            for name, value in zip(
                ("estimate_low", "estimate_high", "low", "high"),
                (walsh(lows), walsh(highs), *interval(lows, highs)),
                strict=True,
            ):
                assert judgement[name] == (pytest.approx(math.exp(value)) if math.isfinite(value) else None), name
        counts = [[min(run["epochs"], ceiling) if run["reached"] else ceiling for run in pair] for pair in pairs]
        restricted[task] = [math.log(b / m) for b, m in counts]
        means = tier["restricted"][task]
        assert means["baseline"] == pytest.approx(statistics.fmean(b for b, _ in counts))
        assert means["mask"] == pytest.approx(statistics.fmean(m for _, m in counts))
        assert means["difference"]["estimate_low"] == pytest.approx(means["baseline"] - means["mask"])
        values = [m["heldout"] - b["heldout"] for b, m in pairs]
        if all(run["heldout"] <= run["random"] + 0.05 for pair in pairs for run in pair):
            without.add(task)
            assert {told[f"{kind}:{task}"]["untested"] for kind in ("heldout", "better")} == {"no_generalisation"}
        else:
            gaps[task] = statistics.fmean(values)
            check_values(told[f"heldout:{task}"]["judgement"], values, above=-0.02)
            check_values(told[f"better:{task}"]["judgement"], values)
    for kind in ("faster", "heldout", "better"):
        p = sorted((told[f"{kind}:{task}"]["judgement"]["p"] or 1.0, task) for task in TASKS)
        least = 0.0
        for place, (value, task) in enumerate(p):
            least = min(1.0, max(least, value * (len(TASKS) - place)))
            if told[f"{kind}:{task}"]["judgement"]["p"] is not None:
                assert told[f"{kind}:{task}"]["judgement"]["p_holm"] == pytest.approx(least)
    over = ("faster:mean", "faster:tasks", "heldout:tasks", "fits_all")
    if len(complete) < len(TASKS):
        assert {told[name]["judgement"]["verdict"] for name in over} == {"not_tested"}
        return
    check_values(told["faster:mean"]["judgement"], [statistics.fmean(own[seed] for own in restricted.values()) for seed in range(6)],
                 exponent=True)  # fmt: skip
    tasks = told["faster:tasks"]["judgement"]
    over_tasks = [statistics.fmean(own) for own in restricted.values()]
    assert tasks["p"] == pytest.approx(flips(over_tasks))
    assert [math.log(tasks[name]) for name in ("low", "high")] == pytest.approx(interval(over_tasks, over_tasks))
    assert set(told["heldout:tasks"]["left_out"]) == without
    if len(gaps) >= 6:
        assert told["heldout:tasks"]["judgement"]["p"] == pytest.approx(
            flips([value + 0.02 for value in gaps.values()])
        )
    else:
        assert told["heldout:tasks"]["untested"] == "few_tasks"
    fit = {task for task, pairs in complete.items() if all(b["reached"] for b, _ in pairs)}
    assert set(told["fits_all"]["tasks"]) == fit
    assert told["fits_all"]["judgement"]["verdict"] == ("supported" if len(fit) == len(TASKS) else "contradicted")
    general = {task for task, pairs in complete.items() if sum(b["generalised"] for b, _ in pairs) > 3}
    if "listops" in runs:
        general |= (
            {"listops"} if sum(runs["listops"]["full", seed]["generalised"] for seed in range(3)) >= 2 else set()
        )
        assert set(told["generalises_on_4"]["tasks"]) == general


def as_json(tier):
    return json.loads(json.dumps(tier.to_dict(), allow_nan=False))


# --- what is stored ----------------------------------------------------------------------------------------------------


def test_the_stored_page_is_what_the_stored_runs_give():
    evidence = read_evidence(RESULTS)
    assert json.loads((RESULTS / "paper.json").read_text(encoding="utf-8")) == as_json(evidence)
    pictures_there = [path.stem for path in (RESULTS / "paper").glob("*.png")]
    assert (RESULTS / "paper.md").read_text(encoding="utf-8") == evidence.markdown(pictures_there)
    assert {name: blocks.block(name) for name in evidence.blocks()} == evidence.blocks()
    assert json.loads(STORED.read_text(encoding="utf-8")) == as_json(evidence)["law"]["summary"]


@pytest.mark.parametrize("found", theory.read(RESULTS), ids=lambda found: found["task"])
def test_the_stored_theory_follows_from_its_models(found):
    assert found["paper"] == json.loads(json.dumps(beside_paper(found["task"], found["points"])))
    assert {point["own_mask"] for point in found["points"]} == set(MASKS)
    table = "\n".join(theory.section([found]))
    row = next(row for row in found["paper"] if row["quantity"] == "dispersion_full" and row["level"] == 90)
    of_full = [point["percentiles"]["dispersion_full"][1] for point in found["points"] if point["own_mask"] == "full"]
    assert row["median"] == statistics.median(of_full)
    assert f"{number(row['median'])} / {number(row['paper'])}" in table
    if "longer" in found:
        stopped, whole = sorted(found["longer"], key=lambda point: point["epochs"])
        assert whole["epochs"] == PAPER_EPOCHS[found["task"]] > stopped["epochs"]
        assert f"{number(whole['percentiles']['dispersion_mask'][0])}, " in table
    if found["slices"]:
        shape = len(found["slices"][0]["half_widths"]), len(found["slices"][0]["levels"])
        full, sparse = (
            [statistics.median(one["slopes"][i][j] for one in found["slices"] if one["mask"] == mask)
             for i in range(shape[0]) for j in range(shape[1])]
            for mask in MASKS
        )  # fmt: skip
        smaller = sum(a < b for a, b in zip(sparse, full, strict=True))
        assert f"smaller ones at {smaller} of these {len(full)} places." in table


def test_analyses_of_two_tasks_or_without_the_papers_table_are_refused(tmp_path, capsys):
    for name, found in (("a", {"task": "even_pairs", "paper": [{}]}), ("b", {"task": "listops", "paper": []})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "analysis.json").write_text(json.dumps(found))
    for folders in (["a", "b"], ["b"]):
        assert theory.main([*(str(tmp_path / name) for name in folders), "--results", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2
    assert not (tmp_path / "paper").exists()


def test_every_stored_number_follows_from_the_histories(tmp_path):
    there = [task for task in (*TASKS, "listops") if (RESULTS / stored_name(task)).is_dir()]
    folders = {task: unpack(RESULTS / stored_name(task), tmp_path / task) for task in there}
    check_numbers(json.loads((RESULTS / "paper.json").read_text(encoding="utf-8")), folders)


# --- the same on runs with every outcome -------------------------------------------------------------------------------


def test_every_number_follows_from_the_histories(tier, whole):
    check_numbers(tier.to_dict(), whole)


def test_a_changed_history_is_noticed(tmp_path):
    folders = {"even_pairs": write_comparison(tmp_path / "even_pairs", "even_pairs", EPOCHS["even_pairs"])}
    told = judged(folders).to_dict()
    check_numbers(told, folders)
    path = folders["even_pairs"] / "runs/even_pairs/topk-5/seed-0/history.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for change in ({"train_accuracy": 0.96}, {"heldout_accuracy": 0.5}):
        changed = [{**row, **change} if row["epoch"] in (12, 19) else row for row in rows]
        path.write_text("".join(json.dumps(row) + "\n" for row in changed))
        with pytest.raises(AssertionError):
            check_numbers(told, folders)


def test_verdicts_of_a_whole_tier(tier):
    found = verdicts(tier)
    assert found["faster:even_pairs"] == "supported"
    assert found["faster:solve_equation"] == "contradicted"
    assert found["faster:stack_manipulation"] == "undecided"
    assert found["faster:missing_duplicate_string"] == "supported"  # one pair is censored, and points the same way
    assert found["faster:parity_check"] == found["faster:modular_arithmetic_brackets"] == "undecided"
    assert found["heldout:stack_manipulation"] == "contradicted"
    assert found["better:missing_duplicate_string"] == "supported"
    assert found["better:even_pairs"] == "undecided"
    assert found["heldout:parity_check"] == found["better:solve_equation"] == "not_tested"
    assert found["fits_all"] == "contradicted"
    assert not any(claim.judgement.family_wise for claim in tier.claims)  # six pairs cannot


def test_over_tasks_nothing_is_supported_where_a_task_says_the_opposite(tmp_path):
    quick = {"full": [100, 110, 120, 95, 105, 99], "topk:5": [50, 45, 60, 40, 55, 51]}
    outcomes = dict.fromkeys([*TASKS, "listops"], quick) | {"even_pairs": {"full": [36] * 6, "topk:5": [38] * 6}}
    outcomes["listops"] = {mask: values[:3] for mask, values in quick.items()}
    found = claims_of(judged(comparisons(tmp_path, outcomes, {})))
    assert found["faster:even_pairs"].judgement.verdict == "contradicted"
    assert found["faster:mean"].judgement.verdict == "supported"
    assert found["faster:tasks"].judgement.p <= 0.05
    assert found["faster:tasks"].judgement.verdict == "undecided"
    assert found["heldout:tasks"].judgement.verdict == "supported"
    assert found["fits_all"].judgement.verdict == "supported"
    assert found["generalises_on_4"].judgement.verdict == "contradicted"  # it generalises on all


@pytest.mark.parametrize("outcome", ["unfinished:20", "failed", "missing"])
def test_a_missing_pair_leaves_what_needs_it_untested(whole, tmp_path, outcome):
    lacking = {"full": [36, 40, 30, 50, 44, 38], "topk:5": [14, 9, 7, 20, 11, outcome]}
    tier = judged({**whole, "even_pairs": write_comparison(tmp_path / "even_pairs", "even_pairs", lacking)})
    found = claims_of(tier)
    for name in ("faster:even_pairs", "better:even_pairs", "faster:mean", "faster:tasks", "heldout:tasks", "fits_all"):
        assert found[name].judgement.verdict == "not_tested", name
        assert found[name].untested is Untested.PAIRS_MISSING
        assert found[name].missing == {"even_pairs": 1}
    assert found["faster:solve_equation"].judgement.verdict == "contradicted"
    told = {"unfinished:20": "unfinished after 20 epochs", "failed": "failed", "missing": "not started"}[outcome]
    assert f"- even_pairs: seed 5 (`topk:5` {told})." in page.markdown(tier)


def test_nothing_stored_is_nothing_tested():
    tier = judge({})
    assert set(verdicts(tier).values()) == {"not_tested"}
    assert "Nothing is stored yet." in page.markdown(tier)
    assert pictures.curves({}) is None
    assert pictures.reached(tier) is None


@pytest.mark.parametrize(
    ("machines", "gap"),
    [
        ({("full", 2): {**MACHINE, "processor": "another"}}, Gap.TWO_MACHINES),
        ({("topk:5", 2): {**MACHINE, "products": "pytorch"}}, Gap.TWO_MACHINES),
        ({("full", 2): {}}, Gap.MACHINE_UNKNOWN),
        ({(mask, 2): {**MACHINE, "processor": "another"} for mask in MASKS}, None),
    ],
)
def test_a_pair_of_two_machines_does_not_count(tmp_path, machines, gap):
    folder = write_comparison(tmp_path / "even_pairs", "even_pairs", EPOCHS["even_pairs"], machines=machines)
    tier = judged({"even_pairs": folder})
    (task,) = (task for task in tier.tasks if task.name == "even_pairs")
    assert [pair.seed for pair in task.pairs if pair.gap] == ([] if gap is None else [2])
    assert task.pairs[2].gap is gap
    assert (verdicts(tier)["faster:even_pairs"] == "supported") is (gap is None)


def test_a_run_that_went_on_elsewhere_is_of_two_machines(tmp_path):
    folder = write_comparison(tmp_path / "even_pairs", "even_pairs", EPOCHS["even_pairs"])
    run = folder / "runs/even_pairs/full/seed-1"
    same = {name: value for name, value in MACHINE.items() if name != "products"}
    for first, gap in ((same, None), ({**same, "processor": "another"}, Gap.TWO_MACHINES)):
        (run / "machines.json").write_text(json.dumps([{"machine": first, "epochs": 7}]))
        task = judged({"even_pairs": folder}).tasks[0]
        assert task.pairs[1].gap is gap
    lines = page.markdown(judged({"even_pairs": folder}))
    assert "- even_pairs: seed 1 (trained on two machines: to be run again, whole)." in lines
    assert "- another, 2 cores, Linux: full, seed 1." in lines


def test_extra_seeds_are_shown_and_change_no_verdict(tmp_path):
    more = {"full": [*EPOCHS["even_pairs"]["full"], 10], "topk:5": [*EPOCHS["even_pairs"]["topk:5"], 90]}
    folder = write_comparison(tmp_path / "even_pairs", "even_pairs", more)
    tier = judged({"even_pairs": folder})
    assert verdicts(tier)["faster:even_pairs"] == "supported"
    assert claims_of(tier)["faster:even_pairs"].judgement.n == 6
    assert "| 6 (extra) | 10 | 90 |" in page.markdown(tier)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"training": {"learning_rate": 0.3}}, r"training\.learning_rate: 0\.3 there, 0\.1 asked"),
        ({"training": {"epochs": 90}}, r"training\.epochs: 90 there, 100 asked"),
        ({"model": {"hidden_act": "gelu"}}, r"model\.hidden_act: 'gelu' there"),
    ],
)
def test_runs_of_another_recipe_are_refused(tmp_path, change, words):
    folder = write_comparison(tmp_path / "even_pairs", "even_pairs", {"full": [36], "topk:5": [14]})
    path = folder / "runs/even_pairs/topk-5/seed-0/spec.json"
    spec = json.loads(path.read_text())
    path.write_text(json.dumps({**spec, **{name: {**spec[name], **own} for name, own in change.items()}}))
    with pytest.raises(ValueError, match=rf"paper_even_pairs: topk:5, seed 0 is not of its recipe \({words}"):
        read_task(folder, "even_pairs")


# --- words and pictures ------------------------------------------------------------------------------------------------


def test_the_page_says_what_the_numbers_say(tier):
    text = page.markdown(tier, ["curves"])
    assert "| `topk:5` learns even_pairs faster (`faster:even_pairs`) | 6 pairs, sign-flip test |" in text
    assert "| 3.3× [2.5, 4.4], p = 0.031 (Holm 0.22) | **supported** (this task alone) |" in text
    assert "6 pairs, sign test (pairs are censored)" in text
    assert "| 1 | >3 (diverged) | 800 |" in text
    assert "| 0 | 36 | 14 |" in text
    assert "both masks near chance: no generalisation to compare" in text
    assert "![Training loss" in text
    assert "![Kaplan" not in text
    assert "Nothing is missing." in text


def test_pictures_have_a_panel_a_task_and_fixed_colours(whole):
    stored = {task: read_task(folder, task) for task, folder in whole.items()}
    figure = pictures.curves(stored)
    assert len(figure.axes) == 2 * len(TASKS)
    assert len(pictures.reached(judge(stored)).axes) == len(TASKS) + 1
    one = pictures.curves({"even_pairs": stored["even_pairs"]})
    lines = {line.get_color(): line for line in one.axes[0].lines if line.get_linestyle() == "-"}
    longest = {
        label.get_text(): line.get_color()
        for label, line in zip(one.legends[0].texts, one.legends[0].legend_handles, strict=True)
    }
    # The first epoch's median running loss, from the files.
    losses = [json.loads(path.read_text().splitlines()[0])["running_loss"]
              for path in whole["even_pairs"].glob("runs/even_pairs/topk-5/*/history.jsonl")]  # fmt: skip
    assert lines[longest["topk:5"]].get_ydata()[0] == pytest.approx(statistics.median(losses))


def test_the_law_has_a_panel_a_task_and_a_mark_a_run():
    runs = [
        FocusRun("even_pairs", seed, mask, kind, gain, math.log(20 + seed), 0.9 / gain, gain)
        for seed in range(3)
        for mask in MASKS
        for kind, gain in (("gain", 1.0), ("gain", 2.0), ("temperature", 1.0))
    ]
    figure = pictures.law(runs)
    (axes,) = figure.axes
    assert sum(len(line.get_xdata()) == 1 for line in axes.lines) == len(runs)
    assert {text.get_text() for text in axes.texts} == {"gain 1", "gain 2"}
    assert pictures.law([]) is None


def test_epochs_are_split_into_plateau_and_climb(whole, tier):
    stored = {task: read_task(folder, task) for task, folder in whole.items()}
    splits = {one.task: one for one in plateaus.splits(tier.tasks, stored)}
    # Accuracy is 0.5 + 0.5 (epoch / τ's epoch)³, and the majority class 0.51: above 0.61 from 0.604 of the way on.
    ends = EPOCHS["even_pairs"]
    expected = {mask: [math.ceil(0.22 ** (1 / 3) * end) for end in ends[mask]] for mask in MASKS}
    told = splits["even_pairs"]
    assert told.plateaus == {mask: tuple(values) for mask, values in expected.items()}
    assert told.climbs["full"] == tuple(end - first for end, first in zip(ends["full"], expected["full"], strict=True))
    logs = [math.log(a / b) for a, b in zip(expected["full"], expected["topk:5"], strict=True)]
    check_values(asdict(told.plateau), logs, exponent=True)
    check_values(asdict(told.climb), [a - b for a, b in zip(*told.climbs.values(), strict=True)])
    assert splits["missing_duplicate_string"].seeds == (0, 1, 3, 4, 5)  # full attention did not learn it with seed 2
    text = "\n".join(plateaus.section(list(splits.values())))
    assert "| even_pairs | 22, 25, 19, 31, 27, 23 |" in text
    before = sum(first - 1 for first in expected["full"])  # each climbs on from there
    assert f"these are before that: even_pairs {100 * before / sum(ends['full']):.0f} %, " in text
    at_once = plateaus.Split(
        "x", (0,), {"full": (4,), "topk:5": (1,)}, {"full": (0,), "topk:5": (2,)}, told.plateau, told.climb
    )
    assert "before that: x 100 %" in "\n".join(plateaus.section([at_once]))
    assert plateaus.section([]) == []


def stored_tier(results, name, task, outcomes):
    paper = Experiment.from_yaml(RESULTS.parent / "paper" / f"{name}.yaml")
    folder = write_comparison(results.parent / name, task, outcomes, paper=paper)
    return store(folder, results / f"paper_{name}", pictures=())


def test_further_tiers_have_tier_1s_rule_and_fewer_pairs_are_only_shown(tmp_path):
    results = tmp_path / "results"
    full = EPOCHS["even_pairs"]["full"]
    stored_tier(
        results, "tier2", "even_pairs", {"full": full, "topk:9": [14, 9, 7, 20, 11, 15], "block:5": [None] * 6}
    )
    stored_tier(results, "heavy_hitters", "even_pairs", {"full": full[:3], "botk:5": [None, 20, "unfinished:4"]})
    evidence = read_evidence(results)
    (topk, block), (botk,) = evidence.to_dict()["further"].values()
    check_values(
        topk["judgement"],
        [math.log(a / b) for a, b in zip(full, EPOCHS["even_pairs"]["topk:5"], strict=True)],
        exponent=True,
    )
    # Every pair is censored on the mask's side: the sign test, and full attention is faster in all six.
    assert (block["judgement"]["verdict"], block["judgement"]["p"]) == ("contradicted", 2 / 64)
    assert (botk["judgement"]["verdict"], botk["judgement"]["n"]) == ("not_tested", 2)
    text = evidence.markdown([])
    saved = [end - 100 for end in full]  # restricted epochs, full − mask
    assert (
        f"sign test; restricted {statistics.fmean(saved):+.1f} [{min(saved):+.1f}, {max(saved):+.1f}] epochs |".replace(
            "-", "−"
        )
        in text
    )
    assert "Exploration: no claim of the protocol. Where pairs" in text
    assert (
        "| even_pairs | `topk:9` | 14, 9, 7, 20, 11, 15 | 36, 40, 30, 50, 44, 38 | 3.3× [2.5, 4.4], p = 0.031 (Holm 0.094) | "
        "**supported** (this task alone) |" in text
    )
    assert "| `botk:5` | >100, 20, >4 (unfinished) | 36, 40, 30 | – | not tested (2 pairs) |" in text
    assert (
        "Nothing is stored yet of even_pairs with `band:5`, `band:5+1global`, `block:5+1global`; missing_duplicate_string; "
        "stack_manipulation." in text
    )
    listed = evidence.blocks()["paper-results"]
    assert "even_pairs `topk:9` 3.3× [2.5, 4.4], supported (this task alone); even_pairs `block:5` " in listed
    assert "median epochs: even_pairs (2 pairs) `full` 38, `botk:5` >100." in listed
    (results / "paper_tier2").rename(results / "paper_tier5_gelu")
    with pytest.raises(ValueError, match="paper_tier5_gelu"):
        read_evidence(results)


def test_full_attention_keeps_tier_1s_ceiling_where_a_tiers_own_is_lower(tmp_path, monkeypatch):
    recipes = Path(shutil.copytree(records.TIER_RECIPES, tmp_path / "paper"))
    tier6 = (recipes / "tier6.yaml").read_text()
    lower = "solve_equation: {recipe: tier1.yaml, training: {epochs: 450}}"
    (recipes / "tier6.yaml").write_text(tier6.replace("solve_equation: {recipe: tier1.yaml}", lower))
    monkeypatch.setattr(records, "TIER_RECIPES", recipes)
    results = tmp_path / "results"
    outcomes = {"full": [300], "block:5": [None]}
    stored_tier(results, "tier6", "solve_equation", outcomes)  # both masks with tier 1's 600 epochs
    with pytest.raises(
        ValueError, match=r"block:5, seed 0 is not of its recipe \(training\.epochs: 600 there, 450 asked"
    ):
        read_tier(results, "tier6")
    folder = write_comparison(
        tmp_path / "both", "solve_equation", outcomes, paper=Experiment.from_yaml(recipes / "tier6.yaml")
    )
    shutil.copytree(
        tmp_path / "tier6/runs/solve_equation/full", folder / "runs/solve_equation/full", dirs_exist_ok=True
    )
    store(folder, results / "paper_tier6", pictures=())
    assert {own.run.spec.training.epochs for own in read_tier(results, "tier6")} == {450, 600}


def test_the_law_on_the_page_is_what_its_runs_give():
    epochs = {"full": [60, 50, 55, 48, 63, 57], "topk:5": [6, 5, 8, 4, 5, 7]}
    sharp = {"full;gain=2": [12, 11, 9, 14, 10, 13], "topk:5;gain=2": [10, 12, 8, 9, 11, 14]}
    runs = [
        FocusRun("even_pairs", seed, label.partition(";")[0], "gain", 2.0 if ";" in label else 1.0, math.log(value),
                 0.99 / (2.0 if ";" in label else 1.0), 1.0, label)
        for label, values in {**epochs, **sharp}.items() for seed, value in enumerate(values)
    ]  # fmt: skip
    told = law.judge(runs)
    plain, at_2 = told["advantages"]
    assert (plain["change"], at_2["change"]) == ("", "gain=2")
    for one, (full, sparse) in ((plain, epochs.values()), (at_2, sharp.values())):
        check_values(one, [math.log(a / b) for a, b in zip(full, sparse, strict=True)], exponent=True)
    text = "\n".join(law.section(told, drawn=True))
    assert "not tested: runs that it needs are missing" in text  # stack_manipulation is missing
    assert "| even_pairs | none | 10× [6.9, 13], p = 0.031 | 6 | 0 |" in text
    assert "| even_pairs | gain=2 |" in text
    slopes = [(math.log(b / y) - math.log(a / x)) / math.log(2)
              for a, x, b, y in zip(*epochs.values(), *sharp.values(), strict=True)]  # fmt: skip
    check_values(told["alone"]["even_pairs"]["focus:vanishes"], [-slope for slope in slopes])
    assert f"(even_pairs alone) | slope {walsh(slopes):.2f} [".replace("-", "−") in text
    assert law.judge(runs[:-1])["alone"] == {}
    assert "| even_pairs | `full` | 0.990 | 1.00 | 55.2 | 6, 0 | baseline |" in text


def test_runs_of_the_law_that_have_not_ended_or_are_of_another_machine_are_named(tmp_path):
    results = tmp_path / "results"
    outcomes = {"full": [30, 40], "topk:5": [6, 8], "full;gain=2": ["unfinished:12", 9]}
    paper = Experiment.from_yaml(RESULTS.parent / "paper" / "tier3.yaml")
    elsewhere = {**MACHINE, "processor": "another"}
    folder = write_comparison(
        tmp_path / "sweep", "even_pairs", outcomes, paper=paper, machines={("topk:5", 1): elsewhere}
    )
    store(folder, results / "paper_tier3", pictures=())
    counted, left_out = law.read(results)
    assert sorted((run.label, run.seed) for run in counted) == [
        ("full", 0),
        ("full", 1),
        ("full;gain=2", 1),
        ("topk:5", 0),
    ]
    text = "\n".join(law.section(law.judge(counted, left_out), drawn=False))
    assert (
        "Not counted: even_pairs `topk:5` seed 1 (another machine than full attention's after 13 epochs, τ reached); "
        "even_pairs `full;gain=2` seed 0 (unfinished after 12 epochs, τ not reached)." in text
    )


@pytest.mark.parametrize(
    ("low", "high", "ends", "text"),
    [
        (2.0, 2.0, (1.8749, 2.1251), "2.0× [1.9, 2.1]"),
        (2.0, None, (1.9999, None), "≥ 2.0× [1.9, ∞]"),
        (None, 0.634, (None, 0.99996), "≤ 0.64× [0, 0.99996]"),
        (0.8, 3.94, (0.7999, 3.9401), "0.80–4.0× [0.79, 4.0]"),
    ],
)
def test_bounds_are_rounded_outwards(low, high, ends, text):
    judged = Judgement(Verdict.UNDECIDED, 6, "sign", 0.5, low, high, *ends)
    assert page.speed_text(judged) == text


@pytest.mark.parametrize("seeds", [3, 6])
def test_the_law_over_the_three_tasks_is_provisional_until_all_variants_are_there(seeds):
    epochs = {"full": 60, "topk:5": 6, "full;gain=2": 12, "topk:5;gain=2": 9, "full;sparsemax": 3}
    runs = [
        FocusRun(task, seed, label.partition(";")[0], "sparsemax" if "sparsemax" in label else "gain", 2.0 if "gain" in label else 1.0,
                 math.log(value * (1 + 0.1 * seed) + (20 if task == "stack_manipulation" else 0)), 0.99 / value, 1.0, label)
        for task in focus_law.TASKS for label, value in epochs.items() for seed in range(seeds)
    ]  # fmt: skip
    lines = law.section(law.judge(runs), drawn=False)
    told = {name: next(line for line in lines if f"`{name}`" in line) for name in law.QUESTIONS}
    if seeds == 3:
        assert all("| – | not tested" in line for line in told.values())
        return
    assert told["focus:exception"].endswith("p = 0.031 | **supported** |")
    assert "| slope −" in told["focus:vanishes"]
    assert told["focus:vanishes"].endswith("**supported** (provisional) |")
    assert re.search(r"\| −?\d\.\d\d \[−?\d\.\d\d, −?\d\.\d\d\] \| ", told["focus:explains"])
    assert any(
        "in every seed: `full`, `topk:5`" in line and line.endswith("lacks 20 variants of the recipe.")
        for line in lines
    )
    assert any(line.startswith("| `sparsemax` | 2.0× [2.0, 2.0], p = 0.031 | ") for line in lines)


def test_the_command_makes_the_page_and_says_what_is_wrong(tmp_path, capsys):
    folder = write_comparison(tmp_path / "run", "even_pairs", EPOCHS["even_pairs"])
    results = tmp_path / "results"
    store(folder, results / "paper_even_pairs", pictures=())
    assert main(["--results", str(results)]) == 0
    assert capsys.readouterr().out == "26 claims of tier 1: 2 supported, 1 undecided, 23 not_tested\n"
    assert sorted(path.name for path in (results / "paper").iterdir()) == ["curves.png", "reached.png"]
    assert json.loads((results / "paper.json").read_text()) == as_json(read_evidence(results))
    before = (results / "paper.md").read_bytes()
    (results / "paper_even_pairs" / "histories.tar.xz").write_bytes(b"no archive")
    assert main(["--results", str(results)]) == 2
    assert main(["--results", str(tmp_path / "typo")]) == 2
    damaged, typo = capsys.readouterr().err.splitlines()
    assert "is damaged" in damaged
    assert typo == f"reproduction: {tmp_path / 'typo'} is no folder"
    assert (results / "paper.md").read_bytes() == before
    write_page(read_evidence(tmp_path), results)
    assert not list((results / "paper").iterdir())
