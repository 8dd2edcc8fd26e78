"""Modules of recipes/, for tests."""

import importlib
import sys
from pathlib import Path

RECIPES = Path(__file__).parents[2] / "recipes"


def recipe(name):
    """A module of recipes/, with its neighbours within reach as they are for a script."""
    sys.path.insert(0, str(RECIPES))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(RECIPES))
