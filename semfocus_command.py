"""The command `semfocus`, beside the package: importing that takes seconds (torch, Transformers), which `--help`, `--version` and a
mistyped option need not wait for. The command line is loaded without its parent, and its commands import what they need; those in
`LIGHT` need nothing that the parent's own file does."""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

LIGHT = ("status",)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line, see `hf_semfocus.cli.main.main`."""
    package = importlib.util.find_spec("hf_semfocus")  # finds it, and imports nothing
    assert package is not None and package.origin is not None  # noqa: PT018  # it lies beside this file
    asked = list(sys.argv[1:] if arguments is None else arguments)
    if asked[:1] and asked[0] in LIGHT:
        sys.modules.setdefault(package.name, importlib.util.module_from_spec(package))
    folder = Path(package.origin).with_name("cli")
    spec = importlib.util.spec_from_file_location(
        "hf_semfocus.cli", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None  # noqa: PT018
    sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[spec.name])
    importlib.import_module("hf_semfocus.cli.main").main(arguments)


if __name__ == "__main__":
    main()
