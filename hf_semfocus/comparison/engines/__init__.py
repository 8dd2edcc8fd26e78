"""Where the runs of a comparison are trained: an engine a file, each with a `make(wanted)`."""

import pkgutil
from importlib import import_module

from .base import Engine, Wanted


def engine_names() -> list[str]:
    """The engines that there are."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name != "base")


def make_engine(name: str, wanted: Wanted) -> Engine:
    """The engine of that name, ready to take runs; a context manager.

    Raises:
        ValueError: there is no such engine, its library is missing, its cluster cannot be reached or has too little for a run.
    """
    if name not in engine_names():
        raise ValueError(f"engine is {name!r}; allowed: {', '.join(engine_names())}")
    return import_module(f"{__name__}.{name}").make(wanted)
