"""The code of README and guides runs as it is printed, links lead somewhere, and the reference names every public name."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import hf_semfocus
from hf_semfocus import analysis, attention, data

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GUIDES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted((DOCS / "guides").glob("*.md"))]
TEXT = "\n".join(guide.read_text(encoding="utf-8") for guide in GUIDES)
REFERENCE = "\n".join(page.read_text(encoding="utf-8") for page in DOCS.glob("reference/*.md"))
CHECKPOINT = "runs/quickstart/runs/even_pairs/topk-5/seed-0"


@pytest.mark.slow
@pytest.mark.parametrize(
    "guide", [g for g in GUIDES if "```python" in g.read_text("utf-8")], ids=lambda guide: guide.stem
)
def test_every_python_block_runs(guide, tmp_path):
    """In order, in one process and one folder of its own; a push runs in tests/hub, where there is a Hub."""
    text = guide.read_text(encoding="utf-8")
    if CHECKPOINT in text:
        train = ["train", "even_pairs", "--mask", "topk:5", "--length", "20", "--layers", "3", "--epochs", "1"]
        command = [sys.executable, "-m", "hf_semfocus", *train, "--output", CHECKPOINT]
        subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    blocks = [b for b in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "push_to_hub" not in b]
    (tmp_path / "guide.py").write_text("\n".join(blocks), encoding="utf-8")
    done = subprocess.run([sys.executable, "guide.py"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
def test_the_masks_of_the_guide_go_into_a_checkpoint(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "guides" / "mask.md").read_text(encoding="utf-8"), re.DOTALL)
    classes = [block for block in blocks if "@register_mask_strategy" in block]
    (tmp_path / "my_masks.py").write_text("\n".join(classes), encoding="utf-8")
    small = [
        "--length",
        "20",
        "--layers",
        "1",
        "--epochs",
        "1",
        "--train-size",
        "50",
        "--mask",
        "backward:2+above_mean",
    ]
    command = [sys.executable, "-m", "hf_semfocus", "train", "even_pairs", *small, "--import", "my_masks.py"]
    done = subprocess.run([*command, "--output", "out"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert list(tmp_path.glob("out/**/custom_my_masks.py"))


def test_every_command_line_parses():
    """`semfocus …` lines go through the parser; the files and targets that are named exist."""
    from hf_semfocus.cli.main import parser

    lines = re.findall(r"^semfocus (.*?)(?:\s+#.*)?$", TEXT, re.MULTILINE)
    assert lines
    for line in lines:
        parser().parse_args(line.split())
    for path in re.findall(r"(?<!tests/)recipes/[\w/.]+\.(?:yaml|py)", TEXT):
        assert (ROOT / path).is_file(), path
    for target in re.findall(r"^make ([\w-]+)", TEXT, re.MULTILINE):
        assert f"\n{target}:" in (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [*GUIDES, *DOCS.glob("reference/*.md")], ids=lambda page: page.stem)
def test_links_and_pictures_are_there(page):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert target.startswith("https://") or (page.parent / target).exists(), target


@pytest.mark.parametrize("module", [hf_semfocus, attention, data, analysis], ids=lambda module: module.__name__)
def test_the_reference_has_every_public_name(module):
    missing = [name for name in module.__all__ if not re.search(rf"\.{name}\b", REFERENCE)]
    assert not missing


def test_every_page_is_in_the_table_of_contents():
    index = (DOCS / "index.md").read_text(encoding="utf-8").splitlines()
    pages = {page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md")} - {"index"}
    assert pages <= set(index)
