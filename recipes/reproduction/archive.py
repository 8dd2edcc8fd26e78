"""Packs a comparison's evidence into recipes/results/NAME/: small, and enough to make every number again.

python -m recipes.reproduction.archive runs/reduced --as reduced
python -m recipes.reproduction.archive --unpack recipes/results/reduced --to /tmp/reduced && semfocus report /tmp/reduced

`semfocus compare --config recipes/reduced.yaml --output /tmp/reduced` goes on from an unpacked one: finished runs are kept as they are,
unfinished ones go on from their last checkpoint where that is small enough to be stored (2 MB), and begin again where it is not.

What it holds: `histories.tar.xz` (experiment.json and every run's spec.json, history.jsonl and result.json, and the checkpoints of
unfinished runs: a run directory without finished models, which `semfocus report` reads), `summary.json` (without the histories,
which the archive has), `summary.csv`, `speedups.csv`, the report's pictures of at most 400 kB, and `README.md` (command, versions,
machine, what is finished and what is not, core-hours). The comparison may be running: unfinished runs are stored as such. The same
state gives the same bytes, and a folder of the same name is replaced at once, unless runs would be lost (--replace).
"""

import argparse
import io
import json
import lzma
import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hf_semfocus.comparison.run_directory import RunDirectory, read_experiment
from hf_semfocus.comparison.summary import write_summary
from hf_semfocus.files import atomic_folder, atomic_write, read_json, read_record, write_json
from hf_semfocus.report.files import render_figure
from hf_semfocus.report.html import PICTURES
from hf_semfocus.report.palette import LIGHT
from hf_semfocus.report.spreadsheets import write_spreadsheets
from hf_semfocus.schema import FINISHED
from hf_semfocus.summary_schema import Summary
from hf_semfocus.training.checkpoints import check_manifest, latest_complete_checkpoint, write_manifest
from hf_semfocus.training.run_files import read_run

from .blocks import RESULTS, ROOT
from .stored_readme import ARCHIVE, about, core_hours, counts

LARGEST_PICTURE = 400_000  # bytes; a picture beyond it is left out, and `semfocus report` draws it again
LARGEST_CHECKPOINT = 2_000_000  # bytes, of an unfinished run; one beyond it is left out, and the run begins again
# The result before the history: a run that ends in between is then seen without its result, never with half of its epochs.
RUN_FILES = ("spec.json", "result.json", "history.jsonl")
MACHINES = "machines.json"
NOT_NEEDED = "training_args.bin"  # of a checkpoint: nothing reads it, and it says where the run was


def store(run_dir: Path, target: Path, pictures: Iterable[str] = PICTURES, replace: bool = False) -> Summary:
    """Writes `target` from `run_dir` and returns the summary as it is stored.

    Args:
        run_dir: of a comparison, at work or ended.
        target: a folder; what it held is replaced once the new content is complete.
        pictures: names of the report's pictures to draw.
        replace: also where `target` holds runs that would be lost.

    Raises:
        ValueError: `run_dir` is no run directory or is damaged; `target` holds something else, another comparison, or
            finished runs that `run_dir` has not.
    """
    if target.exists() and not (target / ARCHIVE).is_file():
        raise ValueError(f"{target} holds no stored comparison; choose another name")
    with atomic_folder(target) as made, tempfile.TemporaryDirectory() as temporary:
        snapshot = Path(temporary) / "runs"
        try:
            _copy(run_dir, snapshot)
            summary = write_summary(snapshot)
        except ValueError as error:  # what is damaged is the user's file, not our copy of it
            raise ValueError(f"{run_dir}: {str(error).replace(str(snapshot), str(run_dir))}") from error
        write_spreadsheets(summary, made)
        kept = stored_summary(summary)
        if target.exists() and not replace:
            earlier = read_record(target / "summary.json", Summary, "give --replace to write over it")
            if (missing := lost(earlier, kept)) is not None:
                raise ValueError(f"{target} holds {missing}; choose another name, or give --replace")
        write_json(made / "summary.json", kept.to_json())
        (made / ARCHIVE).write_bytes(packed(snapshot))
        left_out = []
        for name in pictures:
            figure = PICTURES[name][0](summary, LIGHT)
            content = render_figure(figure, "png") if figure is not None else b""
            if len(content) > LARGEST_PICTURE:
                left_out.append(name)
            elif content:
                (made / f"{name}.png").write_bytes(content)
        checkpoints = len(list(snapshot.glob("runs/*/*/seed-*/checkpoints")))
        atomic_write(made / "README.md", about(kept, made, target.name, left_out, checkpoints))
    return kept


def lost(earlier: Summary, now: Summary) -> str | None:
    """What of a stored summary the new one does not have, in words; None: nothing is lost.

    A larger budget loses nothing: its runs go on from the earlier ones.
    """
    settings, finished = [], []
    for summary in (earlier, now):
        settings.append(
            {
                task.name: (
                    (task.length, task.train_size, task.test_size),
                    task.hyperparameters["model"],
                    task.hyperparameters.get("task_options"),
                    {**task.hyperparameters["training"], "epochs": None},
                )
                for task in summary.tasks
                if task.length is not None
            }
        )
        finished.append({f"{run.task}/{run.mask}/seed-{run.seed}" for run in summary.runs if run.status in FINISHED})
    before, after = settings
    if other := next((name for name in before if name in after and before[name] != after[name]), None):
        return f"another comparison, with other settings of {other}"
    if gone := sorted(finished[0] - finished[1]):
        return f"{len(gone)} finished runs that are not there now, {gone[0]} among them"
    return None


def stored_summary(summary: Summary) -> Summary:
    """The summary without the runs' histories, which are most of it and lie in the archive."""
    values = summary.to_json()
    for run in values["runs"]:
        run.pop("history", None)
    return Summary.model_validate(values)


def _copy(run_dir: Path, snapshot: Path) -> None:
    """The files of the runs, with the places of this machine taken out of them."""
    # Which library computes products is each worker's own; its result says it.
    machine = {**(read_experiment(run_dir).machine or {})}
    machine.pop("products", None)
    finished = _finished(run_dir)
    snapshot.mkdir()
    experiment = (run_dir / "experiment.json").read_text("utf-8")
    (snapshot / "experiment.json").write_text(_portable(experiment), encoding="utf-8")
    for folder in sorted((run_dir / "runs").glob("*/*/seed-*")):
        copy = snapshot / folder.relative_to(run_dir)
        if folder not in finished:
            _copy_checkpoint(folder, copy)
        # After the checkpoint: of a run that ends in between both are there then, and the result counts.
        for name in RUN_FILES:
            if (folder / name).is_file():
                copy.mkdir(parents=True, exist_ok=True)
                (copy / name).write_text(_portable((folder / name).read_text("utf-8")), encoding="utf-8")
    ended = _finished(snapshot)
    for copy in sorted(snapshot.glob("runs/*/*/seed-*")):
        if copy in ended:
            shutil.rmtree(copy / "checkpoints", ignore_errors=True)
        _write_machines(run_dir / copy.relative_to(snapshot), copy, machine)


def _finished(run_dir: Path) -> set[Path]:
    """The folders of the runs that do not go on; one that failed, or that a larger budget is asked for now, does."""
    return {run.folder for run in RunDirectory.read(run_dir).runs if run.folder and run.status in FINISHED}


def _copy_checkpoint(folder: Path, copy: Path) -> None:
    """The last complete checkpoint of an unfinished run, if it is small; the run may be at work and replace it meanwhile."""
    for _ in range(3):
        checkpoint = latest_complete_checkpoint(folder / "checkpoints")
        if checkpoint is None:
            return
        stored = copy / "checkpoints" / checkpoint.name
        try:
            if sum(path.stat().st_size for path in checkpoint.rglob("*")) > LARGEST_CHECKPOINT:
                return
            shutil.copytree(checkpoint, stored)
            check_manifest(stored)
        except (OSError, ValueError):  # gone, or going, since there is a newer one
            shutil.rmtree(stored.parent, ignore_errors=True)
            continue
        (stored / NOT_NEEDED).unlink(missing_ok=True)
        write_manifest(stored)
        return


def _write_machines(folder: Path, copy: Path, machine: Mapping[str, Any]) -> None:
    """Which machine trained a run up to which epoch, of a run that is stored unfinished: elsewhere its result has the last one alone.

    `machine` is where the comparison was last at work. A run that has no further epoch since it was last stored has not been there.
    """
    machines = read_json(folder / MACHINES) if (folder / MACHINES).is_file() else []
    before = machines[-1]["epochs"] if machines else 0
    run = read_run(copy)
    if run is None:
        return
    checkpoint = latest_complete_checkpoint(copy / "checkpoints")
    if checkpoint is not None:
        epochs = round(read_json(checkpoint / "trainer_state.json")["epoch"])
    elif machines and run.result is not None:
        epochs, machine = len(run.history), run.result.machine
    else:
        return  # it begins again, or its result says all
    if epochs > before:
        if machines and same_machine(machines[-1]["machine"], machine):
            machines.pop()
        machines.append({"machine": machine, "epochs": epochs})
    write_json(copy / MACHINES, machines)


def same_machine(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether two records agree in all that both have; a machine that was not recorded is none that is known."""
    return bool(first and second) and all(first[name] == second[name] for name in first.keys() & second.keys())


def _portable(text: str) -> str:
    """Paths of this checkout become relative, those of the user's home "~": where files lay is nobody else's business."""
    text = text.replace(f"{ROOT}/", "")
    for place, instead in ((ROOT, "."), (Path.home(), "~")):
        text = re.sub(rf"{re.escape(str(place))}(?![\w.-])", instead, text)
    text = re.sub(r"(--output[ =])/[^\s\"]*/([^\s\"/]+)", r"\1runs/\2", text)
    # An experiment of another checkout: its file is the same here.
    return re.sub(r"(?<![\w.~/-])/[^\s\"]*/(recipes/[^\s\"]+\.yaml)", r"\1", text)


def packed(run_dir: Path) -> bytes:
    """The run directory's evidence as .tar.xz: the same files give the same bytes (no dates, owners or order of a disk)."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in [run_dir / "experiment.json", *sorted(run_dir.glob("runs/*/*/seed-*/**/*"))]:
            if path.is_dir():
                continue
            content = path.read_bytes()
            entry = tarfile.TarInfo(path.relative_to(run_dir).as_posix())
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return lzma.compress(raw.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def unpack(stored: Path, folder: Path) -> Path:
    """The run directory that a stored result was packed from, in `folder`.

    Raises:
        ValueError: `stored` is no stored comparison; `folder` has something in it already, which may be a comparison's own
            runs; or the archive is damaged.
    """
    if not (stored / ARCHIVE).is_file():
        there = sorted(path.parent.name for path in RESULTS.glob(f"*/{ARCHIVE}"))
        raise ValueError(
            f"{stored} holds no stored comparison; below {RESULTS.relative_to(ROOT)} are {', '.join(there)}"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is not empty; choose another folder")
    try:
        # Read to its end first: half an archive would look like a complete one with fewer runs.
        raw = io.BytesIO(lzma.decompress((stored / ARCHIVE).read_bytes()))
        with atomic_folder(folder) as made, tarfile.open(fileobj=raw, mode="r:") as archive:
            archive.extractall(made, filter="data")
            archive.getmember("experiment.json")
    except (tarfile.TarError, EOFError, lzma.LZMAError, KeyError) as error:
        raise ValueError(f"{stored / ARCHIVE} is damaged: {error}") from error
    return folder


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_directory", nargs="?", type=Path, help="what `semfocus compare` writes")
    parser.add_argument("--as", dest="name", help="the folder's name below recipes/results")
    parser.add_argument("--replace", action="store_true", help="also where the name holds runs that would be lost")
    parser.add_argument("--unpack", type=Path, metavar="STORED", help="a folder that this command wrote")
    parser.add_argument("--to", type=Path, metavar="DIR", help="where --unpack puts the run directory")
    options = parser.parse_args(arguments)
    try:
        if (options.unpack is None) != (options.to is None):
            parser.error("--unpack STORED and --to DIR belong together")
        if options.unpack is not None and (options.run_directory or options.name or options.replace):
            parser.error("--unpack takes --to alone: what is stored is unpacked, not made")
        if options.unpack is not None:
            print(unpack(options.unpack, options.to))
            return 0
        if options.run_directory is None or options.name is None:
            parser.error("give a run directory and --as NAME, or --unpack STORED and --to DIR")
        if not re.fullmatch(r"[a-z0-9_]+", options.name):
            raise ValueError(f"--as is {options.name!r}; allowed: small letters, digits and '_'")
        summary = store(options.run_directory, RESULTS / options.name, replace=options.replace)
    except (ValueError, OSError) as error:
        print(f"archive: {error}", file=sys.stderr)
        return 2
    counted = json.dumps(counts(summary)).strip("{}").replace('"', "")
    print(f"recipes/results/{options.name}: {counted}; {core_hours(summary):.2f} core-hours")
    return 0


if __name__ == "__main__":
    sys.exit(main())
