"""A comparison as data: tasks × masks × seeds with one set of hyperparameters a task, in Python, YAML or JSON."""

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from ..model.mask_strategies import parse_mask
from .imports import import_strategies
from .spec import RunSpec, flat, mask_slug
from .task_recipes import with_recipe

CHANGED = " (changed)"  # after the name of an experiment that a command line changed
# What a comparison's experiment.json has beside the experiment.
RECORDED = ("format", "command", "created", "versions", "machine", "earlier", "units")


@dataclass(frozen=True)
class Experiment:
    """Every (task, mask, seed) that a comparison trains. Masks differ in nothing but the mask, and variants in what they name:
    hyperparameters belong to tasks.

    Args:
        name: a word for titles.
        tasks: task name → what is special to it, as fields of `RunSpec` (`length`, `model`, `training`, …). Where they are read
            from a mapping or YAML, `recipe: FILE` takes the task's hyperparameters from another experiment (see `with_recipe`).
        masks: mask specifications, or names of `variants`; `baseline` is among them.
        seeds: 0, 1, 2, …; each is one pair of every mask with the baseline.
        defaults: fields of `RunSpec` for all tasks; a task's own fields go over them.
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
    tasks: Mapping[str, Mapping[str, Any]]
    masks: tuple[str, ...]
    seeds: tuple[int, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    baseline: str = "full"
    note: str = ""
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.defaults, Mapping):
            raise ValueError(f"experiment option defaults is {self.defaults!r}; allowed: a mapping of options")
        import_strategies(self.defaults.get("imports", ()))
        for name in ("tasks", "masks", "seeds"):
            if not getattr(self, name):
                raise ValueError(f"experiment {self.name!r} has no {name}")
        self._check_variants()
        object.__setattr__(self, "masks", tuple(dict.fromkeys(self._label(mask) for mask in self.masks)))
        slugs: dict[str, str] = {}
        for mask in self.masks:
            if (other := slugs.setdefault(mask_slug(mask), mask)) != mask:
                raise ValueError(f"{other!r} and {mask!r} would share a folder; allowed: names that differ in more")
        object.__setattr__(self, "seeds", tuple(dict.fromkeys(self.seeds)))
        object.__setattr__(self, "baseline", self._label(self.baseline))
        if self.baseline not in self.masks:
            raise ValueError(
                f"the baseline {self.baseline!r} is not among the masks ({', '.join(self.masks)}): no speed-up could be told"
            )
        # A unit is right where its task and mask are and where its seed is, so the whole product need not be made.
        for task in self.tasks:
            for mask in self.masks:
                self.spec(task, mask, self.seeds[0])
        for seed in self.seeds[1:]:
            self.spec(next(iter(self.tasks)), self.baseline, seed)

    def _check_variants(self) -> None:
        for name, own in self.variants.items():
            if not isinstance(name, str) or not isinstance(own, Mapping) or not isinstance(own.get("mask"), str):
                raise ValueError(
                    f"variant {name!r} is {own!r}; allowed: a mapping with a mask and fields of the model, under a name"
                )

    def _label(self, mask: str) -> str:
        """The name of a variant as it is, a mask specification as it is written everywhere."""
        if mask in self.variants:
            return mask
        try:
            return str(parse_mask(mask))
        except ValueError as error:
            if not self.variants:
                raise
            near = difflib.get_close_matches(mask, self.variants, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(
                f"{mask!r} is neither a variant of {self.name!r}{hint} (allowed: {', '.join(self.variants)}) nor a mask "
                f"specification ({error})"
            ) from None

    def spec(self, task: str, mask: str, seed: int) -> RunSpec:
        """The specification of one unit; `mask` is one of the experiment's."""
        values = merged(self.defaults, self.tasks[task] or {})
        for key in ("task", "mask", "variant", "seed", "mask_source"):
            if key in values:
                whose = "follows from the mask's file" if key == "mask_source" else "belongs to the experiment's grid"
                raise ValueError(f"{key!r} stands in the settings of {task}: it {whose}")
        values |= {"task": task, "mask": mask, "seed": seed}
        if mask in self.variants:
            own = dict(self.variants[mask])
            values |= {"mask": own.pop("mask"), "variant": mask, "model": merged(values.get("model", {}), own)}
        return RunSpec.from_dict(values)

    def units(self) -> list[RunSpec]:
        """All runs, pairs close together: for each seed and task, every mask."""
        return [self.spec(task, mask, seed) for seed in self.seeds for task in self.tasks for mask in self.masks]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON or YAML."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        if not self.variants:  # as it was before there were any
            del values["variants"]
        return {**values, "masks": list(self.masks), "seeds": list(self.seeds), "tasks": dict(self.tasks)}

    @classmethod
    def from_dict(
        cls, values: Mapping[str, Any], folder: Path | str = "", inside: tuple[Path, ...] = ()
    ) -> "Experiment":
        """Makes an experiment from a mapping. `tasks` may be a list of names; unknown keys raise `ValueError`.

        Args:
            values: the fields.
            folder: what the paths of recipes start from.
            inside: the files that are being read, the outermost first: a recipe is none of them.
        """
        known = [entry.name for entry in fields(cls)]
        for key in values:
            if key not in known:
                near = difflib.get_close_matches(str(key), known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ValueError(f"unknown experiment option {key!r}{hint} (known: {', '.join(known)})")
        missing = [name for name in ("name", "tasks", "masks", "seeds") if name not in values]
        if missing:
            raise ValueError(f"the experiment lacks {', '.join(missing)}")
        values = dict(values)
        for name, kind in (("masks", str), ("seeds", int)):
            if not isinstance(values[name], list | tuple) or not all(type(v) is kind for v in values[name]):
                raise ValueError(f"experiment option {name} is {values[name]!r}; allowed: a list of {kind.__name__}")
            values[name] = tuple(values[name])
        if isinstance(values["tasks"], list):
            if not all(isinstance(task, str) for task in values["tasks"]):
                raise ValueError(f"experiment option tasks is {values['tasks']!r}; allowed: a list of names")
            values["tasks"] = {task: {} for task in values["tasks"]}
        tasks = values["tasks"]
        if not isinstance(tasks, Mapping) or not all(isinstance(own, Mapping | None) for own in tasks.values()):
            raise ValueError(f"experiment option tasks is {tasks!r}; allowed: a list of names, or names with settings")
        kinds = (
            ("defaults", Mapping, "a mapping"),
            ("variants", Mapping, "a mapping"),
            ("name", str, "text"),
            ("baseline", str, "a mask specification or the name of a variant"),
            ("note", str, "text"),
        )
        for key, wanted, words in kinds:
            if key in values and not isinstance(values[key], wanted):
                raise ValueError(f"experiment option {key} is {values[key]!r}; allowed: {words}")
        values["tasks"] = {
            task: with_recipe(task, own or {}, values.get("defaults", {}), partial(cls._recipe, task, folder, inside))
            for task, own in tasks.items()
        }
        return cls(**values)

    @classmethod
    def from_yaml(cls, path: Path | str, inside: tuple[Path, ...] = ()) -> "Experiment":
        """Reads an experiment from a YAML or JSON file; the paths of its recipes start from that file's folder.

        The `experiment.json` of a comparison gives what that comparison was asked for, whatever has become of its recipe.
        """
        path = Path(path)
        values = read_yaml(path)
        if "format" not in values:
            return cls.from_dict(values, path.parent, (*inside, path.resolve()))
        asked = {entry.name for entry in fields(cls)}
        missing = sorted(asked - {"variants"} - values.keys())
        if values["format"] != 1 or isinstance(values["format"], bool) or missing:
            lacks = f"it lacks {', '.join(missing)}" if missing else f"format is {values['format']!r}; allowed: 1"
            raise ValueError(f"{path} is not what `semfocus compare` records of a comparison: {lacks}")
        kept = {name: value for name, value in values.items() if name not in RECORDED}
        experiment = cls.from_dict(kept, path.parent, (*inside, path.resolve()))
        if values.get("units", names := [unit.name for unit in experiment.units()]) != names:
            raise ValueError(f"{path} is damaged: its units are not those of its tasks, masks and seeds")
        return experiment

    @classmethod
    def _recipe(cls, task: str, folder: Path | str, inside: tuple[Path, ...], name: str) -> dict[str, Any]:
        """All settings of `task` in the experiment file that another one names."""
        path = Path(folder) / name
        try:
            if path.resolve() in inside:
                circle = [*inside[inside.index(path.resolve()) :], path]
                raise ValueError(f"recipes go in a circle ({' → '.join(file.name for file in circle)})")
            recipe = cls.from_yaml(path, inside)
            if task not in recipe.tasks:
                raise ValueError(f"it is for {', '.join(recipe.tasks)}; allowed here: a recipe for {task}")
        except OSError as error:
            raise ValueError(f"task {task}: recipe {name}: {error.strerror} ({path})") from None
        except ValueError as error:
            raise ValueError(f"task {task}: recipe {name}: {error}") from None
        return merged(recipe.defaults, recipe.tasks[task])


def read_yaml(path: Path | str) -> dict[str, Any]:
    """A YAML or JSON file that holds a mapping; anything else raises `ValueError` naming the file."""
    path = Path(path)
    kind = "JSON" if path.suffix.lower() == ".json" else "YAML"
    if path.is_dir():
        raise ValueError(f"{path} is a folder; allowed: a YAML or JSON file with options")
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text, object_pairs_hook=_once) if kind == "JSON" else yaml.load(text, _Loader)
        circular = _holds_itself(values, set(), set())
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not {kind}: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds {type(values).__name__}; allowed: a mapping of options")
    if circular:
        raise ValueError(f"{path} has a mapping or list that holds itself (by an alias); allowed: one that ends")
    return values


class _Loader(yaml.SafeLoader):
    """Safe YAML in which a key stands once, and 1e-5 is a number as in JSON and YAML 1.2 (PyYAML: a text)."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        # Looked at before other mappings are merged into it (<<), whose keys may well be given again.
        node = super().compose_mapping_node(anchor)
        own = [key.value for key, _ in node.value]
        if twice := [key for key in own if own.count(key) > 1]:
            raise yaml.composer.ComposerError(None, None, f"the key {twice[0]!r} is given twice", node.start_mark)
        return node


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} is given twice")
    return values


def _holds_itself(value: Any, inside: set[int], seen: set[int]) -> bool:
    """Whether a mapping or list is found in itself; what was seen once is not looked at again (aliases may share much)."""
    if not isinstance(value, dict | list) or id(value) in seen - inside:
        return False
    if id(value) in inside:
        return True
    seen.add(id(value))
    children = value.values() if isinstance(value, dict) else value
    return any(_holds_itself(child, inside | {id(value)}, seen) for child in children)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `over` on it; mappings inside are merged, everything else is replaced."""
    result = dict(base)
    for key, value in over.items():
        if isinstance(value, Mapping) and key in result:
            if not isinstance(result[key], Mapping):
                raise ValueError(f"option {key} is {result[key]!r}; allowed: a mapping of options")
            value = merged(result[key], value)
        elif key in result and isinstance(result[key], Mapping):
            raise ValueError(f"option {key} is {value!r}; allowed: a mapping of options")
        result[key] = value
    return result


def changed_note(base: Experiment, changed: Experiment) -> str | None:
    """What a report says of an experiment that a command line changed: each setting, old → new. None: nothing was changed.

    The base's own note stands before it, unless sizes were changed, of which it speaks.
    """
    told = []
    for name in ("masks", "seeds"):
        old, new = (", ".join(map(str, getattr(one, name))) for one in (base, changed))
        if old != new:
            told.append(f"{name} {old} → {new}")
    if set(base.tasks) != set(changed.tasks):
        told.append(f"tasks {', '.join(base.tasks)} → {', '.join(changed.tasks)}")
    settings: dict[str, None] = {}
    for task in changed.tasks:
        if task in base.tasks:
            before, after = (flat(one.spec(task, one.baseline, 0).to_dict()) for one in (base, changed))
            for key in after.keys() | before.keys():
                # What is recorded does not change what is trained.
                if before.get(key) != after.get(key) and key != "training.analysis_every":
                    settings[f"{key} {before.get(key)} → {after.get(key)}"] = None
    told += sorted(settings)
    if not told:
        return None
    resized = any(not key.startswith("training.") for key in settings)
    change = "; ".join(told)
    if base.name.endswith(CHANGED):  # its note tells the first change, which still holds
        return f"{base.note} Changed once more: {change}."
    note = f"{base.name!r}, changed on the command line: {change}."
    return note if resized or not base.note else f"{base.note} {note}"
