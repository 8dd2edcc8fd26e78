"""report.html: complete, self-contained, escaped; read with a parser (test_browser.py has a browser)."""

import json
import re
import shutil
from html.parser import HTMLParser

import pytest

from hf_semfocus.report.entries import short
from hf_semfocus.report.html import outcome, render, write_report
from hf_semfocus.report.palette import LIGHT
from hf_semfocus.summary_schema import RunEntry, SpeedUpEntry
from tests.report.synthetic import REACH, update, write_run_directory

VOID = {"meta", "br", "img", "source", "link", "hr", "input"}


class Page(HTMLParser):
    """Elements with their attributes, the text, and what is left open."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.words, self.open = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def report(run_directories, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "everything"
    shutil.copytree(run_directories["everything"], folder)
    path = write_report(folder)
    return path, Page(path.read_text(encoding="utf-8"))


def test_the_page_is_well_formed_and_loads_nothing(report):
    path, page = report
    assert page.open == []
    assert path.name == "report.html"
    for tag, attributes in page.elements:
        assert tag not in ("link", "iframe", "img")
        assert tag != "script" or "src" not in attributes
        for name in ("src", "href", "srcset"):
            assert re.match(r"data:|#", attributes.get(name, "#")), (tag, attributes)
    text = path.read_text(encoding="utf-8")
    assert set(re.findall(r"url\((.)", text)) == {"#"}
    assert "http" not in text
    names = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(names) == len(set(names))
    assert set(re.findall(r"(?:url\(|href=\")#([^)\"]+)", text)) <= set(names)


def test_every_section_is_there(report):
    _, page = report
    for words in (
        "Reduced size: a test.",
        "What even_pairs asks: whether the first and the last bit differ",
        "On 2 tasks, with 3 seeds, beside full attention.",
        "Faster: topk:5 on even_pairs (3.1×).",
        "3.1× [1.9, 5.2]",
        "No benefit here may mean that it cannot see",
        "seed 0: 27 / 8 = 3.4×",
        "seed 2: no pair (mask failed)",
        "Censored, diverged, failed and unfinished runs",
        "diverged in epoch 3",
        "failed: RuntimeError: a <b>worker</b> died",
        "not started, or no epoch yet",
        "shared by all masks",
        "learning_rate",
        "How to read this",
        "semfocus compare --preset quickstart",
        "2.13.0",
        "a processor",
        "This comparison is not complete: 2 runs of 24",
        "majority class",
    ):
        assert words in page.text, words
    assert all(mask in page.text for mask in ("full", "banded:5", "block:5", "topk:5"))


def test_pictures_are_inside_with_words_and_follow_the_page_s_colours(report):
    path, page = report
    words = [
        attributes["aria-label"] for tag, attributes in page.elements if tag == "svg" and "aria-label" in attributes
    ]
    assert len(words) == 5  # two panels a task, and dispersion against speed-up
    assert all(len(told) > 40 for told in words)
    drawn = path.read_text(encoding="utf-8").partition("</style>")[2]
    assert not set(re.findall(r"#[0-9a-f]{6}", drawn)) & {
        LIGHT.ink,
        LIGHT.faint,
        LIGHT.grid,
        LIGHT.paper,
        LIGHT.baseline,
    }
    assert {
        attributes["data-mask"] for tag, attributes in page.elements if tag == "g" and "data-mask" in attributes
    } == set(REACH)
    assert sorted(file.name for file in (path.parent / "figures").iterdir()) == [
        "curves.png",
        "dispersion.png",
        "speedups.png",
    ]
    assert (path.parent / "figures/curves.png").read_bytes().startswith(b"\x89PNG")


def test_many_comparisons_are_one_sentence(summary_of):
    summary = summary_of("everything")
    summary.tasks.append(summary.tasks[0].model_copy(update={"name": "again"}))
    for part in ("runs", "aggregates", "speedups", "reach"):
        summary[part].extend(
            entry.model_copy(update={"task": "again"}) for entry in list(summary[part]) if entry.task == "even_pairs"
        )
    assert (
        "Of 9 comparisons with full attention (3 masks, 3 tasks, 3 seeds): 2 faster, 2 slower, 5 undecided. "
        "Most: topk:5 on even_pairs, 3.1× [1.9, 5.2]." in render(summary)
    )


@pytest.mark.parametrize(
    ("known", "told"),
    [
        ({"estimate": 3.04}, "3.0×"),
        ({"estimate": 12.4}, "12×"),
        ({"low": 2.19}, "≥2.1×"),
        ({"high": 0.521}, "≤0.53×"),
        ({"low": 1.39, "high": 2.01}, "1.3–2.1×"),
        ({}, "?"),
        ({"n_pairs": 0}, "–"),
    ],
)
def test_a_speed_up_in_a_few_characters(known, told):
    assert (
        short(SpeedUpEntry.model_construct(**{"estimate": None, "low": None, "high": None, "n_pairs": 3, **known}))
        == told
    )


def test_everything_from_the_files_is_escaped(summary_of):
    evil = '<script>alert("x")</script>'
    summary = summary_of("quickstart")
    update(summary, name=evil, note=evil, command=evil, versions={evil: evil}, machine={evil: evil})
    update(summary.runs[0], status="failed", error=evil)
    summary.tasks[0].hyperparameters["training"][evil] = evil
    summary.tasks[0].label_histogram = {evil: 3}
    text = render(summary)
    assert "<script>alert" not in text
    assert text.count("&lt;script&gt;") >= 8


def test_the_same_summary_gives_the_same_page(summary_of):
    summary = summary_of("quickstart")
    assert render(summary) == render(summary)


def test_a_comparison_that_has_just_begun(tmp_path):
    from hf_semfocus.comparison.summary import write_summary

    folder = write_run_directory(
        tmp_path / "run", {"even_pairs": {"full": ["missing"], "topk:5": ["missing"]}}, note=""
    )
    write_summary(folder)
    (folder / "figures").mkdir()
    (folder / "figures/curves.png").write_bytes(b"of an earlier state")
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    assert "there is nothing to draw" in page.text
    assert "No pair with full to compare" in page.text
    assert not list((folder / "figures").iterdir())


def test_one_mask_and_all_reached(tmp_path):
    from hf_semfocus.comparison.summary import write_summary

    folder = write_run_directory(tmp_path / "run", {"even_pairs": {"full": [9, 12]}})
    write_summary(folder)
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    assert "there is nothing to compare" in page.text
    assert "None: every run reached 95 % training accuracy." in page.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is missing"),
        ("{", "is damaged"),
        (json.dumps({"format": 9}), "format 9; this one reads"),
        ("[]", "is damaged"),
    ],
)
def test_a_summary_that_cannot_be_read_is_named(tmp_path, content, message):
    if content is not None:
        (tmp_path / "summary.json").write_text(content)
    with pytest.raises(ValueError, match=message) as caught:
        write_report(tmp_path)
    said = str(caught.value)
    assert ("semfocus report" in said) != ("newer hf-semfocus" in said)
    assert not (tmp_path / "report.html").exists()


def test_outcomes_in_words():
    ended = {"status": "reached", "diverged": True, "epochs_trained": 9, "epochs_to_tau": 5, "error": None}
    run = RunEntry.model_construct(**ended)
    assert outcome(run) == "diverged in epoch 9 after it had reached τ in epoch 5"
    run.diverged = False
    assert outcome(run) == "reached τ"
    run.status = "censored"
    assert outcome(run) == "censored: budget used up"


def test_the_page_explains_censoring_with_the_budget_that_was_used(summary_of):
    summary = summary_of("everything")
    assert {run.budget for run in summary.runs} - {None} == {40}
    for run in summary.runs:
        run.budget = run.budget and 30
    for entry in summary.speedups:
        entry.restricted_at = entry.restricted_at and 30
    text = Page(render(summary)).text
    assert "It is shown as “>30”: never dropped, never counted as 30." in text
    assert "the smallest budget of the runs (“at 30”)" in text
    summary.runs[0].budget = 25
    summary.speedups[0].restricted_at = 25
    text = Page(render(summary)).text
    assert "It is shown as “>” and the epochs it had: never dropped, never counted as those." in text
    assert "the smallest budget of the runs. A run" in text


def test_one_pair_decides_nothing(tmp_path):
    from hf_semfocus.comparison.summary import summarise

    one = {"even_pairs": {"full": [20], "topk:5": [10], "banded:5": [None]}}
    text = Page(render(summarise(write_run_directory(tmp_path / "one", one)))).text
    assert "Faster in one pair: topk:5 (2.0×). Slower in one pair: banded:5. One pair decides nothing." in text
    many = {"even_pairs": {"full": [12], **{f"topk:{k}": [6 if k == 3 else 12] for k in range(1, 8)}}}
    text = Page(render(summarise(write_run_directory(tmp_path / "many", many)))).text
    assert "1 faster, 6 undecided. One pair decides nothing." in text


def test_a_task_of_ones_own_needs_no_words(summary_of):
    summary = summary_of("quickstart")
    for part in ("tasks", "runs", "aggregates", "speedups", "reach"):
        for entry in summary[part]:
            update(entry, **{"name" if part == "tasks" else "task": "mine"})
    assert "What mine asks" not in render(summary)
