"""`semfocus demo`: a comparison's report as a folder that runs as a static Space, or an app on this machine that takes inputs."""

import argparse
from pathlib import Path
from typing import Any

from .parsing import add_command, path
from .terminal import console

SPACE = """---
title: {title}
emoji: 🔍
colorFrom: blue
colorTo: green
sdk: static
pinned: false
tags: [hf-semfocus, attention]
---

The report of a comparison by hf-semfocus, made by `{command}`. `index.html` loads nothing from anywhere.
"""


def add_parser(commands: Any) -> None:
    """Adds `demo`."""
    text = "make a folder that runs as a static Space (the report, with what masks attend to while they learn), or start an app"
    parser = add_command(commands, "demo", text, "semfocus demo runs/quickstart --output runs/demo", run)
    parser.add_argument("directory", type=path, help="a run directory of `semfocus compare`, best with --snapshots")
    parser.add_argument("--output", type=path, help="the folder to make")
    parser.add_argument(
        "--serve",
        action="store_true",
        help="instead: an app here, where you type an input and see the answer and the attention (gradio)",
    )
    parser.add_argument("--port", type=int, help="of the app (default: the first free one from 7860)")


def run(options: argparse.Namespace) -> int:
    """Writes `index.html` (the report, with the attention slider where runs stored snapshots) and the Space's `README.md`; or serves."""
    if (options.output is None) != options.serve:
        raise ValueError("give one of --output FOLDER and --serve")
    if options.port is not None and not 1 <= options.port <= 65535:
        raise ValueError(f"port is {options.port}; allowed: 1 … 65535")
    if options.serve:
        return _serve(options)
    from ..comparison.summary import write_summary
    from ..files import atomic_write, json_text
    from ..report.html import write_report

    folder, output = Path(options.directory), Path(options.output)
    if (output / "experiment.json").exists():
        raise ValueError(f"--output {output} is a run directory; give another folder, such as {output / 'demo'}")
    summary = write_summary(folder)
    title = json_text(f"{summary.name or 'A comparison'} of attention masks").strip()  # quoted, as YAML takes it
    atomic_write(output / "index.html", write_report(folder, summary).read_bytes())
    atomic_write(output / "README.md", SPACE.format(title=title, command=options.command_line))
    console().print(f"demo: {output / 'index.html'}", soft_wrap=True, highlight=False)
    return 0


def _serve(options: argparse.Namespace) -> int:
    """Runs the app until it is interrupted."""
    console().print("demo: starting the app …")
    from .demo_app import build, launch
    from .terminal import quiet_libraries

    quiet_libraries()
    app = build(options.directory)
    console().print(f"demo: {launch(app, options.port)} (Ctrl-C ends it)", soft_wrap=True, highlight=False)
    app.block_thread()
    return 0
