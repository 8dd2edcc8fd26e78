"""`summary.csv`, a row a run, and `speedups.csv`, a row a mask and task: the tables of a summary for other programs."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..files import atomic_write
from ..summary_schema import PairEntry, Summary
from ..text import epochs_text
from .words import pair_text, paired_seconds, speed_up_words

RUN_COLUMNS = (
    "task", "mask", "seed", "status", "epochs_trained", "budget", "epochs_to_tau", "epochs_to_heldout_tau",
    "seconds_to_tau", "seconds_to_heldout_tau", "train_seconds", "seconds", "final_train_accuracy",
    "final_heldout_accuracy", "best_heldout_accuracy", "chance", "majority_accuracy", "parameters", "error", "path",
)  # fmt: skip
SPEEDUP_COLUMNS = (
    "task", "mask", "quantity", "text", "n_pairs", "estimate", "estimate_kind", "low", "high", "interval_kind",
    "faster", "slower", "equal", "undetermined", "restricted_mean_ratio", "restricted_at",
    "median_seconds_baseline", "median_seconds_mask", "pairs",
)  # fmt: skip


def write_spreadsheets(summary: Summary, folder: Path) -> None:
    """Writes both files into `folder`."""
    speedups = []
    for entry in summary.speedups:
        baseline, mask = paired_seconds(summary, entry)
        words = {"text": str(speed_up_words(entry)), "pairs": "; ".join(map(_pair, entry.pairs))}
        words |= {"median_seconds_baseline": baseline, "median_seconds_mask": mask}
        speedups.append({**dict(entry), **words})
    atomic_write(folder / "summary.csv", _csv(RUN_COLUMNS, map(dict, summary.runs)))
    atomic_write(folder / "speedups.csv", _csv(SPEEDUP_COLUMNS, speedups))


def _pair(pair: PairEntry) -> str:
    return f"seed {pair.seed}: {epochs_text(pair.baseline)} / {epochs_text(pair.mask)} = {pair_text(pair)}"


def _csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
