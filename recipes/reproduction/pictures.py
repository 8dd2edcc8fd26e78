"""Pictures of the reproduction: curves like the paper's figure 1, how many runs have learnt a task, and the law of focus."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from hf_semfocus.comparison.curves import performance_profile, reached_curve
from hf_semfocus.data import task_info
from hf_semfocus.experiments.presets import PAPER_EPOCHS, PAPER_TRAINING
from hf_semfocus.report.axes import legend_style, mask_key, plain_log_ticks, prepare, title_style
from hf_semfocus.report.palette import LIGHT, mask_styles
from hf_semfocus.report.pictures import band

from ..focus_law import FocusRun
from .records import BASELINE, MASK, TASKS, StoredRun
from .tier1 import Tier

MASKS = (BASELINE, MASK)
WIDTH = 11.0  # inches: at 150 dots an inch a README shows them at a little more than half their size
PROFILE_UP_TO = 4.0
SOFTENED = {"gain": "o", "temperature": "s", "qk_norm": "^", "entmax15": "D", "sparsemax": "v"}
WAYS = {
    "gain": "attention gain",
    "temperature": "inverse temperature",
    "qk_norm": "QK-norm",
    "entmax15": "entmax-1.5",
    "sparsemax": "sparsemax",
}


def curves(stored: Mapping[str, Sequence[StoredRun]]) -> Figure | None:
    """Running training loss (above) and held-out accuracy (below) against epochs, a column a task; None without an ended run.

    A line is the median over the seeds, the band their quartiles. A run that has ended counts with its last value, and the line
    is dashed from where the first one has.
    """
    ended = {
        task: runs
        for task in TASKS
        if (
            runs := [
                of_mask.run
                for of_mask in stored.get(task, ())
                if of_mask.run.status in ("reached", "censored", "diverged")
            ]
        )
    }
    if not ended:
        return None
    styles = mask_styles(MASKS, BASELINE)
    figure = Figure(figsize=(WIDTH, 4.3), layout="constrained", facecolor=LIGHT.paper)
    grid = figure.subplots(2, len(ended), squeeze=False, sharex="col", sharey="row")
    for column, (task, runs) in enumerate(ended.items()):
        above, below = grid[0][column], grid[1][column]
        for axes in (above, below):
            prepare(axes, LIGHT)
            axes.xaxis.set_major_locator(MaxNLocator(3, integer=True))
        for value in (task_info(task).chance, PAPER_TRAINING["tau"]):
            below.axhline(value, color=LIGHT.faint, linewidth=0.9, linestyle=(0, (1, 2)))
        for mask in reversed(MASKS):  # the baseline above the other
            of_mask = [run for run in runs if run.label == mask]
            for axes, name in ((above, "running_loss"), (below, "heldout_accuracy")):
                _median(axes, [run.values(name) for run in of_mask], styles[mask].colour)
        seeds = {run.spec.seed for run in runs}
        name = task.replace("_", "\n")  # a column is narrow
        above.set_title(f"{name}\n({len(seeds)} seeds)", **{**title_style(LIGHT), "fontsize": 9})
        below.set_xlabel("epoch", color=LIGHT.ink, fontsize=9)
    grid[0][0].set_ylabel("training loss", color=LIGHT.ink)
    grid[0][0].set_ylim(bottom=0)
    grid[1][0].set_ylabel("held-out accuracy", color=LIGHT.ink)
    grid[1][0].set_ylim(0, 1.03)
    lines = Line2D([], [], color=LIGHT.faint, linewidth=0.9, linestyle=(0, (1, 2)), label="chance, and 95 %")
    handles = [*(_key(mask) for mask in MASKS), lines]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), **legend_style(LIGHT))
    return figure


def _median(axes: Axes, runs: Sequence[Sequence[float]], colour: str) -> None:
    known = [values for values in runs if values]
    if not known:
        return
    curve = band(known, tail=0.25)
    epochs = np.arange(1, len(curve["middle"]) + 1)
    complete = int((curve["training"] == len(known)).sum())
    axes.fill_between(epochs, curve["low"], curve["high"], color=colour, alpha=0.2, linewidth=0)
    axes.plot(epochs[:complete], curve["middle"][:complete], color=colour, linewidth=1.8)
    axes.plot(
        epochs[complete - 1 :], curve["middle"][complete - 1 :], color=colour, linewidth=1.3, linestyle=(0, (3, 1.5))
    )


def reached(tier: Tier) -> Figure | None:
    """Kaplan–Meier curves of "reached τ" of the pairs that count, a panel a task, and last the performance profile."""
    tasks = [task for task in tier.tasks if task.name in TASKS and task.counted]
    if not tasks:
        return None
    styles = mask_styles(MASKS, BASELINE)
    columns = min(4, len(tasks) + 1)
    rows = -(-(len(tasks) + 1) // columns)
    figure = Figure(figsize=(WIDTH, 2.2 * rows + 0.5), layout="constrained", facecolor=LIGHT.paper)
    panels = list(figure.subplots(rows, columns, squeeze=False, sharey=True).flat)
    for axes, task in zip(panels, tasks, strict=False):
        prepare(axes, LIGHT)
        for side, mask in reversed(list(enumerate(MASKS))):
            curve = reached_curve([pair.convergences[side] for pair in task.counted])
            epochs = [0, *curve.epochs, task.ceiling]
            axes.step(
                epochs, [0, *curve.share, curve.share[-1]], where="post", color=styles[mask].colour, linewidth=1.8
            )
            low, high = (np.nan_to_num([0, *band, band[-1]]) for band in (curve.low, curve.high))
            axes.fill_between(epochs, low, high, step="post", color=styles[mask].colour, alpha=0.13, linewidth=0)
        last = max(convergence.epochs for pair in task.counted for convergence in pair.convergences)
        axes.set_xlim(0, min(task.ceiling, 1.15 * last))
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.set_title(f"{task.name} ({len(task.counted)} pairs)", **{**title_style(LIGHT), "fontsize": 8.5})
        axes.set_xlabel("epoch", color=LIGHT.ink, fontsize=9)
    profile = panels[len(tasks)]
    prepare(profile, LIGHT)
    factors = np.linspace(1, PROFILE_UP_TO, 301)
    cases = {
        mask: [pair.convergences[side] for task in tasks for pair in task.counted] for side, mask in enumerate(MASKS)
    }
    for mask, share in performance_profile(cases, factors).items():
        profile.plot(factors, share, color=styles[mask].colour, linewidth=1.8, drawstyle="steps-post")
    profile.set_title(f"performance profile ({len(cases[BASELINE])} pairs)", **{**title_style(LIGHT), "fontsize": 9})
    profile.set_xlabel("epochs over those of the better mask", color=LIGHT.ink, fontsize=9)
    for axes in panels[len(tasks) + 1 :]:
        axes.set_visible(False)
    for index in range(0, len(tasks) + 1, columns):
        panels[index].set_ylabel("share of runs", color=LIGHT.ink)
    panels[0].set_ylim(0, 1.03)
    figure.legend(handles=[_key(mask) for mask in MASKS], loc="outside upper center", ncols=2, **legend_style(LIGHT))
    return figure


def law(runs: Iterable[FocusRun]) -> Figure | None:
    """Epochs to τ against the initial entropy of attention, a panel a task; None without a run.

    A small mark is a run, its shape says how attention was sharpened. Lines join the medians of the gains, of which the smallest and
    the largest are named. A run that did not reach τ lies on the dotted line, at the task's ceiling.
    """
    known = list(runs)
    tasks = [task for task in TASKS if any(run.task == task for run in known)]
    if not tasks:
        return None
    masks = list(dict.fromkeys([BASELINE, MASK, *(run.mask for run in known)]))
    styles = mask_styles(masks, BASELINE)
    figure = Figure(figsize=(WIDTH, 4.0), layout="constrained", facecolor=LIGHT.paper)
    grid = figure.subplots(1, len(tasks), squeeze=False, sharey=True)[0]
    for axes, task in zip(grid, tasks, strict=True):
        prepare(axes, LIGHT)
        axes.set_yscale("log")
        axes.axhline(PAPER_EPOCHS[task], color=LIGHT.faint, linewidth=0.9, linestyle=(0, (1, 2)))
        of_task = [run for run in known if run.task == task]
        for run in of_task:
            axes.plot(run.entropy, np.exp(run.log_epochs), SOFTENED[run.kind], color=styles[run.mask].colour,
                      markersize=4.5, alpha=0.45, markeredgewidth=0, clip_on=False)  # fmt: skip
        for mask in masks:
            gains = [run for run in of_task if (run.mask, run.kind) == (mask, "gain")]
            _gains(axes, gains, styles[mask].colour, above=mask != BASELINE)
        plain_log_ticks(axes.yaxis)
        axes.set_xlim(0, 1.02)
        axes.set_title(task, **title_style(LIGHT))
        axes.set_xlabel("initial entropy of attention (share of the largest)", color=LIGHT.ink, fontsize=9)
    grid[0].set_ylabel("epochs to τ (log scale)", color=LIGHT.ink)
    shown = [mask for mask in masks if any(run.mask == mask for run in known)]
    handles = [Line2D([], [], color=styles[mask].colour, linewidth=1.8, label=mask) for mask in shown]
    kinds = [kind for kind in SOFTENED if any(run.kind == kind for run in known)]
    handles += [
        Line2D([], [], color=LIGHT.ink, marker=SOFTENED[kind], linestyle="", label=WAYS[kind]) for kind in kinds
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), **legend_style(LIGHT))
    return figure


def _gains(axes: Axes, runs: Sequence[FocusRun], colour: str, above: bool) -> None:
    gains = sorted({run.gain for run in runs})
    by_gain = [[run for run in runs if run.gain == gain] for gain in gains]
    x = [float(np.median([run.entropy for run in some])) for some in by_gain]
    y = [float(np.exp(np.median([run.log_epochs for run in some]))) for some in by_gain]
    axes.plot(x, y, color=colour, linewidth=1.8)
    for index in {0, len(gains) - 1} if gains else ():
        axes.annotate(f"gain {gains[index]:g}", (x[index], y[index]), xytext=(0, 20 if above else -24), textcoords="offset points",
                      ha="center", va="center", fontsize=8, color=colour, weight="bold")  # fmt: skip


def _key(mask: str) -> Line2D:
    key = mask_key(mask_styles(MASKS, BASELINE)[mask], mask)
    key.set_marker("")
    return key
