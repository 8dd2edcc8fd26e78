"""The rules of the law of focus, on runs that were made with a known law."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from hf_semfocus.comparison.compare import compare
from hf_semfocus.comparison.paired_tests import Verdict
from hf_semfocus.experiments.experiment import Experiment
from recipes import focus_law as law

TASKS = ("even_pairs", "missing_duplicate_string", "stack_manipulation")
GAINS = (0.5, 1.0, 1.4, 2.0, 2.8, 3.8, 4.6, 6.0)


def entropy_of(mask, gain):
    """As on untrained models: top-k has at most ln 5 / ln 40, and the two come together where attention is sharp."""
    whole = 1 / (1 + (gain / 4) ** 3)
    return whole if mask == "full" else min(whole, 0.436 - 0.03 * math.log(1 + gain))


def sweep(y, seeds=6, noise=0.0):
    rng = np.random.default_rng(0)
    return [
        law.FocusRun(task, seed, mask, "gain", gain, y(task, mask, gain, h) + noise * rng.normal(), h, gain**2)
        for seed in range(seeds)
        for task in TASKS
        for mask in ("full", "topk:5")
        for gain in GAINS
        for h in [entropy_of(mask, gain) * (1 - 0.01 * seed)]
    ]


def level(task):
    return 4.0 + TASKS.index(task)


def by_entropy(task, mask, gain, h):
    return level(task) + 3 * h**2 - h


def by_mask(task, mask, gain, h):
    return by_entropy(task, mask, gain, h) - 0.5 * (mask == "topk:5")


def test_where_entropy_is_all_the_mask_adds_nothing_and_everything_is_explained():
    judged, tasks = law.matched(sweep(by_entropy))
    assert judged.estimate_low == pytest.approx(0, abs=1e-9)
    assert judged.verdict is Verdict.CONTRADICTED  # an advantage of 10 % is excluded
    assert tasks == TASKS
    outside, inside = law.explains(sweep(by_entropy))["entropy"]
    assert outside.estimate_low == pytest.approx(1)
    assert inside.estimate_low == pytest.approx(1)
    assert outside.verdict is Verdict.SUPPORTED


def test_an_effect_of_the_mask_beside_entropy_is_found():
    judged, _ = law.matched(sweep(by_mask))
    assert judged.estimate_low == pytest.approx(0.5)
    assert (judged.verdict, judged.p) == (Verdict.SUPPORTED, 2 / 64)
    found = law.explains(sweep(by_mask))
    assert found["entropy and mask"][0].estimate_low == pytest.approx(1)
    assert found["entropy"][0].estimate_low < 1


def test_where_ranges_do_not_overlap_nothing_is_tested():
    runs = [run for run in sweep(by_entropy) if run.mask != "full" or run.gain <= 3]
    judged, tasks = law.matched(runs)
    assert (judged.verdict, tasks) == (Verdict.NOT_TESTED, ())
    only = [run for run in sweep(by_mask) if run.task == TASKS[0] or run.mask != "full" or run.gain <= 3]
    judged, tasks = law.matched(only)
    assert (judged.estimate_low, tasks) == (pytest.approx(0.5), TASKS[:1])


def test_noise_is_not_explained_and_few_seeds_are_not_tested():
    noise = sweep(lambda task, *_: level(task), noise=1.0)
    assert law.explains(noise)["entropy"][0].verdict is Verdict.CONTRADICTED
    assert law.matched(sweep(by_mask, seeds=5))[0].verdict is Verdict.NOT_TESTED


def test_a_law_that_differs_between_tasks_does_not_carry_over():
    runs = sweep(lambda task, mask, gain, h: h if task == TASKS[0] else -h)
    outside, _ = law.explains(runs)["entropy"]
    assert outside.high < 0


@pytest.mark.parametrize(("slope", "verdict"), [(-0.8, Verdict.SUPPORTED), (0.8, Verdict.CONTRADICTED)])
def test_a_vanishing_advantage_is_a_falling_ratio(slope, verdict):
    runs = sweep(lambda task, mask, gain, h: level(task) + (slope * math.log(gain) if mask == "full" else 0))
    judged = law.vanishes(runs)
    assert judged.verdict is verdict
    assert judged.estimate_low == pytest.approx(-slope)


@pytest.mark.parametrize("other", [-0.5, 0.9])
def test_an_exception_is_one_whichever_way(other):
    runs = sweep(lambda task, mask, gain, h: (other if task == TASKS[2] else 0.3) * (mask == "full"), noise=1e-3)
    judged = law.exception(runs)
    assert judged.verdict is Verdict.SUPPORTED
    assert judged.estimate_low == pytest.approx(other - 0.3, abs=0.01)
    alike = sweep(lambda task, mask, gain, h: 0.3 * (mask == "full"), noise=0.1)
    assert law.exception(alike).verdict is Verdict.UNDECIDED


# the runs of a comparison


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A sweep of tiny runs by the program, one of them without what it recorded of its untrained attention."""
    changes = {"full": {}, "full;gain=2": {"attention_gain": 2.0}, "full;beta=4": {"attention_scale": 1.0}}
    changes |= {"full;qk_norm": {"qk_norm": True}, "full;sparsemax": {"normalizer": "sparsemax"}}
    experiment = Experiment(
        "sweep",
        {"even_pairs": {}},
        ("topk:3", *changes),
        (0,),
        {
            "length": 12, "train_size": 100, "validation_size": 20, "test_size": 20,
            "model": {"hidden_size": 16, "num_hidden_layers": 1}, "training": {"epochs": 1},
        },
        variants={name: {"mask": "full", **fields} for name, fields in changes.items()},
    )  # fmt: skip
    out = tmp_path_factory.mktemp("sweep") / "out"
    compare(experiment, out, jobs=1)
    path = out / "runs" / "even_pairs" / "full" / "seed-0" / "result.json"
    result = json.loads(path.read_text())
    start = result.pop("initial_attention")
    path.write_text(json.dumps(result))
    return out, start


def test_runs_are_read_with_what_they_changed_and_measured_again_where_nothing_was_recorded(swept):
    out, start = swept
    runs = {run.label: run for run in law.read_focus_runs(out)}
    assert {label: (run.kind, run.mask, run.gain, run.change) for label, run in runs.items()} == {
        "topk:3": ("gain", "topk:3", 1.0, "--mask topk:3"),
        "full": ("gain", "full", 1.0, ""),
        "full;gain=2": ("gain", "full", 2.0, "--set model.attention_gain=2.0"),
        "full;beta=4": ("temperature", "full", 1.0, "--set model.attention_scale=1.0"),
        "full;qk_norm": ("qk_norm", "full", 1.0, "--set model.qk_norm=true"),
        "full;sparsemax": ("sparsemax", "full", 1.0, "--set model.normalizer=sparsemax"),
    }
    assert (runs["full"].entropy, runs["full"].dispersion) == (start["entropy"], start["dispersion_all"])
    assert all(run.log_epochs == 0 for run in runs.values())  # the budget of one epoch
    assert all(run.censored for run in runs.values())
    assert runs["full;sparsemax"].entropy < runs["full"].entropy > runs["topk:3"].entropy


def test_the_command_writes_a_summary_and_names_what_is_wrong(swept, tmp_path, capsys):
    out, start = swept
    law.main([str(out), "--output", str(tmp_path / "law.json")])
    found = json.loads((tmp_path / "law.json").read_text())
    assert (found["runs"], found["censored"], found["tasks"]) == (6, 6, ["even_pairs"])
    assert found["baseline_entropy"] == [start["entropy"]] * 2
    assert set(found["judgements"].values()) == {None}
    assert {change["verdict"] for change in found["changes"]} == {"not_tested"}
    assert "even_pairs" in capsys.readouterr().out
    for wrong, words in (([str(tmp_path)], "not a run directory"), ([str(out), str(out)], "two folders hold the run")):
        with pytest.raises(SystemExit) as ended:
            law.main(wrong)
        assert ended.value.code == 2
        told = capsys.readouterr().err
        assert words in told
        assert told.count("\n") == 1


def test_a_summary_has_the_rules_and_each_change_against_full_attention():
    runs = [
        replace(run, label=run.mask if run.gain == 1 else f"{run.mask};gain={run.gain}", change=f"--mask {run.mask}")
        for run in sweep(by_mask)
    ]
    found = law.summary(runs)
    assert found["judgements"]["focus:matched"]["estimate_low"] == pytest.approx(math.exp(0.5))
    assert found["judgements"]["focus:explains"]["entropy and mask"]["left_out"]["verdict"] == "supported"
    change = next(c for c in found["changes"] if (c["label"], c["task"]) == ("topk:5", None))
    logs = [
        np.mean([by_mask(t, "full", 1.0, h("full", s)) - by_mask(t, "topk:5", 1.0, h("topk:5", s)) for t in TASKS])
        for s in range(6)
    ]
    assert (change["verdict"], change["n"]) == ("supported", 6)
    assert (change["low"], change["high"]) == pytest.approx((math.exp(min(logs)), math.exp(max(logs))))
    assert len(found["changes"]) == 15 * 4
    assert len(found["groups"]) == 16 * 3
    without_a_baseline = [run for run in runs if (run.task, run.seed, run.label) != (TASKS[1], 3, "full")]
    assert set(law.summary(without_a_baseline)["judgements"].values()) == {None}


def test_tasks_are_judged_on_the_labels_that_each_has_in_every_seed():
    runs = [
        replace(run, label=run.mask if run.gain == 1 else f"{run.mask};gain={run.gain}")
        for run in sweep(by_mask, noise=0.1)
    ]
    few = [run for run in runs if run.gain in (1.0, 2.8, 4.6, 6.0)]
    other = [run for run in runs if run.task == TASKS[0] and run not in few]
    half = [run for run in runs if run.seed < 3 and run not in few and run not in other]
    # What one task has alone, or a task in some of its seeds, changes no verdict over the tasks.
    found = law.summary([*few, *other, *half])
    assert found["judgements"] == law.summary(few)["judgements"]
    assert set(found["judged_labels"]) == {run.label for run in few}
    at_1 = law.summary([run for run in runs if run.gain == 1 or run.task == TASKS[0]])["judgements"]
    assert {name for name, judged in at_1.items() if judged} == {"focus:exception"}
    assert at_1["focus:exception"] == law.summary(runs)["judgements"]["focus:exception"]


def h(mask, seed):
    return entropy_of(mask, 1.0) * (1 - 0.01 * seed)
