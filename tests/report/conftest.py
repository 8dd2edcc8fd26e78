"""Summaries of synthetic run directories, made once."""

import pytest

from hf_semfocus.comparison.summary import write_summary
from hf_semfocus.files import read_record
from hf_semfocus.summary_schema import Summary
from tests.report.synthetic import EVERYTHING, QUICKSTART, write_run_directory


@pytest.fixture(scope="session")
def run_directories(tmp_path_factory):
    """Run directories with a summary: "quickstart" (2 seeds, all as planned) and "everything" (every outcome)."""
    folder = tmp_path_factory.mktemp("runs")
    found = {}
    for name, outcomes in (("quickstart", QUICKSTART), ("everything", EVERYTHING)):
        found[name] = write_run_directory(folder / name, outcomes)
        write_summary(found[name])
    return found


@pytest.fixture
def summary_of(run_directories):
    """A fresh copy of a summary, which a test may change."""
    return lambda name: read_record(run_directories[name] / "summary.json", Summary, "")
