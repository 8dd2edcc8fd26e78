"""Blocks of the documentation that are made from stored results: between two comments, `<!-- NAME:begin -->` and `<!-- NAME:end -->`."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACES = {
    "paper": "README.md",
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
    return re.search(f"<!-- {name}:begin -->\n(.*?)\n?<!-- {name}:end -->", page(name).read_text("utf-8"), re.DOTALL)[
        1
    ]


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
        pattern = re.compile(f"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
        assert pattern.search(before), f"{path} has no place for {name}"
        pages[path] = pattern.sub(lambda found, text=text: f"{found[1]}{text}\n{found[2]}", before)
    return pages
