"""Puts stored results into README.md and docs/ (blocks.py says which where), from what their commands left.

python -m recipes.reproduction.readme runs/quickstart        # after `make quickstart`
python -m recipes.reproduction.readme --cost runs/cost.txt --data runs/data.txt    # after `make benchmark`
python -m recipes.reproduction.readme --attention runs/attention   # after `make benchmark`
python -m recipes.reproduction.readme --minilm runs/sparse_minilm  # after `python recipes/sparse_minilm.py`
python -m recipes.reproduction.readme --claims               # after `python -m recipes.reproduction.claims`
python -m recipes.reproduction.readme --settings             # after `python -m recipes.reproduction.archive … --as gain_2` or another

What is shown is kept in recipes/results/; a test compares the pages with it.
"""

import argparse
import itertools
import json
import math
import re
import shutil
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from hf_semfocus import SemFocusConfig
from hf_semfocus.files import atomic_write, read_record
from hf_semfocus.model.modeling_semfocus import position_std
from hf_semfocus.report.axes import legend_style, mask_key, plain_log_ticks, prepare, title_style
from hf_semfocus.report.files import render_figure
from hf_semfocus.report.palette import LIGHT, mask_styles
from hf_semfocus.report.tables import markdown_table
from hf_semfocus.report.words import epochs_of, speed_up_words
from hf_semfocus.summary_schema import Summary

from .blocks import RESULTS, ROOT, linked, with_blocks
from .records import MASK
from .verdicts import verdict_words

MAIN_PICTURE = "reduced/speedups.png"
SWEEP_PICTURE = "recipes/results/gain_sweep.png"
# Stored comparisons of the same tasks under other hyperparameters or at another size, and what to say in front of them.
SETTINGS = {
    "theory": "",
    "gain_1_4": "",
    "gain_2": "",
    "gain_2_8": "",
    "gain": "",
    "first_search": "first search for `full`: ",
    "reduced": "searched for `full`: ",
    "paper_size_first": "paper size: ",
    "paper_size_gain_2": "paper size: ",
    "paper_size": "paper size, searched for `full`: ",
}
# Those of them that differ in the attention gain alone, on the tasks where they do.
SWEEPS = {
    "reduced size": ("theory", "gain_1_4", "gain_2", "gain_2_8", "gain"),
    "paper size": ("paper_size_first", "paper_size_gain_2", "paper_size"),
}


def quickstart_section(summary: Summary) -> str:
    """What was run in the quickstart, the table, the picture."""
    machine = summary.machine
    assert machine is not None
    longest = sum(run.seconds or 0.0 for run in summary.runs) / 60
    about = (
        f"{summary.note} Run on {machine['cores']} cores ({machine['processor']}); {longest:.1f} minutes of one core "
        "in all. Seconds vary with the machine, epochs hardly."
    )
    path = linked("quickstart", "recipes/results/quickstart/curves.png")
    picture = f"![Training and held-out accuracy against epochs]({path})"
    return f"{about}\n\n{markdown_table(summary).strip()}\n\n{picture}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_directory", nargs="?", type=Path, help="what `make quickstart` wrote")
    parser.add_argument("--cost", type=Path, help="what `make benchmark` printed about masks")
    parser.add_argument("--data", type=Path, help="what `make benchmark` printed about data")
    parser.add_argument("--attention", type=Path, help="what `semfocus bench attention` wrote, its profile included")
    parser.add_argument("--minilm", type=Path, help="what recipes/sparse_minilm.py wrote")
    parser.add_argument(
        "--claims", action="store_true", help="what recipes/reproduction/claims.py wrote into recipes/results"
    )
    parser.add_argument(
        "--settings", action="store_true", help="what recipes/results/{theory,gain*,reduced,paper_size*} hold"
    )
    options = parser.parse_args(arguments)
    try:
        update(options)
    except (ValueError, OSError) as error:
        print(f"readme: {error}", file=sys.stderr)
        return 2
    return 0


def update(options: argparse.Namespace) -> None:
    """Copies what was made into recipes/results, and writes the blocks made from it.

    Raises:
        OSError, ValueError: an input is missing or cannot be read; then nothing was copied or written.
    """
    blocks: dict[str, str] = {}
    copied: dict[Path, Path] = {}  # by where each is to go
    written: dict[Path, bytes | str] = {}
    if options.run_directory is not None:
        summary = read_record(options.run_directory / "summary.json", Summary, "make it again: make quickstart")
        blocks["quickstart"] = quickstart_section(summary)
        names = ["summary.json", "summary.csv", "speedups.csv"]
        pictures = sorted((options.run_directory / "figures").glob("*.png"))
        every = [*(options.run_directory / name for name in names), *pictures]
        copied |= {RESULTS / "quickstart" / path.name: path for path in every}
    for name in ("cost", "data"):
        printed = getattr(options, name)
        if printed is not None:
            blocks[name] = printed_section(printed.read_text(encoding="utf-8"))
            copied[RESULTS / f"{name}.txt"] = printed
    if options.attention is not None:
        blocks["attention"] = attention_section((options.attention / "attention.txt").read_text(encoding="utf-8"))
        names = ["attention.txt", "attention.csv", "attention.png", "attention_profile.txt"]
        copied |= {RESULTS / name: options.attention / name for name in names}
    if options.cost is not None or options.attention is not None:
        needed = [RESULTS / f"{name}.txt" for name in ("cost", "attention", "attention_intel")]
        blocks["costs"] = costs_section(*(copied.get(path, path).read_text("utf-8") for path in needed))
    if options.minilm is not None:
        blocks["minilm"] = minilm_section((options.minilm / "table.md").read_text(encoding="utf-8"))
        copied |= {RESULTS / "sparse_minilm" / path.name: path for path in sorted(options.minilm.iterdir())}
    if options.claims:
        blocks["claims"] = claims_section(json.loads((RESULTS / "claims.json").read_text("utf-8")))
    if options.settings:
        stored = stored_settings()
        written[ROOT / SWEEP_PICTURE] = render_figure(sweep_picture(stored), "png")
        blocks["settings"] = settings_section(stored)
    written |= with_blocks(blocks)
    for path in copied.values():
        path.stat()
    for target, path in copied.items():
        if path.resolve() != target.resolve():  # what lies there already stays
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    for target, content in written.items():
        atomic_write(target, content)


def printed_section(printed: str) -> str:
    """The benchmarks' own words."""
    return f"```text\n{printed.strip()}\n```"


def costs_section(cost: str, *attention: str) -> str:
    """Cost in one line, from what `make benchmark` printed about a training step and, on two processors, about attention alone."""
    step = _first(r"^topk:5 .*?([\d.]+) x full", cost)
    alone = []
    for printed in attention:
        ratio = _first(r"^topk:5 +4x2048  dense, time .*?  ([\d.]+) \(", printed)
        processor = _first(r"cpu \((.+)\), \d+ threads", printed).replace("(R)", "").removesuffix(" Processor")
        alone.append(f"{float(ratio):.2f} times as long on {processor}")
    return (
        f"On a CPU, a training step with `topk:5` takes {float(step):.1f} times as long as with full attention at length 40; attention "
        f"alone, at length 2,048, takes {' and '.join(alone)} (ratios of medians). [Benchmarks](docs/benchmarks.md)."
    )


def _first(pattern: str, printed: str) -> str:
    if match := re.search(pattern, printed, re.MULTILINE):
        return match[1]
    raise ValueError(f"a stored benchmark has no line like {pattern!r}; make it again: make benchmark")


def attention_section(printed: str) -> str:
    """The setting and the goals in sight, all figures below."""
    setting, goals, *tables = printed.strip("\n").split("\n\n")
    path = linked("attention", "recipes/results/attention.png")
    picture = f"![Time and peak extra memory of attention against length]({path})"
    first = printed_section("\n\n".join((setting, goals)))
    rest = printed_section("\n\n".join(tables))
    return f"{first}\n\n{picture}\n\n<details><summary>All figures</summary>\n\n{rest}\n\n</details>"


def minilm_section(table: str) -> str:
    """The recipe's own table about the pretrained model, and its picture."""
    path = linked("minilm", "recipes/results/sparse_minilm/quality.png")
    picture = f"![Quality against the keys that each query keeps]({path})"
    return f"{table.strip()}\n\n{picture}"


def claims_section(found: Mapping[str, Any]) -> str:
    """The paper's claims, from claims.json: the main picture where it is stored, and a verdict a claim and size."""
    claims = [entry for entry in found["claims"] if entry["task"] is None]
    columns = list(dict.fromkeys(entry["size"].split(" (")[0] for entry in claims))
    by_claim: dict[str, dict[str, Mapping[str, Any]]] = {}
    for entry in claims:
        by_claim.setdefault(entry["claim"], {})[entry["size"].split(" (")[0]] = entry
    rows = [("claim", *columns), ("---",) * (1 + len(columns))]
    for words, by_size in by_claim.items():
        rows.append((words, *(verdict_words(by_size[size]) if size in by_size else "–" for size in columns)))
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines += [
        "",
        "The numbers behind each verdict, the rules, and which runs are missing: `recipes/results/claims.md`.",
    ]
    if (RESULTS / MAIN_PICTURE).is_file():
        path = linked("claims", f"recipes/results/{MAIN_PICTURE}")
        lines = [f"![Speed-ups of each mask on each task]({path})", "", *lines]
    return "\n".join(lines)


def stored_settings() -> dict[str, Summary]:
    """The summaries of `SETTINGS` that are stored."""
    paths = {name: RESULTS / name / "summary.json" for name in SETTINGS}
    settings = {
        name: read_record(path, Summary, "store the comparison again")
        for name, path in paths.items()
        if path.is_file()
    }
    if not settings:
        raise ValueError(f"{RESULTS} has none of {', '.join(SETTINGS)}; recipes/reproduction/archive.py stores them")
    return settings


def settings_section(stored: Mapping[str, Summary]) -> str:
    """One comparison under several sets of hyperparameters, by the names of `SETTINGS`: the picture, and a row a set."""
    lines = [
        f"| task | hyperparameters | `full`: epochs to 95 % | `{MASK}` | speed-up |",
        "| --- | --- | --- | --- | --- |",
    ]
    for task in (task.name for task in next(iter(stored.values())).tasks):
        for name, summary in stored.items():
            cells = _epochs_and_speed_up(summary, task)
            if cells is None:  # not every comparison has every task
                continue
            lines.append(f"| {task} | {_setting(summary, task, SETTINGS[name])} | {' | '.join(cells)} |")
    path = linked("settings", SWEEP_PICTURE)
    picture = f"![Epochs to 95 % against the size of the initial scores]({path})"
    return "\n".join([picture, "", "<details><summary>In numbers</summary>", "", *lines, "", "</details>"])


def _epochs_and_speed_up(summary: Summary, task: str) -> tuple[str, str, str] | None:
    """Epochs of full attention, of the mask, and the speed-up; None where the comparison has no finished pair of them."""
    wanted = (task, MASK, "train")
    speed = next((e for e in summary.speedups if (e.task, e.mask, e.quantity) == wanted), None)
    if speed is None or not speed.n_pairs:
        return None
    full, other = (epochs_of(summary.runs_of(task, name), "train", 10**6) for name in ("full", MASK))
    return full, other, str(speed_up_words(speed))


def _setting(summary: Summary, task: str, words: str) -> str:
    training = _used(summary, task)["training"]
    clip = f"clip {training['max_grad_norm']:g}" if training["max_grad_norm"] else "no clip"
    rate, batch = training["learning_rate"], training["batch_size"]
    return f"{words}rate {rate:g}, {clip}, batch {batch}, attention gain {_gain(summary, task):g}"


def _used(summary: Summary, task: str) -> dict[str, dict[str, Any]]:
    return next(entry.hyperparameters for entry in summary.tasks if entry.name == task)


def _gain(summary: Summary, task: str) -> float:
    return _used(summary, task)["model"].get("attention_gain", 1.0)


def _panels(stored: Mapping[str, Summary]) -> list[tuple[str, str, list[Summary]]]:
    """Size, task and summaries, by gain, of every task of a sweep in which nothing but the gain differs."""
    panels = []
    for size, names in SWEEPS.items():
        swept = [stored[name] for name in names if name in stored]
        for task in [task.name for task in swept[0].tasks] if len(swept) > 1 else []:
            complete = all(_epochs_and_speed_up(summary, task) for summary in swept)
            if complete and len({json.dumps(_settings_of(summary, task)) for summary in swept}) == 1:
                panels.append((size, task, swept))
    return panels


def _settings_of(summary: Summary, task: str) -> dict[str, Any]:
    """All settings of a task, defaults filled in, but for the gain, and for what ends or records a run."""
    (entry,) = (entry for entry in summary.tasks if entry.name == task)
    model = SemFocusConfig(**entry.hyperparameters["model"])
    model.position_std = position_std(model)
    sizes = {"length": entry.length, "train_size": entry.train_size}
    values = model.to_dict() | entry.hyperparameters["training"] | sizes
    return {name: values[name] for name in values if name not in ("attention_gain", "epochs", "analysis_every")}


def sweep_picture(stored: Mapping[str, Summary]) -> Figure:
    """Epochs to τ against attention gain², a panel a task and size, lines through the medians.

    An open triangle at the budget is a run that did not reach τ; a dotted line ends in a median that is only known to lie above.
    """
    panels = _panels(stored)
    styles = mask_styles(panels[0][2][0].masks, "full")
    figure = Figure(figsize=(4.4 * len(panels), 3.4), layout="constrained", facecolor=LIGHT.paper)
    drawn_in = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, (size, task, swept) in zip(drawn_in, panels, strict=True):
        prepare(axes, LIGHT)
        for name, sideways in (("full", 1 / 1.04), (MASK, 1.04)):
            style, medians = styles[name], []
            for summary in swept:
                scores = _gain(summary, task) ** 2
                runs = [run for run in summary.runs if (run.task, run.mask) == (task, name)]
                for number, run in enumerate(runs):
                    reached = run.epochs_to_tau is not None
                    # Censored runs lie on one height: side by side they can be counted.
                    place = scores * sideways * (1.0 if reached else 1.05 ** (number - 1))
                    axes.plot(place, run.epochs_to_tau if reached else run.budget, style.marker if reached else "^",
                              color=style.colour, alpha=0.8, markersize=5.5, fillstyle="full" if reached else "none")  # fmt: skip
                middle = statistics.median_low(run.epochs_to_tau or math.inf for run in runs)
                medians.append(
                    (scores, min(middle, max(run.budget or run.epochs_trained for run in runs)), middle == math.inf)
                )
            for before, after in itertools.pairwise(medians):
                bound = before[2] or after[2]  # the median is known to lie above, and not where
                ends = zip(before[:2], after[:2], strict=True)
                axes.plot(*ends, color=style.colour, linewidth=1.2 if bound else 1.6, linestyle=":" if bound else "-")
        axes.set_xscale("log")
        axes.set_yscale("log")
        plain_log_ticks(axes.yaxis)
        gains = [_gain(summary, task) for summary in swept]
        axes.set_xticks([gain**2 for gain in gains], [f"{gain**2:.2g}\n{gain:g}" for gain in gains])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_title(f"{task}, {size}", **title_style(LIGHT))
        axes.set_xlabel("initial scores over the default's; below: attention gain", color=LIGHT.ink)
    figure.axes[0].set_ylabel("epochs to 95 % training accuracy", color=LIGHT.ink)
    keys = [mask_key(styles[name], name) for name in ("full", MASK)]
    if any(run.epochs_to_tau is None for _, task, swept in panels for summary in swept
           for run in summary.runs if run.task == task and run.mask in ("full", MASK)):  # fmt: skip
        looks: dict[str, Any] = {"color": LIGHT.faint, "marker": "^", "linestyle": ":", "fillstyle": "none"}
        keys.append(Line2D([], [], label="more than the budget", **looks))
    figure.legend(handles=keys, loc="outside upper right", ncols=3, **legend_style(LIGHT))
    return figure


if __name__ == "__main__":
    sys.exit(main())
