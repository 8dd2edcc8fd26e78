"""A comparison as data: tasks × masks × seeds with one set of hyperparameters a task, in Python, YAML or JSON."""

from collections.abc import Sequence
from dataclasses import field, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic.dataclasses import dataclass

from ..files import check_format
from ..model.mask_strategies import parse_mask
from ..text import did_you_mean
from .imports import import_strategies
from .options import STRICT, merged, one_line_errors, parse, read_yaml
from .spec import Names, RunSpec, Seed, flat, mask_slug
from .task_recipes import KEY, with_recipe

Value = TypeVar("Value")
CHANGED = " (changed)"  # after the name of an experiment that a command line changed
RECORDING = (
    "imports",
    "training.analysis_every",
    "training.report_to",
    "training.snapshots",
)  # settings that change no run
# What a comparison's experiment.json has beside the experiment.
RECORDED = ("format", "command", "created", "versions", "machine", "earlier", "units")


def once(name: str, values: Sequence[Value]) -> tuple[Value, ...]:
    """The values themselves; `ValueError` if one is there twice."""
    if (twice := next((value for value in values if list(values).count(value) > 1), None)) is not None:
        raise ValueError(f"{name} has {twice} twice; allowed: each once")
    return tuple(values)


def _named(tasks: Any) -> Any:
    """Tasks without settings: a list of names, or a name with nothing behind its colon."""
    if isinstance(tasks, list) and all(isinstance(name, str) for name in tasks):
        return {name: {} for name in once("tasks", tasks)}
    if isinstance(tasks, dict):
        return {name: {} if settings is None else settings for name, settings in tasks.items()}
    return tasks


def _check_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings are right by themselves, before others are merged with them."""
    for key in ("task", "mask", "variant", "seed", "mask_source", "task_source"):
        if key in settings:
            whose = (
                f"follows from the {key[:4]}'s file" if key.endswith("_source") else "belongs to the experiment's grid"
            )
            raise ValueError(f"{key!r} stands in the settings: it {whose}")
    parse(RunSpec, {"task": "", **{key: value for key, value in settings.items() if key != KEY}}, "run")
    return settings


def _check_variant(variant: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(variant.get("mask"), str):
        raise ValueError(f"it is {variant!r}; allowed: a mask and fields of the model")
    return variant


Settings = Annotated[dict[str, Any], AfterValidator(_check_settings)]
Variant = Annotated[dict[str, Any], AfterValidator(_check_variant)]


@one_line_errors("experiment")
@dataclass(frozen=True, config=STRICT)
class Experiment:
    """Every (task, mask, seed) that a comparison trains. Masks differ in nothing but the mask, and variants in what they name:
    hyperparameters belong to tasks.

    Args:
        name: a word for titles.
        tasks: task name → what is special to it, as fields of `RunSpec` (`length`, `model`, `training`, …). Where they are read
            from a mapping or YAML, `recipe: FILE` takes the task's hyperparameters from another experiment (see `with_recipe`).
        masks: mask specifications, or names of `variants`; `baseline` is among them.
        seeds: 0, 1, 2, …; each is one pair of every mask with the baseline.
        defaults: fields of `RunSpec` for all tasks; a task's fields go over them.
        baseline: what speed-ups are measured against.
        note: a sentence for the report: the size, where it differs from the paper's.
        variants: name → a `mask` and the fields of the model that belong to it, which go over a task's. A name that is a mask
            specification too stands for the variant.

    Example:
        >>> experiment = Experiment("mine", {"even_pairs": {"length": 20}}, ("full", "topk:5"), (0, 1))
        >>> [unit.name for unit in experiment.units()][:2]
        ['even_pairs/full/seed-0', 'even_pairs/topk-5/seed-0']
    """

    name: str
    tasks: Annotated[dict[str, Settings], BeforeValidator(_named), Field(min_length=1)]
    masks: Annotated[Names, Field(min_length=1)]
    seeds: Annotated[tuple[Seed, ...], Field(strict=False, min_length=1)]
    defaults: Settings = field(default_factory=dict)
    baseline: str = "full"
    note: str = ""
    variants: dict[str, Variant] = field(default_factory=dict)

    def resolved(self) -> "Experiment":
        """The experiment as it is stored, each mask as it is written everywhere, after every run of it was resolved.

        Raises:
            ValueError: as `RunSpec.resolved`; a mask or a seed is there twice; the baseline is not among the masks; two masks would share
                a folder.
        """
        import_strategies(self.defaults.get("imports", ()))
        experiment = replace(
            self,
            masks=once("masks", [self._label(mask) for mask in self.masks]),
            seeds=once("seeds", self.seeds),
            baseline=self._label(self.baseline),
        )
        slugs: dict[str, str] = {}
        unions: dict[frozenset[str], str] = {}
        for mask in experiment.masks:
            if mask not in self.variants and (other := unions.setdefault(frozenset(mask.split("+")), mask)) != mask:
                raise ValueError(f"masks has {other} and {mask}, which are one; allowed: each once")
            if (other := slugs.setdefault(mask_slug(mask), mask)) != mask:
                raise ValueError(f"{other!r} and {mask!r} would share a folder; allowed: names that differ in more")
        if experiment.baseline not in experiment.masks:
            raise ValueError(
                f"baseline is {experiment.baseline!r}; allowed: one of the masks, {', '.join(experiment.masks)}; add it to them"
            )
        experiment.units()
        return experiment

    def _label(self, mask: str) -> str:
        """The name of a variant as it is, a mask specification as it is written everywhere."""
        if mask in self.variants:
            return mask
        try:
            return str(parse_mask(mask))
        except ValueError as error:
            if not self.variants or "unknown mask strategy" not in str(error):
                raise
            near = did_you_mean(mask, self.variants)
            known = "" if near else f" ({', '.join(self.variants)})"
            raise ValueError(f"{mask!r} is neither a variant{known} nor a mask{near}") from None

    def spec(self, task: str, mask: str, seed: int) -> RunSpec:
        """The resolved specification of one run; `mask` is one of the experiment's."""
        return self._spec(merged(self.defaults, self.tasks[task]), task, mask, seed)

    def _spec(self, settings: dict[str, Any], task: str, mask: str, seed: int) -> RunSpec:
        values = {**settings, "task": task, "mask": mask, "seed": seed}
        if mask in self.variants:
            model = {**settings.get("model", {}), **self.variants[mask]}
            values |= {"mask": model.pop("mask"), "variant": mask, "model": model}
        return RunSpec.from_dict(values)

    def units(self) -> list[RunSpec]:
        """All runs, pairs close together: for each seed and task, every mask."""
        first = []
        for task in self.tasks:
            settings = merged(self.defaults, self.tasks[task])  # once a task: OmegaConf takes milliseconds
            first += [self._spec(settings, task, mask, self.seeds[0]) for mask in self.masks]
        return [replace(spec, seed=seed) for seed in self.seeds for spec in first]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON or YAML."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        if not self.variants:  # as it was before there were any
            del values["variants"]
        return {**values, "masks": list(self.masks), "seeds": list(self.seeds), "tasks": dict(self.tasks)}

    @classmethod
    def from_dict(cls, values: Any, files: tuple[Path, ...] = ()) -> "Experiment":
        """Makes a resolved experiment from a mapping; whatever is wrong in it raises `ValueError`.

        Args:
            values: the fields; what a comparison records beside them (`RECORDED`) is passed over.
            files: that are being read, the outermost first: paths of recipes start from the last one's folder.
        """
        if isinstance(values, dict):
            check_format(files[-1] if files else "the experiment", values.get("format"), 1)
            values = {name: value for name, value in values.items() if name not in RECORDED}
        experiment = parse(cls, values, "experiment")
        tasks = {
            task: with_recipe(task, settings, experiment.defaults, partial(cls._recipe, task, files))
            for task, settings in experiment.tasks.items()
        }
        return replace(experiment, tasks=tasks).resolved()

    @classmethod
    def from_yaml(cls, path: Path | str, files: tuple[Path, ...] = ()) -> "Experiment":
        """Reads an experiment from a YAML or JSON file; the paths of its recipes start from that file's folder.

        The `experiment.json` of a comparison gives what that comparison was asked for, whatever has become of its recipe.
        """
        if not (values := read_yaml(path)):
            raise ValueError(f"{path} is empty; allowed: an experiment")
        return cls.from_dict(values, (*files, Path(path).resolve()))

    @classmethod
    def _recipe(cls, task: str, files: tuple[Path, ...], name: str) -> dict[str, Any]:
        """All settings of `task` in the experiment file that another one names."""
        path = (files[-1].parent if files else Path()) / name
        try:
            if path.resolve() in files:
                raise ValueError("recipes go in a circle")
            recipe = cls.from_yaml(path, files)
            if task not in recipe.tasks:
                raise ValueError(f"it is for {', '.join(recipe.tasks)}; allowed here: a recipe for {task}")
        except OSError as error:
            raise ValueError(f"task {task}: recipe {name}: {error.strerror} ({path})") from None
        except ValueError as error:
            raise ValueError(f"task {task}: recipe {name}: {error}") from None
        return merged(recipe.defaults, recipe.tasks[task])


def changed_note(base: Experiment, changed: Experiment) -> str | None:
    """What a report says of an experiment that a command line changed: each setting, old → new. None: nothing was changed.

    The base's note stands before it, unless sizes or tasks were changed, of which it speaks.
    """
    changes = []
    for name in ("masks", "seeds", "tasks"):
        old, new = (", ".join(map(str, getattr(one, name))) for one in (base, changed))
        if old != new:
            changes.append(f"{name} {old} → {new}")
    settings = set()
    for task in changed.tasks.keys() & base.tasks.keys():
        before, after = (flat(one.spec(task, one.baseline, 0).to_dict()) for one in (base, changed))
        # What is recorded does not change what is trained.
        keys = (after.keys() | before.keys()) - set(RECORDING)
        settings |= {
            f"{key} {before.get(key)} → {after.get(key)}" for key in keys if before.get(key) != after.get(key)
        }
    changes += sorted(settings)
    if not changes:
        return None
    resized = set(base.tasks) != set(changed.tasks)
    resized = resized or any(not key.startswith("training.") for key in settings)
    change = "; ".join(changes)
    if base.name.endswith(CHANGED):  # its note has the first change, which still holds
        return f"{base.note} Changed once more: {change}."
    note = f"{base.name!r}, changed on the command line: {change}."
    return note if resized or not base.note else f"{base.note} {note}"
