"""The guides' code runs as it is printed, and the reference names every public name."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import hf_semfocus
from hf_semfocus import analysis, attention, data

DOCS = Path(__file__).parents[1] / "docs"
GUIDES = sorted((DOCS / "guides").glob("*.md"))
PAGES = "\n".join(page.read_text(encoding="utf-8") for page in DOCS.glob("reference/*.md"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "guide", [g for g in GUIDES if "```python" in g.read_text("utf-8")], ids=lambda guide: guide.stem
)
def test_every_python_block_of_a_guide_runs(guide, tmp_path):
    """In order, in one process and one folder of its own."""
    blocks = re.findall(r"```python\n(.*?)```", guide.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    (tmp_path / "guide.py").write_text("\n".join(blocks), encoding="utf-8")
    done = subprocess.run([sys.executable, "guide.py"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]


def test_every_command_line_of_a_guide_parses():
    from hf_semfocus.cli.main import parser

    text = "\n".join(guide.read_text(encoding="utf-8") for guide in GUIDES)
    lines = re.findall(r"^semfocus (.*?)(?:\s+#.*)?$", text, re.MULTILINE)
    assert lines
    for line in lines:
        parser().parse_args(line.split())


@pytest.mark.parametrize("module", [hf_semfocus, attention, data, analysis], ids=lambda module: module.__name__)
def test_the_reference_has_every_public_name(module):
    missing = [name for name in module.__all__ if not re.search(rf"\.{name}\b", PAGES)]
    assert not missing


def test_every_page_is_in_the_table_of_contents():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    for page in [*GUIDES, *(DOCS / "reference").glob("*.md")]:
        assert f"{page.parent.name}/{page.stem}" in index
