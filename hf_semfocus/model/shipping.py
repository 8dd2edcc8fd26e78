"""What ``save_pretrained`` puts beside the weights so that a checkpoint loads without this package installed.

The files of this folder are copied as they are; Transformers' loader follows their ``from .x import y`` lines. A mask
strategy of the user's own comes along when its module is simple enough to stand alone.
"""

import ast
import inspect
import io
import re
import shutil
import sys
import tokenize
import unicodedata
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers.dynamic_module_utils import get_relative_import_files

from .mask_base import MaskStrategy
from .mask_registry import mask_parts

MODELING = "modeling_semfocus"
EXTENSIONS = "mask_extensions"
CUSTOM = "custom_"  # what the names of shipped user modules begin with

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
    "Structure",
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
    """``auto_map`` with all our entries, and with those of a user's classes in files that are not ours."""
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
        UserWarning: if a user's strategy cannot be shipped; the checkpoint then loads only where its
            module was imported first.
    """
    for file in code_files():
        _copy(file, folder / file.name)
    imports = []
    modules = _own_modules(masks)
    for cls, module in modules.items():
        if isinstance(module, ValueError):
            warnings.warn(
                f"mask strategy {cls.name!r} ({cls.__module__}.{cls.__qualname__}) is not in the checkpoint {folder}: "
                f"{module}. Loading it needs a process that has registered it (imported {cls.__module__!r})"
            )
            continue
        stem, text = module
        (folder / f"{stem}.py").write_text(text, encoding="utf-8")
        imports.append(f"from .{stem} import {cls.__qualname__}")
    if imports:
        text = '"""The mask strategies that this checkpoint uses beyond those of hf_semfocus."""\n\n'
        (folder / f"{EXTENSIONS}.py").write_text(text + "".join(f"{line}\n" for line in imports), encoding="utf-8")
    shipped = _shipped_extensions()
    return {**shipped, **{cls.name: cls.__module__ for cls in modules}} or None


def where_from(strategy: str, source: str) -> str:
    """How a user's strategy, which module `source` registered, can be had."""
    if source == "__main__":
        where, what_to_do = "main script or notebook", "run the code that registers it before loading it"
    else:
        where = f"module {source!r}"
        # Where the package is imported, Transformers takes it and leaves the checkpoint's code alone.
        what_to_do = (
            f"`import {source}` before loading it, or, if the checkpoint holds {CUSTOM}{source.rpartition('.')[2]}.py, load it by "
            "trust_remote_code=True in a process that has not imported hf_semfocus"
        )
    return f"The strategy {strategy!r} was registered by the {where} when this checkpoint was saved: {what_to_do}"


def check_ships(masks: Sequence[MaskStrategy]) -> None:
    """Raises `ValueError` if a checkpoint with these masks would lack the code of one of them; it says which and why."""
    for cls, module in _own_modules(masks).items():
        if isinstance(module, ValueError):
            raise ValueError(
                f"mask strategy {cls.name!r} ({cls.__module__}.{cls.__qualname__}) cannot go into a checkpoint: {module}"
            )


def _copy(source: Path, target: Path) -> None:
    if not (target.exists() and source.samefile(target)):
        shutil.copyfile(source, target)


def _shipped_extensions() -> dict[str, str]:
    """Strategies that came with the checkpoint that this code itself was loaded from."""
    module = sys.modules.get(f"{__name__.rpartition('.')[0]}.{EXTENSIONS}")
    classes = [value for value in vars(module).values() if inspect.isclass(value)] if module else []
    stems = {cls.name: cls.__module__.rpartition(".")[2] for cls in classes if issubclass(cls, MaskStrategy)}
    return {name: stem.removeprefix(CUSTOM) for name, stem in stems.items()}


def _own_modules(masks: Sequence[MaskStrategy]) -> dict[type[MaskStrategy], tuple[str, str] | ValueError]:
    """For every strategy that is not built in, the name (without ``.py``) and source of its module's copy, or why there is none."""
    classes = {type(part) for mask in masks for part in mask_parts(mask)}
    classes = {cls for cls in classes if cls.__module__.rpartition(".")[0] != __name__.rpartition(".")[0]}
    shipped: dict[type[MaskStrategy], tuple[str, str] | ValueError] = {}
    modules: dict[str, str] = {}
    for cls in sorted(classes, key=lambda cls: cls.name):
        try:
            stem, text = _own_module(cls)
            if modules.setdefault(stem, cls.__module__) != cls.__module__:
                raise ValueError(
                    f"{modules[stem]} and {cls.__module__} would both be {stem}.py; give one another name"
                )
            shipped[cls] = stem, text
        except ValueError as error:
            shipped[cls] = error
    return shipped


def _own_module(cls: type[MaskStrategy]) -> tuple[str, str]:
    """The name and source of the copy of the module that defines `cls`; `ValueError` if there can be none."""
    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None)
    if cls.__module__ == "__main__" or file is None or not Path(file).is_file():
        raise ValueError("it is defined in a script or notebook; move it to a module of its own")
    if "." in cls.__qualname__:
        raise ValueError("it is defined inside a function or another class")
    stem = f"{CUSTOM}{Path(file).stem}"
    if not stem.isidentifier() or unicodedata.normalize("NFKC", stem) != stem:
        raise ValueError(
            f"its file is {Path(file).name!r}; allowed: a name that can be imported, of letters, digits and '_'"
        )
    try:
        with tokenize.open(file) as opened:  # as Python reads it: byte order marks, encodings that a comment names
            source = opened.read()
        return stem, _stand_alone(source)
    except (SyntaxError, UnicodeDecodeError) as error:  # edited since it was imported
        raise ValueError(f"its file {Path(file).name!r} is no Python ({error})") from None


def _stand_alone(source: str) -> str:
    """`source` with its imports from this package turned into imports from a sibling file.

    Raises:
        ValueError: if it imports its siblings, or more of this package than a checkpoint has.
    """
    package = "hf_semfocus"
    lines = list(io.StringIO(source))  # str.splitlines would also split at form feeds and other characters
    for number, line in enumerate(lines[:2]):  # the copy is UTF-8, whatever the original says that it is
        lines[number] = re.sub(r"^([ \t\f]*#.*?coding[:=][ \t]*)[-\w.]+", r"\1utf-8", line)
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
            raise ValueError(
                f"its module imports {', '.join(other)} from {package}; allowed: {', '.join(sorted(SHIPPABLE))}"
            )
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        names = ", ".join(a.name if a.asname is None else f"{a.name} as {a.asname}" for a in node.names)
        before, after = lines[first][: node.col_offset], lines[last].encode()[node.end_col_offset :].decode()
        if before.strip():
            raise ValueError("its module has several statements on one line with an import")
        # Blank lines keep the line numbers of tracebacks.
        lines[first] = f"{before}from .mask_strategies import {names}{after}"
        lines[first + 1 : last + 1] = ["\n"] * (last - first)
    text = "".join(lines)
    # Transformers finds what to copy by lines like this one, also in texts and comments.
    if others := set(re.findall(r"^\s*from\s+\.(\S+)\s+import", text, re.MULTILINE)) - {"mask_strategies"}:
        raise ValueError(
            f"a text in its module has the line `from .{sorted(others)[0]} import …`, which would be looked for"
        )
    return text
