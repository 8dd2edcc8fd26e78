"""The claims of tier 1, judged as `docs/protocol.md` says. Verdicts are enums and numbers; `page.py` makes words of them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from statistics import fmean
from typing import Any

from hf_semfocus.comparison.paired_tests import (
    FEWEST_PAIRS,
    Judgement,
    Verdict,
    judge_speed,
    judge_speed_over_tasks,
    judge_values,
    restricted_difference,
    with_holm,
)
from hf_semfocus.comparison.statistics import restricted_epochs

from .records import LISTOPS, LISTOPS_SEEDS, TASKS, StoredRun, TaskRecord, task_record

FORMAT = 1
MARGIN = 0.02  # of held-out accuracy: no more than this below full attention's is not worse
NEAR_RANDOM = 0.05
GENERALISES_ON = 4


class Kind(StrEnum):
    """What is claimed."""

    FASTER = "faster"
    NOT_WORSE = "heldout"
    BETTER = "better"
    FITS_ALL = "fits_all"
    GENERALISES = "generalises_on_4"


class Scope(StrEnum):
    """Of what it is claimed: a task, the mean over these tasks, tasks of their kind, all of them together."""

    TASK = "task"
    MEAN = "mean"
    TASKS = "tasks"
    ALL = "all"


class Untested(StrEnum):
    """Why a claim was not tested."""

    PAIRS_MISSING = "pairs_missing"
    NO_GENERALISATION = "no_generalisation"
    FEW_TASKS = "few_tasks"


@dataclass(frozen=True)
class Claim:
    """A claim with its verdict.

    Args:
        kind, scope, task: what is claimed of what; `task` only with `Scope.TASK`.
        judgement: estimate and interval are speed-ups for `FASTER` and differences of held-out accuracy for `NOT_WORSE` and
            `BETTER`; a count has neither.
        untested: with the verdict `NOT_TESTED`, why.
        missing: pairs that it needs and that do not count, by task.
        left_out: tasks that it leaves out, as they have no generalisation to compare.
        tasks: of a count, the tasks that hold (`FITS_ALL`: that every run fits; `GENERALISES`: that most runs generalise on).
        of: of a count, how many tasks are asked for.
    """

    kind: Kind
    scope: Scope
    judgement: Judgement
    task: str | None = None
    untested: Untested | None = None
    missing: Mapping[str, int] | None = None
    left_out: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    of: int | None = None

    @property
    def name(self) -> str:
        """As the protocol calls it."""
        return self.kind if self.scope is Scope.ALL else f"{self.kind}:{self.task or self.scope}"


@dataclass(frozen=True)
class Restricted:
    """Mean epochs of the counted pairs, each no more than the task's ceiling, and full − mask with its interval (decides nothing)."""

    baseline: float
    mask: float
    difference: Judgement


@dataclass(frozen=True)
class Tier:
    """All that tier 1 says: the content of `paper.json`."""

    claims: tuple[Claim, ...]
    tasks: tuple[TaskRecord, ...]
    restricted: Mapping[str, Restricted]
    format: int = FORMAT

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        values = asdict(self)
        for claim, stored in zip(self.claims, values["claims"], strict=True):
            stored["name"] = claim.name
            stored["family_wise"] = claim.judgement.family_wise
        return values


def judge(stored: Mapping[str, Sequence[StoredRun]]) -> Tier:
    """Tier 1 from the runs that are stored, by task."""
    tasks = tuple(task_record(task, stored.get(task)) for task in TASKS)
    listops = task_record(LISTOPS, stored.get(LISTOPS), LISTOPS_SEEDS)
    faster = _by_task(Kind.FASTER, tasks, {task.name: _speed(task) for task in tasks if task.complete})
    not_worse = _heldout(Kind.NOT_WORSE, tasks, -MARGIN)
    better = _heldout(Kind.BETTER, tasks, 0.0)
    claims = (
        *_faster_over_tasks(tasks, faster),
        *faster,
        _not_worse_over_tasks(tasks, not_worse),
        *not_worse,
        *better,
        _fits_all(tasks),
        _generalises((*tasks, listops)),
    )
    restricted = {task.name: restricted_of(task) for task in tasks if task.counted}
    return Tier(claims, (*tasks, listops), restricted)


def _missing(tasks: Sequence[TaskRecord]) -> dict[str, int]:
    return {task.name: len(task.pairs) - len(task.counted) for task in tasks if not task.complete}


def _untested(kind: Kind, scope: Scope, tasks: Sequence[TaskRecord]) -> Claim:
    judged = Judgement(Verdict.NOT_TESTED, sum(len(task.counted) for task in tasks))
    return Claim(kind, scope, judged, untested=Untested.PAIRS_MISSING, missing=_missing(tasks))


def _by_task(kind: Kind, tasks: Sequence[TaskRecord], judged: Mapping[str, Judgement]) -> tuple[Claim, ...]:
    """A claim a task, with Holm over all of them: those that were not tested stay in the family."""
    family = {task.name: judged.get(task.name, Judgement(Verdict.NOT_TESTED, len(task.counted))) for task in tasks}
    adjusted = with_holm(family)
    return tuple(
        Claim(kind, Scope.TASK, adjusted[task.name], task.name)
        if task.name in judged
        else replace(_untested(kind, Scope.TASK, [task]), task=task.name)
        for task in tasks
    )


def _speed(task: TaskRecord) -> Judgement:
    return judge_speed([pair.convergences for pair in task.counted])


def _faster_over_tasks(tasks: Sequence[TaskRecord], by_task: Sequence[Claim]) -> tuple[Claim, Claim]:
    if _missing(tasks):
        return _untested(Kind.FASTER, Scope.MEAN, tasks), _untested(Kind.FASTER, Scope.TASKS, tasks)
    mean, over = judge_speed_over_tasks(
        {task.name: [pair.convergences for pair in task.counted] for task in tasks},
        {task.name: task.ceiling for task in tasks},
    )
    return Claim(Kind.FASTER, Scope.MEAN, mean), Claim(Kind.FASTER, Scope.TASKS, _unless_contradicted(over, by_task))


def _unless_contradicted(judged: Judgement, by_task: Sequence[Claim]) -> Judgement:
    """What holds over tasks is supported only where no single task says the opposite."""
    against = any(claim.judgement.verdict is Verdict.CONTRADICTED for claim in by_task)
    return replace(judged, verdict=Verdict.UNDECIDED) if against and judged.verdict is Verdict.SUPPORTED else judged


def _has_generalisation(task: TaskRecord) -> bool:
    """Whether a counted run's held-out accuracy is more than 0.05 above chance and the majority class."""
    runs = [run for pair in task.counted for run in (pair.baseline, pair.mask)]
    return any(run.heldout is not None and run.heldout > (run.at_random or 0.0) + NEAR_RANDOM for run in runs)


def _heldout(kind: Kind, tasks: Sequence[TaskRecord], bound: float) -> tuple[Claim, ...]:
    judged = {
        task.name: judge_values([pair.heldout_difference for pair in task.counted], above=bound)
        for task in tasks
        if task.complete and _has_generalisation(task)
    }
    return tuple(
        replace(claim, untested=Untested.NO_GENERALISATION, missing=None)
        if task.complete and task.name not in judged
        else claim
        for task, claim in zip(tasks, _by_task(kind, tasks, judged), strict=True)
    )


def _not_worse_over_tasks(tasks: Sequence[TaskRecord], by_task: Sequence[Claim]) -> Claim:
    left_out = tuple(claim.task for claim in by_task if claim.untested is Untested.NO_GENERALISATION and claim.task)
    if _missing(tasks):
        return replace(_untested(Kind.NOT_WORSE, Scope.TASKS, tasks), left_out=left_out)
    values = [fmean(pair.heldout_difference for pair in task.counted) for task in tasks if task.name not in left_out]
    if len(values) < FEWEST_PAIRS:
        few = Judgement(Verdict.NOT_TESTED, len(values))
        return Claim(Kind.NOT_WORSE, Scope.TASKS, few, untested=Untested.FEW_TASKS, left_out=left_out)
    judged = _unless_contradicted(judge_values(values, above=-MARGIN), by_task)
    return Claim(Kind.NOT_WORSE, Scope.TASKS, judged, left_out=left_out)


def _fits_all(tasks: Sequence[TaskRecord]) -> Claim:
    met = tuple(
        task.name for task in tasks if task.complete and all(pair.convergences[0].reached for pair in task.counted)
    )
    return _count(Kind.FITS_ALL, tasks, met, len(tasks))


def _generalises(tasks: Sequence[TaskRecord]) -> Claim:
    met = tuple(
        task.name
        for task in tasks
        if task.complete and 2 * sum(pair.baseline.generalised for pair in task.counted) > len(task.counted)
    )
    return _count(Kind.GENERALISES, tasks, met, GENERALISES_ON)


def _count(kind: Kind, tasks: Sequence[TaskRecord], met: tuple[str, ...], asked: int) -> Claim:
    if _missing(tasks):
        return replace(_untested(kind, Scope.ALL, tasks), tasks=met, of=len(tasks))
    verdict = Verdict.SUPPORTED if len(met) == asked else Verdict.CONTRADICTED
    return Claim(kind, Scope.ALL, Judgement(verdict, len(tasks)), tasks=met, of=len(tasks))


def restricted_of(task: TaskRecord) -> Restricted:
    """Restricted mean epochs of the pairs that count, one at least."""
    pairs = [pair.convergences for pair in task.counted]
    baseline, mask = (fmean(restricted_epochs(pair[side], task.ceiling) for pair in pairs) for side in (0, 1))
    return Restricted(baseline, mask, restricted_difference(pairs, task.ceiling))
