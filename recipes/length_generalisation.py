"""Length generalisation: train at one length, test at longer ones; accuracy against length for each mask.

python recipes/length_generalisation.py even_pairs --output runs/lengths            # about an hour on one core
python recipes/length_generalisation.py even_pairs --output runs/lengths-quick --quick   # a minute: shows the machinery

`--positions` are sinusoidal or none: learned ones are untrained beyond the training length. Runs are those of
`semfocus train`: started again, the recipe goes on where it stopped. Writes lengths.json, lengths.csv, lengths.md and lengths.png.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from statistics import mean
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console
from study import majority_accuracy, model_class, size_in_words, study, to_device

from hf_semfocus.cli.progress import EpochBar
from hf_semfocus.data import build_tokenizer, load_task
from hf_semfocus.experiments.spec import RunSpec, TrainingOptions, mask_slug
from hf_semfocus.report.axes import legend_style, mask_key, prepare, title_style
from hf_semfocus.report.palette import LIGHT, mask_styles
from hf_semfocus.training.accuracy import measure_accuracy
from hf_semfocus.training.rows import TensorRows
from hf_semfocus.training.run import train_run

DEFAULTS: dict[str, Any] = {
    "length": 20, "lengths": [25, 30, 40, 60], "masks": ["full", "topk:5", "banded:5", "block:5"], "seeds": [0, 1, 2],
    "positions": "sinusoidal", "layers": 3, "epochs": 30, "learning-rate": 0.3, "train-size": 5000, "test-size": 2000,
}  # fmt: skip
QUICK: dict[str, Any] = {
    "length": 10, "lengths": [14, 18], "layers": 2, "epochs": 2, "train_size": 100, "test_size": 40, "seeds": [0],
    "masks": ["full", "topk:5"],
}  # fmt: skip


def specification(options: argparse.Namespace, mask: str, seed: int) -> RunSpec:
    """The run of one mask and seed; its position table reaches the longest length."""
    longest = max([options.length, *options.lengths])
    return RunSpec(
        task=options.task,
        mask=mask,
        seed=seed,
        length=options.length,
        train_size=options.train_size,
        validation_size=options.test_size,
        test_size=options.test_size,
        task_options={"length_splits": sorted(options.lengths)},
        model={
            "num_hidden_layers": options.layers,
            "position_embedding_type": options.positions,
            # Sequence tasks put one more token to a row for each output position.
            "max_position_embeddings": 3 * longest + 8,
        },
        training=TrainingOptions(epochs=options.epochs, learning_rate=options.learning_rate),
    )


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Trains what is missing and measures every length: rows of {mask, seed, length, accuracy}, and what they stand beside."""
    rows, console = [], Console()
    baselines: dict[int, list[float]] = {}
    pad_token_id = build_tokenizer(options.task).pad_token_id
    for seed in options.seeds:
        data = None
        for mask in options.masks:
            spec = specification(options, mask, seed)
            folder = options.output / "runs" / mask_slug(spec.mask) / f"seed-{seed}"
            with EpochBar(f"{spec.mask}, seed {seed}, length {options.length}", options.epochs, console) as bar:
                result = train_run(spec, folder, on_epoch=bar.update)
            model = to_device(model_class(options.task).from_pretrained(folder / "model"))
            # The same rows for every mask.
            data = data or load_task(options.task, **spec.data_options())
            splits = {options.length: "test"} | {length: f"length_{length}" for length in sorted(options.lengths)}
            for length, split in splits.items():
                accuracy = measure_accuracy(model, TensorRows(data[split], pad_token_id), 250)
                rows.append({"mask": spec.mask, "seed": seed, "length": length, "accuracy": accuracy.accuracy})
                rows[-1] |= {"epochs_trained": result.epochs_trained, "status": result.status}
                baselines.setdefault(length, []).append(majority_accuracy(data[split], options.task))
    return {
        "task": options.task,
        "trained_at": options.length,
        "quick": options.quick,
        "command": options.command,
        "size": size_in_words(options, f"at most {options.epochs} epochs"),
        "rows": rows,
        "majority": {str(length): mean(values) for length, values in baselines.items()},  # as JSON has it
    }


def table(results: dict[str, Any]) -> str:
    """Markdown: a row a mask, a column a length; the mean over seeds, and lowest to highest where there are several."""
    lengths = list(map(int, results["majority"]))
    lines = [
        f"`{results['command']}`",
        "",
        f"{results['size']} {results['task']}, trained at length {results['trained_at']}: accuracy at other lengths"
        + (" (quick run: reduced in every respect)" if results["quick"] else ""),
        "",
        "| mask | " + " | ".join(map(str, lengths)) + " | runs that learnt |",
        "|---" * (len(lengths) + 2) + "|",
    ]
    for mask, rows in pd.DataFrame(results["rows"]).groupby("mask", sort=False):
        values = rows.groupby("length").accuracy.agg(["mean", "min", "max"]).loc[lengths]
        runs = rows.drop_duplicates("seed")
        cells = [
            f"{middle:.3f}" + (f" ({low:.3f}–{high:.3f})" if len(runs) > 1 else "")
            for middle, low, high in values.itertuples(index=False)
        ]
        cells.append(f"{(runs.status == 'reached').sum()} of {len(runs)}")
        lines.append(f"| `{mask}` | " + " | ".join(cells) + " |")
    lines.append("| majority class | " + " | ".join(f"{value:.3f}" for value in results["majority"].values()) + " | |")
    return "\n".join(lines) + "\n"


def picture(results: dict[str, Any]) -> Figure:
    """Accuracy against length: a line a mask (mean over seeds, band lowest to highest), the majority class dotted."""
    masks, lengths = list(dict.fromkeys(row["mask"] for row in results["rows"])), list(map(int, results["majority"]))
    styles = mask_styles(masks, masks[0])
    figure = Figure(figsize=(6.4, 3.8), layout="constrained", facecolor=LIGHT.paper)
    axes = figure.subplots()
    prepare(axes, LIGHT)
    for mask, rows in pd.DataFrame(results["rows"]).groupby("mask", sort=False):
        values, style = rows.groupby("length").accuracy.agg(["mean", "min", "max"]).loc[lengths], styles[str(mask)]
        axes.plot(lengths, values["mean"], color=style.colour, marker=style.marker, markersize=5)
        axes.fill_between(lengths, values["min"], values["max"], color=style.colour, alpha=0.12)
    axes.plot(lengths, list(results["majority"].values()), color=LIGHT.faint, linestyle=":", linewidth=1.2)
    axes.annotate(
        "dotted: majority class", (lengths[-1], results["majority"][str(lengths[-1])]), xytext=(0, -24), ha="right",
        textcoords="offset points", fontsize=8, color=LIGHT.faint,
    )  # fmt: skip
    axes.axvline(results["trained_at"], color=LIGHT.faint, linewidth=0.8)
    axes.set_xticks(lengths)
    axes.set_ylim(0, 1.03)
    axes.set_xlabel("length of the test inputs (the line: of the training inputs)", color=LIGHT.ink, fontsize=9)
    axes.set_ylabel("accuracy", color=LIGHT.ink, fontsize=9)
    reduced = " (reduced size)" if results["size"].startswith("Reduced") else ""
    axes.set_title(f"{results['task']}, trained at length {results['trained_at']}{reduced}", **title_style(LIGHT))
    handles = [mask_key(styles[mask], mask) for mask in masks]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(5, len(handles)), **legend_style(LIGHT))
    return figure


def main(arguments: Sequence[str]) -> None:
    options, results = study("length_generalisation", __doc__, DEFAULTS, QUICK, measured, arguments)
    (options.output / "lengths.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    pd.DataFrame(results["rows"]).to_csv(options.output / "lengths.csv", index=False)
    (options.output / "lengths.md").write_text(table(results), encoding="utf-8")
    picture(results).savefig(options.output / "lengths.png", dpi=150)
    print(table(results))


if __name__ == "__main__":
    main(sys.argv[1:])
