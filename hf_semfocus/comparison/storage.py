"""Where a comparison is kept: a folder that every worker sees, or a URL of any file system that fsspec knows.

A folder is used as it is. Under a URL `experiment.json`, `report.html` and the like stand as in a folder, and runs as `attempts` has them.
"""

import contextlib
import hashlib
import json
import shutil
from pathlib import Path, PurePosixPath
from typing import Any

from huggingface_hub.constants import HF_HOME
from pydantic import BaseModel

from ..files import AnyRecord, atomic_write, json_text, parse_record, read_record, write_json
from ..schema import ExperimentRecord
from ..training.checkpoints import latest_complete_checkpoint
from ..training.run_files import SNAPSHOTS
from .attempts import LAST_OF_RUN, PATIENCE_SECONDS, newest, parsed, read_manifest, unpack, write_records
from .bucket import Bucket, checked_place, is_url
from .records import CopiedManifest, Placements
from .run_directory import REMAKE

CACHE = Path(HF_HOME) / "semfocus"
"""Copies of what URLs hold."""
PROGRESS = "progress.json"
CHECKED: dict[str, type[BaseModel]] = {"experiment.json": ExperimentRecord, "placements.json": Placements}
OURS_TO_REMAKE = (*CHECKED, PROGRESS)


class Store:
    """A comparison in a folder."""

    def __init__(self, folder: Path):
        self.folder, self.shown = folder, str(folder)

    def place(self, run: str) -> str:
        """Where a worker finds a run."""
        return str(self.folder / "runs" / run)

    def refresh(self, models: bool = False, only: str | None = None) -> None:
        """Brings `folder` up to date."""

    def put(self, *names: str) -> None:
        """Makes files of the folder known to others."""

    def tell(self, name: str, value: Any) -> None:
        """Writes a file of JSON that is of use only now: where it cannot be written, it is not."""
        with contextlib.suppress(OSError):
            write_json(self.folder / name, value)

    def told(self, name: str, model: type[AnyRecord]) -> AnyRecord | None:
        """What `tell` wrote last; None for nothing."""
        path = self.folder / name
        return read_record(path, model, "remove it") if path.is_file() else None

    def put_report(self) -> None:
        """Makes all files but the runs' known to others."""

    def goes_on(self, run: str) -> bool:
        """Whether a run's weights are kept, so that it can go on."""
        return latest_complete_checkpoint(self.folder / "runs" / run / "checkpoints") is not None


class UrlStore(Store):
    """A comparison under a URL; `folder` is a copy of its records."""

    def __init__(self, url: str):
        self.bucket = Bucket(url)
        digest = hashlib.blake2b(self.bucket.url.encode(), digest_size=8).hexdigest()
        super().__init__(CACHE / f"{PurePosixPath(self.bucket.root).name}-{digest}")
        self.shown = self.bucket.url

    def place(self, run: str) -> str:
        """The run's URL."""
        return f"{self.bucket.url}/runs/{run}"

    def refresh(self, models: bool = False, only: str | None = None) -> None:
        """Gets what is new: the records of all runs, or of one, and their models if asked for."""
        for file, model in CHECKED.items():  # here: a reader of the copy would name the copy
            content = self.bucket.read(file)
            if content is None:
                (self.folder / file).unlink(missing_ok=True)
            else:
                parse_record(content, model, f"{self.shown}/{file}", REMAKE)
                atomic_write(self.folder / file, content)
        files: dict[str, list[str]] = {}
        for path in self.bucket.listed("manifests"):
            run, _, file = path.rpartition("/")
            files.setdefault(run, []).append(file)
        self.bucket.patience = PATIENCE_SECONDS  # it answers: from now on it may be away for a while
        names = {run: name for run, found in files.items() if (name := newest(found)) is not None}
        for folder in (self.folder / "runs").glob("*/*/seed-*"):
            if folder.relative_to(self.folder / "runs").as_posix() not in names:
                shutil.rmtree(folder)
        wanted = [run for run in names if only in (None, run)]
        new = [run for run in wanted if (self._known(run) or {}).get("name") != names[run]]
        for run, content in self._contents({run: names[run] for run in new}).items():
            known = None if content is None else parsed(self.bucket, run, names[run], content)
            manifest = known or read_manifest(self.bucket, run)
            assert manifest is not None, run
            folder = self.folder / "runs" / run
            for part in ("model", SNAPSHOTS):
                shutil.rmtree(folder / part, ignore_errors=True)
            write_records(folder, manifest.pop("records"))  # over the old ones: others read this copy too
            atomic_write(folder / ".manifest.json", json.dumps(manifest))
        for run in wanted:
            for path, entry in (self._known(run) or {})["objects"].items():
                asked = path == SNAPSHOTS or (models and path == "model")
                if asked and not (self.folder / "runs" / run / path).exists():
                    unpack(self.bucket, run, path, entry, self.folder / "runs" / run)

    def _contents(self, files: dict[str, str]) -> dict[str, bytes | None]:
        """The manifests themselves, many at a time; None for one that a newer one has replaced meanwhile."""
        paths = {self.bucket.path("manifests", run, file): run for run, file in files.items()}
        found = self.bucket.ask(lambda: self.bucket.files.cat(list(paths), on_error="return")) if paths else {}
        contents = {paths[path]: content for path, content in found.items()}
        return {run: content if isinstance(content, bytes) else None for run, content in contents.items()}

    def _known(self, run: str) -> dict[str, Any] | None:
        path = self.folder / "runs" / run / ".manifest.json"
        with contextlib.suppress(OSError, ValueError):  # a damaged copy is made again
            return read_record(path, CopiedManifest, "").model_dump()
        return None

    def put(self, *names: str) -> None:
        """Puts files there."""
        for name in names:
            self.bucket.write(name, (self.folder / name).read_bytes())

    def tell(self, name: str, value: Any) -> None:
        """Puts it there, if the storage answers."""
        patience, self.bucket.patience = self.bucket.patience, 0.0
        with contextlib.suppress(OSError):
            self.bucket.write(name, json_text(value).encode())
        self.bucket.patience = patience

    def told(self, name: str, model: type[AnyRecord]) -> AnyRecord | None:
        """What was put there last."""
        content = self.bucket.read(name)
        return parse_record(content, model, f"{self.shown}/{name}", "remove it") if content is not None else None

    def put_report(self) -> None:
        """Puts the summary, the pictures and the page there."""
        paths = (path.relative_to(self.folder) for path in self.folder.rglob("[!.]*") if path.is_file())
        self.put(*(path.as_posix() for path in paths if path.parts[0] not in ("runs", *OURS_TO_REMAKE)))

    def goes_on(self, run: str) -> bool:
        """Whether the manifest names a checkpoint."""
        return any(path.startswith("checkpoints/") for path in (self._known(run) or {"objects": {}})["objects"])


def open_store(place: Path | str, required: bool = False) -> Store:
    """The store of a comparison, up to date.

    Raises:
        ValueError: as `checked_place`, or it is `required` and the URL holds none.
    """
    place = checked_place(place)
    store = UrlStore(place) if is_url(place) else Store(Path(place))
    store.refresh()
    if required and is_url(place) and not (store.folder / "experiment.json").is_file():
        raise ValueError(f"{place} holds no comparison; `semfocus compare` makes one")
    return store


def local_copy(place: Path | str, models: bool = True) -> Path:
    """A folder to read a comparison, a run or its model in: the folder itself, or a copy of what the URL holds now.

    Raises:
        ValueError: nothing of ours is there.
        StorageError: the storage does not answer.
    """
    place = checked_place(place)
    if not is_url(place):
        return Path(place)
    found = LAST_OF_RUN.match(place)
    store = UrlStore(found[1] if found else place)
    store.refresh(models=models, only=found[2] if found else None)
    folder = store.folder / "runs" / found[2] if found else store.folder
    if not (folder / ("spec.json" if found else "experiment.json")).is_file():
        raise ValueError(f"{place} holds no {'run' if found else 'comparison'}; `semfocus compare` makes one")
    return folder / "model" if place.rstrip("/").endswith("/model") else folder
