"""The command `semfocus`, in front of the package: importing that takes seconds (torch, Transformers), which `--help`, `--version` and a
mistyped option need not wait for. `hf_semfocus/cli/main.py` is read as the module that it is, and its commands import what they need."""

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line, see `hf_semfocus.cli.main.main`."""
    package = importlib.util.find_spec("hf_semfocus")  # finds it, and imports nothing
    assert package is not None and package.origin is not None  # noqa: PT018  # it lies beside this file
    spec = importlib.util.spec_from_file_location(
        "hf_semfocus.cli.main", Path(package.origin).with_name("cli") / "main.py"
    )
    assert spec is not None and spec.loader is not None  # noqa: PT018
    cli = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = cli
    spec.loader.exec_module(cli)
    cli.main(arguments)


if __name__ == "__main__":
    main()
