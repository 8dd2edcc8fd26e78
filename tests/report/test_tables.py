"""The same rows on the terminal and in Markdown."""

import io

import pytest
from rich.console import Console

from hf_semfocus.comparison.summary import summarise
from hf_semfocus.report.tables import markdown_table, table_rows, terminal_table
from hf_semfocus.report.words import Words
from hf_semfocus.text import accuracy, length_text, percent, seconds
from tests.report.synthetic import write_run_directory


def printed(summary, width):
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(terminal_table(summary))
    return console.file.getvalue()


def test_rows_by_hand(summary_of):
    rows = {(row.task, row.mask): row for row in table_rows(summary_of("everything"))}
    topk = rows["even_pairs", "topk:5"]
    assert (topk.epochs, str(topk.speed_up)) == ("8, 6, 9", "3.1× [1.9, 5.2]")
    assert (topk.heldout_epochs, str(topk.heldout_speed_up)) == ("10, 8, 11", "2.7× [1.6, 4.6]")
    assert (topk.heldout_end, topk.heldout_best, topk.chance, topk.majority) == ("0.960", "0.960", "0.500", "0.511")
    assert (topk.seconds_per_epoch, topk.seconds_to_tau, topk.reach, topk.sees_all) == ("1.25", "10", "all", True)
    assert rows["even_pairs", "full"].speed_up == Words("baseline")
    assert rows["even_pairs", "block:5"].troubles == "1 diverged of 3 runs"
    banded = rows["missing_duplicate_string", "banded:5"]
    assert (banded.epochs, banded.troubles, banded.sees_all) == (">40, >40, failed", "1 failed of 3 runs", False)


def test_many_seeds_are_shown_by_their_median(tmp_path):
    folder = write_run_directory(tmp_path / "run", {"even_pairs": {"full": [9, 12, 14, 8, 30, 31]}})
    assert table_rows(summarise(folder))[0].epochs == "median 13"


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_terminal_shows_every_mask_and_what_to_beware_of(summary_of, width):
    text = printed(summary_of("everything"), width)
    for word in (
        "Reduced size: a test.",
        "even_pairs",
        "length 20",
        "chance 0.500",
        "majority 0.511",
        "topk:5",
        "27, 15",
    ):
        assert word in text
    flat = " ".join(text.split())
    assert "block:5: 1 diverged of 3 runs" in flat
    assert "cannot see the whole input: banded:5 (±6 of 20 positions), block:5 (own block of 5)" in flat
    assert max(map(len, text.splitlines())) <= width
    assert "3.1× [1.9, 5.2]" in text  # not broken over two lines
    assert "…" not in text


def test_long_masks_and_many_epochs_fit_into_eighty_columns(tmp_path):
    mask = "topk:5+random:5;seed=17+global:2"
    outcomes = {"even_pairs": {"full": [20, 15, 30, 22, 24], mask: [None] * 5, "topk:5": [8, 6, 9, 8, 7]}}
    summary = summarise(write_run_directory(tmp_path / "run", outcomes, budget=150))
    for entry in summary.aggregates:
        entry.seconds_per_epoch = 1234.5
    for run in summary.runs:
        run.train_seconds = 12345.6
    lines = printed(summary, 80).splitlines()
    assert max(map(len, lines)) <= 80
    (row,) = [line.split() for line in lines if line.startswith("topk:5+random:5")]
    # What may be long goes on below; numbers stand whole in the first line.
    assert (row[0], row[-2:]) == ("topk:5+random:5", ["1234", ">12345"])
    flat = " ".join(" ".join(lines).split())
    for piece in (";seed=17+global:2", "slower of 5)", "2.9× [2.4, 3.5]"):
        assert piece in flat
    assert flat.count(">150") == 5


def test_the_terminal_needs_no_markup_escapes(summary_of):
    summary = summary_of("quickstart")
    summary.note = "[bold]not markup[/bold] [/red]"
    assert "[bold]not markup[/bold] [/red]" in printed(summary, 100)


def test_markdown_is_a_pipe_table_with_the_same_numbers(summary_of):
    summary = summary_of("everything")
    lines = markdown_table(summary).splitlines()
    assert len(lines) == 2 + len(summary.aggregates)
    assert len({line.count("|") for line in lines}) == 1
    assert lines[0].startswith("| task | mask | reach | epochs to 95 % training | speed-up |")
    assert "`topk:5` | all | 8, 6, 9 | 3.1× [1.9, 5.2] |" in "\n".join(lines)
    summary.aggregates[0].mask = "1|2"
    assert r"`1\|2`" in markdown_table(summary)


def test_numbers_in_words():
    assert [accuracy(value) for value in (None, 1.0, 0.9996, 0.95, 0.0)] == ["–", "1.000", "0.999", "0.950", "0.000"]
    assert [seconds(value) for value in (None, 1.2345, 12.345, 1234.5)] == ["–", "1.23", "12.3", "1234"]
    assert [percent(value) for value in (0.95, 0.999, None)] == ["95 %", "99.9 %", "τ"]
    assert [length_text(value) for value in (40, [500, 600], None)] == ["40", "500–600", "–"]
