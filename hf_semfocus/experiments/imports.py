"""A user's file or module, imported so that the mask strategies it registers have their names, and the digest of their source."""

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable
from pathlib import Path

from ..model.mask_strategies import MaskStrategy, mask_parts


def import_strategies(names: Iterable[str]) -> None:
    """Imports each of `names`: a Python file ("my_masks.py") or a module ("my_package.masks"). Twice is once.

    A file becomes the module of its stem, as if its folder were on the path.

    Raises:
        ValueError: there is no such file or module, or importing it failed; the message says why.
    """
    for name in names:
        file = Path(name).expanduser().resolve() if name.endswith(".py") else None
        module = file.stem if file else name
        if module in sys.modules and (file is None or _file_of(sys.modules[module]) == file):
            continue
        try:
            if file is not None:
                _import_file(module, file)
            else:
                importlib.import_module(module)
        except Exception as error:  # whatever the user's code raises, the message must say which file it came from
            raise ValueError(f"importing {name!r} failed: {type(error).__name__}: {error}") from error


def source_digest(mask: MaskStrategy) -> str | None:
    """A digest of the files that define a user's strategies in `mask`; None where all are built in."""
    classes = {type(part) for part in mask_parts(mask)}
    files = {
        inspect.getsourcefile(cls)
        for cls in classes
        if not cls.__module__.startswith(MaskStrategy.__module__.partition(".")[0] + ".")
    }
    if not files:
        return None
    texts = sorted(Path(file).read_bytes() if file and Path(file).is_file() else b"" for file in files)
    return hashlib.blake2b(b"".join(texts), digest_size=8).hexdigest()


def _file_of(module) -> Path | None:
    return Path(module.__file__).resolve() if getattr(module, "__file__", None) else None


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
