"""`run.json` in a checkpoint: what a model card says of its run, as data. It moves with the checkpoint."""

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import StrictBool, StrictInt, StrictStr, model_validator

from ..files import read_record
from ..schema import (
    Convergence,
    DataRecord,
    Dispersion,
    Epoch,
    Known,
    Machine,
    ReachRecord,
    Record,
    SpecRecord,
    Versions,
)
from ..training.run_files import QUANTITIES, epochs_to

FACTS = "run.json"


class TaskFacts(Record):
    """The task that a run learnt."""

    name: StrictStr
    level: StrictStr
    kind: StrictStr
    description: StrictStr
    vocabulary: list[StrictStr]
    labels: list[StrictStr]
    in_paper: StrictBool


class PairFacts(Record):
    """A run beside the baseline's of the same seed, to τ."""

    baseline: Convergence
    mask: Convergence


class ComparisonFacts(Record):
    """The comparison that a run belongs to."""

    name: StrictStr | None
    note: StrictStr | None
    machine: Machine | None
    baseline: StrictStr
    runs: StrictInt
    pair: PairFacts | None


class RunFacts(Record):
    """`run.json`."""

    format: Literal[2]
    name: StrictStr
    task: TaskFacts
    spec: SpecRecord
    architecture: dict[str, Any]
    own_code: list[StrictStr]
    torch_seed: StrictInt
    command: StrictStr
    output: StrictStr
    status: Literal["reached", "censored", "diverged"]
    diverged: StrictBool
    kept_epoch: StrictInt
    accuracy: dict[str, Known]
    train: Convergence
    heldout: Convergence
    baselines: DataRecord
    reach: ReachRecord | None
    dispersion: Dispersion | None
    parameters: StrictInt
    processes: StrictInt | None
    versions: Versions
    machine: Machine
    reduced: list[StrictStr]
    example: dict[str, StrictStr]
    comparison: ComparisonFacts | None
    history: list[Epoch]

    @model_validator(mode="before")
    @classmethod
    def _of_format_1(cls, values: Any) -> Any:
        """Format 1 had words for epochs."""
        if not isinstance(values, dict) or values.get("format") != 1:
            return values
        history, training = [Epoch(**row) for row in values["history"]], values["spec"]["training"]
        found = {**values, "format": 2, "machine": values["machine"] or {}}
        for quantity, (name, threshold) in QUANTITIES.items():
            epochs = epochs_to(history, name, training[threshold])
            ends = (len(history), False) if epochs is None else (epochs, True)
            found[quantity] = Convergence(*ends, training["epochs"], values["diverged"])
        if values["comparison"] and (pair := values["comparison"]["pair"]):
            pair = {
                side: _convergence(pair[name]) for side, name in (("baseline", "baseline_epochs"), ("mask", "epochs"))
            }
            found["comparison"] = {**values["comparison"], "pair": pair}
        return found


def _convergence(words: str) -> Convergence:
    """Of what format 1 wrote: "7", ">40", ">3 (diverged)", ">12 (unfinished)"."""
    epochs = int(re.findall(r"\d+", words)[0])
    return Convergence(epochs, not words.startswith(">"), None, "diverged" in words, "unfinished" not in words)


def read_facts(checkpoint: Path) -> RunFacts:
    """The `run.json` of a checkpoint; `ValueError` if it is missing or damaged."""
    path = checkpoint / FACTS
    if not path.is_file():
        raise ValueError(
            f"{checkpoint} has no {FACTS}: `semfocus card` makes it from the folder of the run that trained the checkpoint"
        )
    return read_record(path, RunFacts, "`semfocus card` makes it again from the run's folder")
