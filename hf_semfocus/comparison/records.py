"""The files of a comparison at work, and of its runs under a URL."""

from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, Field, RootModel, StrictBool, StrictInt, StrictStr

from ..schema import Open, Record, Seconds


class Placements(RootModel[dict[StrictStr, StrictStr]]):
    """`placements.json`: task and seed → the kind of node that their runs are on."""


class RunningRecord(Record):
    """A run of `progress.json` that is being trained."""

    run: StrictStr
    node: StrictStr | None
    epoch: StrictInt | None
    of: StrictInt


class ProgressRecord(Record):
    """`progress.json`: how far the comparison at work is, or the last one was."""

    updated: AwareDatetime
    ended: StrictBool
    runs: StrictInt
    states: dict[StrictStr, StrictInt]
    nodes: dict[StrictStr, StrictInt]
    running: list[RunningRecord]
    seconds_left: Seconds | None


def _below(path: str) -> str:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts:
        raise ValueError("allowed: a path below the run's folder")  # what stands there is replaced
    return path


Part = Annotated[StrictStr, AfterValidator(_below)]


class PackedObject(Record):
    """A part of a run under a URL: where it is, packed, and its digest."""

    object: StrictStr
    blake2b: StrictStr


class CopiedManifest(Open):
    """A manifest in the local copy, whose small files stand beside it."""

    name: StrictStr
    objects: dict[Part, PackedObject]


class Manifest(Open):
    """A manifest of a run under a URL."""

    format: Annotated[StrictInt, Field(le=1)] = 1
    objects: dict[Part, PackedObject]
    records: dict[StrictStr, StrictStr]
