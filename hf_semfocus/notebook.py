"""A comparison from Python: `from hf_semfocus import compare`."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from .experiments.experiment import Experiment
from .files import read_record
from .summary_schema import Summary

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Comparison:
    """A run directory of `semfocus compare` to look at; a notebook shows its table and curves.

    Example:
        >>> Comparison("runs/quickstart").table()  # doctest: +SKIP
    """

    folder: Path | str

    @cached_property
    def summary(self) -> Summary:
        """`summary.json`."""
        return read_record(
            Path(self.folder) / "summary.json", Summary, f"`semfocus report {self.folder}` makes it again"
        )

    def table(self) -> "pandas.DataFrame":
        """A row a task and mask, as in the report."""
        import pandas

        from .report.tables import table_rows

        names = ["task", "mask", "epochs", "speed_up", "heldout_end", "heldout_best", "chance", "reach", "troubles"]
        return pandas.DataFrame([{name: getattr(row, name) for name in names} for row in table_rows(self.summary)])

    def plot(self) -> "Figure | None":
        """Accuracy against epochs, as a matplotlib figure; None where no run has an epoch yet."""
        from .report.pictures import curves

        return curves(self.summary)

    @property
    def report(self) -> Path:
        """`report.html`."""
        return Path(self.folder) / "report.html"

    def _repr_html_(self) -> str:
        from .report.files import render_figure

        figure = self.plot()
        picture = "" if figure is None else render_figure(figure, "svg").decode("utf-8").partition("<svg")[2]
        return self.table().to_html(index=False) + (picture and f"<svg{picture}")


def compare(experiment: Experiment | str, output: Path | str, jobs: int | None = None) -> Comparison:
    """Trains every run of an experiment that is not finished in `output`, and writes summary and report there.

    Each worker imports the script that calls this: there the call has to stand under `if __name__ == "__main__":`, in a notebook not.

    Args:
        experiment: an `Experiment`, a preset's name ("quickstart"), or a YAML file.
        output: the run directory. What is finished there is not trained again.
        jobs: runs at once; None for the number of cores.

    Raises:
        ValueError: an argument is none of these; `output` holds other runs; the workers cannot import the script.

    Example:
        >>> from hf_semfocus import Experiment, compare
        >>> mine = Experiment("mine", {"even_pairs": {"length": 20}}, ("full", "topk:5"), (0, 1))
        >>> compare(mine, "runs/mine").table()  # doctest: +SKIP
    """
    from .comparison.compare import compare as train
    from .comparison.summary import write_summary
    from .experiments.presets import PRESETS, preset
    from .report.html import write_report

    if not isinstance(experiment, Experiment):
        if not isinstance(experiment, str | Path) or not (experiment in PRESETS or Path(experiment).is_file()):
            known = ", ".join(PRESETS)
            raise ValueError(
                f"experiment is {experiment!r}; allowed: an Experiment, a preset ({known}) or a YAML file"
            )
        experiment = preset(str(experiment)) if experiment in PRESETS else Experiment.from_yaml(experiment)
    train(experiment, output, jobs, command="hf_semfocus.compare")
    write_report(output, write_summary(Path(output)))
    return Comparison(output)
