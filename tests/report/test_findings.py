"""Sentences say what the numbers carry, and no more."""

import pytest

from hf_semfocus.comparison.summary import summarise
from hf_semfocus.report.findings import blind_warning, findings, headline
from hf_semfocus.summary_schema import ReachEntry
from tests.report.synthetic import write_run_directory


def of(summary):
    return {(finding.task, finding.mask): finding for finding in findings(summary)}


def made(tmp_path, full, other, mask="topk:5", **kwargs):
    summary = summarise(write_run_directory(tmp_path / "run", {"even_pairs": {"full": full, mask: other}}, **kwargs))
    return of(summary)["even_pairs", mask]


def test_the_synthetic_comparison_in_words(summary_of):
    found = of(summary_of("everything"))
    topk = found["even_pairs", "topk:5"]
    assert topk.verdict == "faster"
    assert topk.text == (
        "Reached 95 % training accuracy sooner than full: 3.1× [1.9, 5.2] over 3 pairs "
        "(epochs 8, 6, 9 against 27, 15, 33). "
        "Held-out accuracy at the end 0.960 (full 0.960; chance 0.500, majority class 0.511)."
    )
    banded = found["even_pairs", "banded:5"]
    assert banded.verdict == "slower in all pairs"
    assert banded.text.startswith("Did not reach 95 % training accuracy in any run (epochs >40, >40, >40 against")
    assert "full did in all 3 pairs: median < 0.68×" in banded.text
    assert banded.warning.endswith("No benefit here may mean that it cannot see, not that focus does not help.")
    assert found["missing_duplicate_string", "topk:5"].verdict == "open"
    assert "2 faster, 1 slower of 3 pairs; median > 1.3×" in found["missing_duplicate_string", "topk:5"].text
    assert "undetermined in both pairs" in found["missing_duplicate_string", "banded:5"].text


@pytest.mark.parametrize(
    ("full", "other", "verdict", "words"),
    [
        ([10, 20, 30], [20, 15, 31], "open", "No clear difference in epochs"),  # the interval spans 1
        ([10, 11, 12], [20, 22, 23], "slower", "later than full"),
        (
            [38, 22, 15],
            [9, 10, 12],
            "faster in all pairs",
            "in all 3 pairs, but the interval does not exclude 1: 2.3× [0.50, 10]",
        ),
        ([20, 30], [10, 12], "faster in all pairs", "in both pairs: 2.2×"),
        ([20, 30], [10, 12], "faster in all pairs", "Too few pairs for an interval"),
        ([20, 10], [10, 20], "open", "1 faster, 1 slower of 2 pairs; 1.0×"),
        ([10], [10], "open", "1 equal of 1"),
        ([None], [12], "faster in one pair", "in the one pair: > 3.3×"),
        ([12], [20], "slower in one pair", "One pair decides nothing"),
        ([None], [None], "open", "The speed-up is undetermined in the one pair"),
        (["failed"], [12], "no pair", "No pair with full to compare (seed 0: baseline failed)"),
        ([12], ["missing"], "no pair", "seed 0: mask unfinished"),
        (
            [12],
            ["diverged:3"],
            "open",
            "Did not reach 95 % training accuracy in any run (epochs >3 (diverged) against 12)",
        ),
    ],
)
def test_verdicts(tmp_path, full, other, verdict, words):
    found = made(tmp_path, full, other)
    assert found.verdict == verdict
    assert words in found.text


def test_the_headline_counts_tasks_and_names_masks_that_cannot_see(summary_of):
    assert headline(summary_of("everything")) == (
        "Against full, over 2 tasks and 3 seeds: banded:5 slower in all pairs on 1, open on 1 (cannot see the whole input on 2); "
        "block:5 open on 2 (cannot see the whole input on 2); topk:5 faster on 1, open on 1."
    )
    assert "topk:5 faster in all pairs; banded:5 slower in all pairs (cannot see the whole input)" in headline(
        summary_of("quickstart")
    )
    summary = summary_of("quickstart")
    summary.speedups = []
    assert headline(summary) == "Only full was run: there is nothing to compare."


def test_only_a_mask_that_cannot_see_is_warned_of():
    assert blind_warning(None) == ""

    def warning(kind, sees_all=False, **numbers):
        return blind_warning(
            ReachEntry(task="even_pairs", mask="m", kind=kind, sees_all=sees_all, length=20, **numbers)
        )

    assert warning("all", sees_all=True) == ""
    assert "never leaves its own block of 5" in warning("block", most=5)
    assert "at most ±6 of 20" in warning("window", left=6, right=6)
    assert "a position sees 1 to 2 of 20" in warning("some", fewest=1, most=2)
