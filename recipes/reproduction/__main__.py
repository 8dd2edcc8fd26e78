"""Judges tier 1 from the stored comparisons `paper_*`, and writes the page, its numbers, its pictures and the README's table.

python -m recipes.reproduction      # recipes/results/paper_*/ → recipes/results/paper.md, paper.json and paper/*.png
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hf_semfocus.files import atomic_write, write_json
from hf_semfocus.report.files import render_figure

from . import theory
from .archive import RESULTS
from .blocks import with_blocks
from .page import counts, markdown, readme_table
from .pictures import curves, reached
from .records import StoredRun, read_stored
from .tier1 import Tier, judge


def write_page(stored: Mapping[str, Sequence[StoredRun]], results: Path) -> Tier:
    """Writes `paper.json`, `paper.md` and the pictures in `paper/` below `results`, and returns what they tell."""
    tier = judge(stored)
    figures = {"curves": curves(stored), "reached": reached(tier)}
    names = [name for name, figure in figures.items() if figure is not None]
    for name, figure in figures.items():
        path = results / "paper" / f"{name}.png"
        if figure is not None:
            atomic_write(path, render_figure(figure, "png"))
        else:
            path.unlink(missing_ok=True)
    write_json(results / "paper.json", tier.to_dict())
    atomic_write(results / "paper.md", markdown(tier, names, theory.section(theory.read(results))))
    return tier


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m recipes.reproduction",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="where results are stored (default: recipes/results)"
    )
    options = parser.parse_args(arguments)
    try:
        if not options.results.is_dir():
            raise ValueError(f"{options.results} is no folder")
        tier = write_page(read_stored(options.results), options.results)
        if options.results == RESULTS:
            for path, text in with_blocks({"paper": readme_table(tier)}).items():
                atomic_write(path, text)
    except (ValueError, OSError) as error:
        print(f"reproduction: {error}", file=sys.stderr)
        return 2
    counted = ", ".join(f"{number} {name}" for name, number in counts(tier).items())
    print(f"{len(tier.claims)} claims: {counted}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
