"""`semfocus compare`: train every task × mask × seed and report how fast each mask learns beside full attention."""

import argparse
from pathlib import Path
from typing import Any

from .parsing import add_command, add_run_options, asked, described, integer, one, path, place
from .terminal import console, quiet_libraries


def add_parser(commands: Any) -> None:
    """Adds `compare`."""
    example = "semfocus compare --preset quickstart --output runs/quickstart --jobs 2"
    parser = add_command(commands, *described(__doc__), example, run)
    add = parser.add_argument
    add(
        "--preset",
        help="quickstart (minutes), cpu (7 tasks), paper (the authors' recipe, 8 tasks), paper-nnch (7 of them)",
    )
    add("--config", type=path, help="YAML or JSON file with an experiment (or an experiment.json) instead of a preset")
    text = "the run directory, or a URL (s3://bucket/name); started again, it goes on where it stopped"
    add("--output", type=place, required=True, help=text)
    add("--jobs", type=int, help="runs at once (default: as many as there are cores for)")
    add("--engine", default="local", help="local (processes here), ray (a cluster) or inline (this process)")
    add("--address", metavar="HOST:PORT", help="with --engine ray: the cluster's head, or auto (default: Ray's)")
    add("--cpus-per-run", type=int, default=1, help="cores, and torch threads, of a run")
    add("--gpus-per-run", type=float, default=0, help="with --engine ray: GPUs of a run; 0.25 shares one")
    add("--tasks", nargs="+", type=one, help="these tasks instead of the preset's")
    add("--masks", nargs="+", type=one, help="these masks, or variants, instead of the preset's")
    add("--seeds", nargs="+", type=integer, help="these seeds instead of the preset's")
    add_run_options(parser, "the preset's or the file's")


def run(options: argparse.Namespace) -> int:
    """Trains what is not finished, with a bar a run, and writes the summary, the report and the cards."""
    from dataclasses import replace

    from ..experiments.experiment import CHANGED, Experiment, changed_note, once
    from ..experiments.options import merged
    from ..experiments.presets import preset

    if (options.preset is None) == (options.config is None):
        raise ValueError("give one of --preset NAME and --config FILE, and not both")
    base = preset(options.preset) if options.preset is not None else Experiment.from_yaml(options.config)
    settings = asked(options)
    imports = {"imports": settings.pop("imports")} if "imports" in settings else {}
    values = {
        **base.to_dict(),
        "defaults": {**base.defaults, **imports},
        "tasks": {
            name: merged(base.tasks.get(name, {}), settings)
            for name in once("tasks", options.tasks or list(base.tasks))
        },
        "masks": options.masks or list(base.masks),
        "seeds": options.seeds or list(base.seeds),
    }
    experiment = Experiment.from_dict(values)
    note = changed_note(base, experiment)
    if note is not None:
        experiment = replace(experiment, name=base.name.removesuffix(CHANGED) + CHANGED, note=note)
    quiet_libraries()
    from ..comparison.bucket import is_url
    from ..comparison.compare import compare
    from ..comparison.engines import Wanted, make_engine
    from ..comparison.run_directory import RunDirectory, read_experiment
    from ..comparison.storage import open_store
    from ..training.environment import process_state
    from .card import comparison_cards
    from .progress import ComparisonBars
    from .report import show

    folder = Path(options.output)
    command, record = options.command_line, folder / "experiment.json"
    if options.config is not None and Path(options.config).resolve() == record.resolve():
        # A record that names itself would not say how it came about.
        first = read_experiment(folder).command or command
        command = first if note is None else f"{first} && {command}"
    out = console()
    wanted = Wanted(options.jobs, options.cpus_per_run, options.gpus_per_run, options.address)
    engine = make_engine(options.engine, wanted)
    with ComparisonBars(len(experiment.units()), out) as bars:
        results = compare(experiment, options.output, command=command, on_progress=bars.update, engine=engine)
    if not process_state().is_main_process:
        return 0
    store = open_store(options.output)
    directory = RunDirectory.read(store.folder)
    if not is_url(options.output):  # a URL's copy has no models
        comparison_cards(directory, out, changed_only=True)
    show(store, directory, out)
    return 1 if any(result.status == "failed" for result in results) else 0
