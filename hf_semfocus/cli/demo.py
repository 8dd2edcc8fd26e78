"""`semfocus demo`: a comparison's report as a folder that runs as a static Space, without a server."""

import argparse
from pathlib import Path
from typing import Any

SPACE = """---
title: {title}
emoji: 🔍
colorFrom: blue
colorTo: green
sdk: static
pinned: false
tags: [hf-semfocus, attention]
---

{title}: the report of a comparison by hf-semfocus, made by `{command}`. `index.html` loads nothing from anywhere.
"""


def run_demo(options: argparse.Namespace, console: Any) -> int:
    """Writes `index.html` (the report, with the attention slider where runs stored snapshots) and the Space's `README.md`."""
    from ..comparison.summary import write_summary
    from ..files import json_text, write_atomically
    from ..report.html import write_report

    output = Path(options.output)
    summary = write_summary(Path(options.directory))
    page = write_report(Path(options.directory))
    title = json_text(f"{summary['name'] or 'A comparison'} of attention masks").strip()  # quoted, as YAML takes it
    write_atomically(output / "index.html", page.read_bytes())
    write_atomically(output / "README.md", SPACE.format(title=title, command=options.command_line))
    console.print(f"demo: {output / 'index.html'}", soft_wrap=True, highlight=False)
    return 0
