"""Blocks of the documentation that are made from stored results: between two comments, `<!-- NAME:begin -->` and `<!-- NAME:end -->`."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "recipes" / "results"
PLACES = {
    "paper": "README.md",
    "paper-results": "docs/results.md",
    "costs": "README.md",
    "quickstart": "docs/guides/first-comparison.md",
    "cost": "docs/benchmarks.md",
    "attention": "docs/benchmarks.md",
    "data": "docs/benchmarks.md",
    "settings": "docs/results.md",
    "claims": "docs/results.md",
    "minilm": "docs/results.md",
}
"""The page of each block."""


def block(name: str) -> str:
    """What stands between the comments of `name` now."""
    pattern = f"<!-- {name}:begin -->\n(.*?)\n?<!-- {name}:end -->"
    return re.findall(pattern, page(name).read_text("utf-8"), re.DOTALL)[0]


def page(name: str) -> Path:
    """The file that holds the block."""
    return ROOT / PLACES[name]


def linked(name: str, path: str) -> str:
    """A path of the repository as the page of `name` links to it."""
    return os.path.relpath(path, Path(PLACES[name]).parent)


def with_blocks(blocks: Mapping[str, str]) -> dict[Path, str]:
    """The pages that hold these blocks, with them."""
    pages: dict[Path, str] = {}
    for name, text in blocks.items():
        path = page(name)
        before = pages.get(path) or path.read_text("utf-8")
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
        head, _, rest = before.partition(begin)
        assert end in rest, f"{path} has no place for {name}"
        pages[path] = f"{head}{begin}{text}\n{rest[rest.index(end) :]}"
    return pages
