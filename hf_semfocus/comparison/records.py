"""The files of a comparison at work, and of its runs under a URL."""

from pydantic import AwareDatetime, RootModel, StrictBool, StrictInt, StrictStr

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


class PackedObject(Record):
    """A part of a run under a URL: where it is, packed, and its digest."""

    object: StrictStr
    blake2b: StrictStr


class CopiedManifest(Open):
    """A manifest in the local copy, whose small files stand beside it."""

    name: StrictStr
    objects: dict[StrictStr, PackedObject]


class Manifest(Open):
    """A manifest of a run under a URL."""

    objects: dict[StrictStr, PackedObject]
    records: dict[StrictStr, StrictStr]
