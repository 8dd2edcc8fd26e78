"""A user's file or module, imported so that the tasks and mask strategies that it registers have their names."""

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..data import TaskInfo


def import_strategies(names: Iterable[str]) -> None:
    """Imports each of `names`: a Python file ("my_masks.py") or a module ("my_package.masks"). Twice is once.

    A file becomes the module of its stem, as if its folder were on the path.

    Raises:
        ValueError: there is no such file or module, or importing it failed; the message says why.
    """
    for name in names:
        file = Path(name).expanduser().resolve() if name.endswith(".py") else None
        module = file.stem if file else name
        known = getattr(sys.modules.get(module), "__file__", None)
        if module in sys.modules and (file is None or (known and Path(known).resolve() == file)):
            continue
        try:
            if file is not None:
                _import_file(module, file)
            else:
                importlib.import_module(module)
        except (
            Exception,
            SystemExit,
        ) as error:  # whatever the user's code raises, the message must say which file it came from
            raise ValueError(f"importing {name!r} failed: {type(error).__name__}: {error}") from error


def known_task(name: str, answer: str | None, imports: Iterable[str]) -> "TaskInfo":
    """Facts about the task of a stored run: one that is not registered is in a file that the run imported."""
    from ..data import list_tasks, task_info

    if name not in list_tasks():
        import_strategies(imports)
    return task_info(name, answer)


def _import_file(name: str, file: Path) -> None:
    if name in sys.modules:
        raise ImportError(f"another module is called {name!r}; give the file another name")
    if not file.is_file():
        raise FileNotFoundError(f"no such file: {file}")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None  # noqa: PT018  (a .py file always has both)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
