"""A picture of a task's example: the input's symbols in cells, and the label or output below."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .tasks import get_task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, distinguishable with any colour vision, lightened so that black text stands out.
_COLOURS = ("#56B4E9", "#E69F00", "#009E73", "#F0E442", "#CC79A7", "#D55E00", "#0072B2", "#999999")
_ALPHA = 0.45
_WRAP = 24


def draw_example(name: str, text: str | None = None) -> Figure:
    """Draw an input of a task and its answer.

    Args:
        name: the task's name.
        text: an input; None: the worked example of the docs.

    Returns:
        A matplotlib figure: one cell a symbol, equal symbols in one colour, lines of at most 24, and the answer below.

    Raises:
        ValueError: unknown task, or a text with unknown symbols.

    Example:
        >>> draw_example("parity_check").savefig("parity_check.png")
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    task = get_task(name)
    words = (task.example[0] if text is None else text).split()
    answer = task.solve(" ".join(words)).split()
    colours = {symbol: _COLOURS[number % len(_COLOURS)] for number, symbol in enumerate((*task.vocabulary, "END"))}
    lines = [(words[start : start + _WRAP], "input" if start == 0 else "") for start in range(0, len(words), _WRAP)]
    says = "output" if task.kind == "token_classification" else "label"
    lines += [(answer[start : start + _WRAP], says if start == 0 else "") for start in range(0, len(answer), _WRAP)]
    columns = max(len(line) for line, _ in lines)
    figure = Figure(figsize=(1.6 + 0.62 * columns, 0.5 + 0.62 * len(lines)), layout="constrained")
    axes = figure.add_subplot()
    for row, (line, title) in enumerate(lines):
        axes.text(-0.3, row + 0.5, title, ha="right", va="center", fontsize=10)
        for column, word in enumerate(line):
            colour = colours.get(word, _COLOURS[-1])
            axes.add_patch(
                Rectangle((column + 0.04, row + 0.08), 0.92, 0.84, facecolor=colour, alpha=_ALPHA, edgecolor="none")
            )
            axes.text(column + 0.5, row + 0.5, word, ha="center", va="center", fontsize=11 if len(word) < 3 else 7)
    axes.set(xlim=(-2, columns), ylim=(len(lines), 0), title=f"{task.name}: {task.description}")
    axes.title.set(fontsize=9, wrap=True)
    axes.set_axis_off()
    return figure
