"""report.html: complete, self-contained, escaped; read with a parser, not with a browser."""

import base64
import json
import re
import shutil
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from hf_semfocus.report.html import outcome, render, write_report
from hf_semfocus.summary_schema import RunEntry
from tests.report.synthetic import update, write_run_directory

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
        if self.open and self.open[-1] != "style":
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
        assert tag not in ("script", "link", "iframe")
        for name in ("src", "href", "srcset"):
            assert re.match(r"data:|#", attributes.get(name, "#")), (tag, attributes)
    assert "url(" not in path.read_text(encoding="utf-8")
    assert "http" not in re.sub(r"base64,[A-Za-z0-9+/=]+", "", path.read_text(encoding="utf-8"))


def test_every_section_is_there(report):
    _, page = report
    for words in (
        "Reduced size: a test.",
        "Main result",
        "Against full, over 2 tasks and 3 seeds",
        "3.1× [1.9, 5.2]",
        "cannot see the whole input",
        "No benefit here may mean that it cannot see",
        "Speed-ups, pair by pair",
        "seed 0: 27 / 8 = 3.4×",
        "seed 2: no pair (mask failed)",
        "Accuracy at a common epoch",
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


def test_pictures_are_inside_with_a_dark_twin_and_words(report):
    path, page = report
    images = [attributes for tag, attributes in page.elements if tag == "img"]
    twins = [attributes for tag, attributes in page.elements if tag == "source"]
    assert len(images) == len(twins) == 3
    for image, twin in zip(images, twins, strict=True):
        for uri in (image["src"], twin["srcset"]):
            kind, data = uri.split(",")
            assert kind == "data:image/svg+xml;base64"
            assert ElementTree.fromstring(base64.b64decode(data)).tag.endswith("svg")
        assert image["src"] != twin["srcset"]
        assert "dark" in twin["media"]
        assert len(image["alt"]) > 40
    assert sorted(file.name for file in (path.parent / "figures").iterdir()) == [
        "curves.png",
        "dispersion.png",
        "speedups.png",
    ]
    assert (path.parent / "figures/curves.png").read_bytes().startswith(b"\x89PNG")


def test_everything_from_the_files_is_escaped(summary_of):
    evil = '<script>alert("x")</script>'
    summary = summary_of("quickstart")
    update(summary, name=evil, note=evil, command=evil, versions={evil: evil}, machine={evil: evil})
    update(summary.runs[0], status="failed", error=evil)
    summary.tasks[0].hyperparameters["training"][evil] = evil
    summary.tasks[0].label_histogram = {evil: 3}
    text = render(summary)
    assert "<script" not in text
    assert text.count("&lt;script&gt;") >= 10


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
    [(None, "is missing"), ("{", "is damaged"), (json.dumps({"format": 9}), "format is '9'"), ("[]", "is damaged")],
)
def test_a_summary_that_cannot_be_read_is_named(tmp_path, content, message):
    if content is not None:
        (tmp_path / "summary.json").write_text(content)
    with pytest.raises(ValueError, match=message) as caught:
        write_report(tmp_path)
    assert "semfocus report" in str(caught.value)
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
