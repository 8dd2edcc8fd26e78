"""Masks at the same training loss, from curves whose ratio is known at every loss."""

import math
from pathlib import Path

import pytest

from hf_semfocus.comparison.matched import at_equal_loss, matched
from hf_semfocus.report.theory import matched_sentences
from hf_semfocus.schema import Epoch, RunResult, SpecRecord
from hf_semfocus.summary_schema import Analysis, Summary
from hf_semfocus.training.run_files import Run


def run(mask, losses, gradient, seed=0, task="a", initial=1.0):
    """A run whose gradient norm is a function of its training loss; None: not recorded in that epoch."""
    history = []
    for epoch, loss in enumerate(losses, start=1):
        value = gradient(loss)
        recorded = {} if value is None else {"analysis_gradient_norm": value, "analysis_trajectory_ratio": 3 * value}
        numbers = {"train_loss": loss, "train_accuracy": 0.5, "heldout_accuracy": 0.5, **recorded}
        history.append(Epoch(epoch=epoch, train_seconds=epoch, seconds=epoch, **numbers))
    spec = {"task": task, "mask": mask, "seed": seed, "training": {"tau": 0.95, "heldout_tau": 0.95, "epochs": 9}}
    result = RunResult(status="censored", initial_analysis={"analysis_gradient_norm": initial})
    return Run(SpecRecord.model_validate(spec), Path("."), history, result)


def said_of(*entries):
    return matched_sentences(Summary.model_construct(analysis=Analysis(matched=entries), baseline="full"))


def steps(first, last, count):
    return [first * (last / first) ** (i / (count - 1)) for i in range(count)]


def test_power_laws_are_met_exactly_whatever_the_speed():
    """Own gradients 2·loss², the baseline's 4·loss: the ratio at a loss is loss/2, whenever each run gets there."""
    base, own = (
        run("full", steps(0.8, 0.1, 23), lambda loss: 4 * loss),
        run("topk:5", steps(0.6, 0.05, 4), lambda loss: 2 * loss**2),
    )
    found = at_equal_loss(base, own, "gradient_norm")
    assert (found["high"], found["low"]) == (pytest.approx(0.6), pytest.approx(0.1))
    assert found["losses"] == pytest.approx([0.1 * 6 ** (i / 4) for i in (4, 3, 2, 1, 0)])
    assert found["base"] == pytest.approx([4 * loss for loss in found["losses"]])
    assert found["own"] == pytest.approx([2 * loss**2 for loss in found["losses"]])
    assert found["ratio"] == pytest.approx(math.sqrt(0.6 * 0.1) / 2)  # geometric mean of evenly spaced logs


def test_a_loss_counts_when_it_is_first_reached():
    """The way back up, and the second way down, are not looked at."""
    base = run("full", [0.8, 0.4, 0.2], lambda loss: loss)
    own = run("topk:5", [0.8, 0.4, 0.6, 0.5, 0.2], lambda loss: 100.0 if loss in (0.6, 0.5) else 3 * loss)
    assert at_equal_loss(base, own, "gradient_norm")["ratio"] == pytest.approx(3)


def test_epochs_that_were_not_recorded_are_bridged():
    base = run("full", steps(0.8, 0.1, 9), lambda loss: loss)
    losses = steps(0.8, 0.1, 9)
    own = run("topk:5", losses, lambda loss: 5 * loss if losses.index(loss) % 4 == 0 else None)
    assert at_equal_loss(base, own, "gradient_norm")["ratio"] == pytest.approx(5)


@pytest.mark.parametrize(
    ("own", "reason", "words"),
    [
        (run("topk:5", [0.2, 0.1], lambda loss: loss), "no_common_loss", "no training loss that both went through"),
        (run("topk:5", [0.9, 0.6], lambda loss: None), "not_recorded", "not recorded"),
        (run("topk:5", [None, math.nan], lambda loss: 1.0), "not_recorded", "not recorded"),
    ],
)
def test_what_cannot_be_compared_says_why(own, reason, words):
    base = run("full", [0.9, 0.5], lambda loss: loss)
    assert at_equal_loss(base, own, "gradient_norm") == reason
    entry = next(e for e in matched([base, own], "full") if e["quantity"] == "gradient")
    assert (entry["ratio"], entry["verdict"]) == (None, "no pair")
    assert [one.to_json() for one in entry["without_pair"]] == [{"seed": 0, "reason": reason}]
    said = said_of(entry)
    assert said[0][0] == "open"
    assert f"not comparable on 1. Ratio to full's: a n/a ({words})." in said[0][1]


def made(factors):
    """Three seeds a task; the mask's gradients are so many times the baseline's (a factor a seed)."""
    runs = []
    for task, own in factors.items():
        for seed, factor in enumerate(own):
            runs.append(run("full", [0.8, 0.4], lambda loss: loss, seed, task, initial=2.0))
            runs.append(run("topk:5", [0.7, 0.3], lambda loss, f=factor: f * loss, seed, task, initial=1.0))
    return matched(runs, "full")


def of(entries, task, quantity="gradient"):
    return next(e for e in entries if (e["task"], e["quantity"]) == (task, quantity))


def test_pairs_are_joined_to_a_ratio_with_its_interval():
    entry = of(made({"a": [0.5, 0.4, 0.625]}), "a")
    assert entry["ratio"] == pytest.approx((0.5 * 0.4 * 0.625) ** (1 / 3))
    logs = [math.log(value) for value in (0.5, 0.4, 0.625)]
    mean = sum(logs) / 3
    half = 4.302653 * math.sqrt(sum((value - mean) ** 2 for value in logs) / 2 / 3)  # t, two degrees of freedom
    assert (entry["low"], entry["high"]) == (
        pytest.approx(math.exp(mean - half)),
        pytest.approx(math.exp(mean + half)),
    )
    assert (entry["verdict"], entry["smaller"], entry["larger"]) == ("smaller", 3, 0)
    initial = of(made({"a": [0.5, 0.4, 0.625]}), "a", "gradient_initial")
    assert (initial["ratio"], initial["verdict"]) == (pytest.approx(0.5), "smaller")
    two = of(made({"a": [0.5, 0.4]}), "a")
    assert (two["low"], two["verdict"], two["smaller"]) == (None, "open", 2)


@pytest.mark.parametrize(
    ("factors", "answer", "words"),
    [
        ({"a": [0.5, 0.51, 0.49], "b": [0.8, 0.81, 0.8]}, "yes", "Of 2 tasks: smaller on 2."),
        ({"a": [2.0, 2.1, 1.9], "b": [0.5, 2.0, 1.0]}, "no", "Of 2 tasks: larger on 1, open on 1."),
        ({"a": [2.0, 2.1, 1.9], "b": [0.5, 0.51, 0.49]}, "mixed", "Of 2 tasks: smaller on 1, larger on 1."),
        ({"a": [0.5, 0.4]}, "open", "Of 1 task: open on 1."),
    ],
)
def test_the_answer_in_words(factors, answer, words):
    said = said_of(*made(factors))
    assert len(said) == 3
    text = said[1][1]
    assert said[1][0] == answer
    assert text.startswith("At the same training loss, is the gradient of the loss smaller under topk:5? " + words)
    assert "training losses 0.7 to 0.4" in text


def test_a_report_of_an_older_summary_has_no_such_section():
    assert said_of() == []
    assert matched_sentences(Summary.model_construct(analysis=None, baseline="full")) == []
