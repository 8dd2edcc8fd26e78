"""What ``save_pretrained`` puts beside the weights so that a checkpoint loads without this package installed.

The files of this folder are copied as they are; Transformers' loader follows their ``from .x import y`` lines. A mask
strategy of the user's own comes along when its module is simple enough to stand alone.
"""

import ast
import inspect
import shutil
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers.dynamic_module_utils import get_relative_import_files

from .mask_base import MaskStrategy
from .mask_registry import mask_parts

MODELING = "modeling_semfocus"
EXTENSIONS = "mask_extensions"
CUSTOM = "custom_"  # what the names of shipped modules of the user's own begin with

#: What every checkpoint lists, whichever class was saved.
AUTO_MAP = {
    "AutoConfig": f"{MODELING}.SemFocusConfig",
    "AutoModel": f"{MODELING}.SemFocusModel",
    "AutoModelForMaskedLM": f"{MODELING}.SemFocusForMaskedLM",
    "AutoModelForSequenceClassification": f"{MODELING}.SemFocusForSequenceClassification",
    "AutoModelForTokenClassification": f"{MODELING}.SemFocusForTokenClassification",
}

#: Names that a shipped module may import from this package; a checkpoint has them in ``mask_strategies``.
SHIPPABLE = {
    "MaskContext",
    "MaskState",
    "MaskStrategy",
    "list_mask_strategies",
    "parameter",
    "parse_mask",
    "register_mask_strategy",
}


def code_files() -> list[Path]:
    """The files that a checkpoint needs: the modeling file and everything that it imports from its folder."""
    modeling = Path(__file__).with_name(f"{MODELING}.py")
    return sorted({modeling, *map(Path, get_relative_import_files(modeling))})


def complete_auto_map(known: dict[str, Any] | None) -> dict[str, Any]:
    """``auto_map`` with all our entries, and with those of a user's own classes in files that are not ours."""
    ours = {path.stem for path in code_files()}
    foreign = {
        auto_class: reference
        for auto_class, reference in (known or {}).items()
        if not (isinstance(reference, str) and reference.split("--")[-1].split(".")[0] in ours)
    }
    return {**AUTO_MAP, **foreign}


def ship_code(folder: Path, masks: Sequence[MaskStrategy]) -> dict[str, str] | None:
    """Copy the code that a checkpoint needs into `folder`.

    Args:
        folder: an existing directory.
        masks: the masks of the model.

    Returns:
        For every strategy that is not built in, its name and the module that registers it; None if there is none.

    Warns:
        UserWarning: if a strategy of the user's own cannot be shipped; the checkpoint then loads only where its
            module was imported first.
    """
    for file in code_files():
        _copy(file, folder / file.name)
    own = {type(part) for mask in masks for part in mask_parts(mask)}
    own = {cls for cls in own if cls.__module__.rpartition(".")[0] != __name__.rpartition(".")[0]}
    imports = []
    for cls in sorted(own, key=lambda cls: cls.name):
        try:
            stem = _ship_module(cls, folder)
        except ValueError as error:
            warnings.warn(
                f"mask strategy {cls.name!r} ({cls.__module__}.{cls.__qualname__}) is not in the checkpoint {folder}: "
                f"{error}. Loading it needs a process that has registered it (imported {cls.__module__!r})"
            )
            continue
        imports.append(f"from .{stem} import {cls.__qualname__}")
    if imports:
        text = '"""The mask strategies that this checkpoint uses beyond those of hf_semfocus."""\n\n'
        (folder / f"{EXTENSIONS}.py").write_text(text + "".join(f"{line}\n" for line in imports), encoding="utf-8")
    shipped = _shipped_extensions()
    return {**shipped, **{cls.name: cls.__module__ for cls in own}} or None


def _copy(source: Path, target: Path) -> None:
    if not (target.exists() and source.samefile(target)):
        shutil.copyfile(source, target)


def _shipped_extensions() -> dict[str, str]:
    """Strategies that came with the checkpoint that this code itself was loaded from."""
    module = sys.modules.get(f"{__name__.rpartition('.')[0]}.{EXTENSIONS}")
    found = [value for value in vars(module).values() if inspect.isclass(value)] if module else []
    stems = {cls.name: cls.__module__.rpartition(".")[2] for cls in found if issubclass(cls, MaskStrategy)}
    return {name: stem.removeprefix(CUSTOM) for name, stem in stems.items()}


def _ship_module(cls: type[MaskStrategy], folder: Path) -> str:
    """Copy the module that defines `cls`, its imports rewritten; return the copy's name without ``.py``."""
    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None)
    if cls.__module__ == "__main__" or file is None or not Path(file).is_file():
        raise ValueError("it is defined in a script or notebook; move it to a module of its own")
    if "." in cls.__qualname__:
        raise ValueError("it is defined inside a function or another class")
    stem = f"{CUSTOM}{Path(file).stem}"
    text = _stand_alone(Path(file).read_text(encoding="utf-8"))
    (folder / f"{stem}.py").write_text(text, encoding="utf-8")
    return stem


def _stand_alone(source: str) -> str:
    """`source` with its imports from this package turned into imports from a sibling file.

    Raises:
        ValueError: if it imports siblings of its own, or more of this package than a checkpoint has.
    """
    package = "hf_semfocus"
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import) and any(alias.name.split(".")[0] == package for alias in node.names):
            raise ValueError(f"its module has `import {package}`; write `from {package} import …` instead")
        if not isinstance(node, ast.ImportFrom):
            continue
        if node.level:
            raise ValueError("its module has relative imports")
        if (node.module or "").split(".")[0] != package:
            continue
        other = sorted({alias.name for alias in node.names} - SHIPPABLE)
        if other:
            raise ValueError(f"its module imports {', '.join(other)} from {package}")
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        names = ", ".join(a.name if a.asname is None else f"{a.name} as {a.asname}" for a in node.names)
        before, after = lines[first][: node.col_offset], lines[last].encode()[node.end_col_offset :].decode()
        if before.strip():
            raise ValueError("its module has several statements on one line with an import")
        # Blank lines keep the line numbers of tracebacks.
        lines[first] = f"{before}from .mask_strategies import {names}{after}"
        lines[first + 1 : last + 1] = ["\n"] * (last - first)
    return "".join(lines)
