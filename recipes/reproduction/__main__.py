"""Judges the tiers from the stored comparisons `paper_*`, and writes the page, its numbers, its pictures and the README's table.

python -m recipes.reproduction      # recipes/results/paper_*/ → recipes/results/paper.md, paper.json and paper/*.png

What the stored sweep of tier 3 says also goes where `semfocus advise` reads it.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from hf_semfocus.cli.advise import STORED
from hf_semfocus.files import atomic_write, write_json
from hf_semfocus.report.files import render_figure

from ..focus_law import FocusRun
from . import further, law, pictures, plateaus, theory
from .blocks import RESULTS, with_blocks
from .page import counts, markdown, readme_table, results_line
from .records import BASELINE, StoredRun, read_stored
from .tier1 import Tier, judge


@dataclass(frozen=True)
class Evidence:
    """All that is stored: runs of tier 1 by task, the further tiers, runs of the law's sweep and those that don't count, the theory.
    What is not stored is empty."""

    runs: Mapping[str, Sequence[StoredRun]]
    further: Mapping[str, Sequence[further.Compared]]
    swept: Sequence[FocusRun]
    not_counted: Sequence[Mapping[str, Any]]
    theory: Sequence[Mapping[str, Any]]

    @cached_property
    def tier(self) -> Tier:
        """Tier 1, judged."""
        return judge(self.runs)

    @cached_property
    def plateaus(self) -> list[plateaus.Split]:
        """Where the epochs of tier 1 went."""
        return plateaus.splits(self.tier.tasks, self.runs)

    @cached_property
    def law(self) -> dict[str, Any] | None:
        """The sweep, judged."""
        return law.judge(self.swept, self.not_counted) if any(run.label == BASELINE for run in self.swept) else None

    def to_dict(self) -> dict[str, Any]:
        """The content of `paper.json`; the theory has files of its own."""
        tiers = {name: [asdict(one) for one in compared] for name, compared in self.further.items()}
        splits = [asdict(one) for one in self.plateaus]
        return {**self.tier.to_dict(), "plateaus": splits, "further": tiers, "law": self.law}

    def figures(self) -> dict[str, Figure | None]:
        """By name; None where there is nothing to draw."""
        return {
            "curves": pictures.curves(self.runs),
            "reached": pictures.reached(self.tier),
            "law": pictures.law(self.swept),
        }

    def markdown(self, drawn: Sequence[str]) -> str:
        """`paper.md`, with the pictures of these names."""
        more = [*plateaus.section(self.plateaus), *further.section(self.further)]
        more += law.section(self.law, "law" in drawn) if self.law else []
        absent = [title for name, title in further.TIERS.items() if name not in self.further]
        absent += [] if self.law else [law.TITLE]
        return markdown(self.tier, drawn, [*more, *theory.section(self.theory)], absent)

    def blocks(self) -> dict[str, str]:
        """What stands in the documentation."""
        lines = [results_line(self.tier), plateaus.results_line(self.plateaus), further.results_line(self.further)]
        parts = ["\n".join(line for line in lines if line)]
        if self.law:
            parts += ["\n".join(part) for part in (law.results_table(self.law), law.results_lines(self.law))]
        readme = [readme_table(self.tier), law.readme_text(self.law) if self.law else ""]
        return {
            "paper": "\n\n".join(part for part in readme if part),
            "paper-results": "\n\n".join(part for part in parts if part),
        }


def read_evidence(results: Path) -> Evidence:
    """What is stored below `results`.

    Raises:
        ValueError: a stored comparison cannot be read, or is not of the recipe that its name promises.
    """
    return Evidence(read_stored(results), further.read(results), *law.read(results), theory.read(results))


def write_page(evidence: Evidence, results: Path) -> None:
    """Writes `paper.json`, `paper.md` and the pictures in `paper/` below `results`."""
    figures = evidence.figures()
    for name, figure in figures.items():
        path = results / "paper" / f"{name}.png"
        if figure is not None:
            atomic_write(path, render_figure(figure, "png"))
        else:
            path.unlink(missing_ok=True)
    write_json(results / "paper.json", evidence.to_dict())
    atomic_write(
        results / "paper.md", evidence.markdown([name for name, figure in figures.items() if figure is not None])
    )


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
        evidence = read_evidence(options.results)
        write_page(evidence, options.results)
        if options.results.resolve() == RESULTS:
            for path, text in with_blocks(evidence.blocks()).items():
                atomic_write(path, text)
            if evidence.law:
                write_json(STORED, evidence.law["summary"])
    except (ValueError, OSError) as error:
        print(f"reproduction: {error}", file=sys.stderr)
        return 2
    counted = ", ".join(f"{number} {name}" for name, number in counts(evidence.tier).items())
    print(f"{len(evidence.tier.claims)} claims of tier 1: {counted}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
