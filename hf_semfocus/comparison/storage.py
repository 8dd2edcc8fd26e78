"""Where a comparison is kept: a folder that every worker sees, or a URL of any file system that fsspec knows.

A folder is used as it is. Under a URL there are::

    experiment.json, report.html, …                  as in a folder
    manifests/TASK/MASK/seed-N/EPOCH.STAGE-ATTEMPT.json, and ATTEMPT.begun
    objects/TASK/MASK/seed-N/ATTEMPT/…               checkpoints and models, packed

A worker trains in a scratch folder. It publishes objects first and the manifest, which names them and holds the run's small files, last;
both have names of the attempt alone, so nothing is ever written over. Readers follow the manifest with the highest epoch.
"""

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar

import fsspec
from filelock import FileLock, Timeout
from huggingface_hub.constants import HF_HOME

from ..files import atomic_write, json_text, read_json, write_json
from ..training.checkpoints import latest_complete_checkpoint
from ..training.run_files import SNAPSHOTS

CACHE = Path(HF_HOME) / "semfocus"
"""Copies of what URLs hold, and scratch folders."""
SHARE = 0.05  # of a run's time, at most, goes into publishing its epochs
AWAY_SECONDS = 20.0  # until an epoch is published again to storage that did not answer
PATIENCE_SECONDS = 900.0  # for storage that is away, where the alternative is to lose a finished run
OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss", "memory"}
RECORDS = ("spec.json", "history.jsonl", "result.json", "log.txt")
LOG_CHARACTERS = 50_000
STAGES = {"epoch": 0, "failed": 1, "finished": 2}
LAST_OF_RUN = re.compile(r"^(.+)/runs/([^/]+/[^/]+/seed-\d+)(?:/model)?/?$")
PROGRESS = "progress.json"
OURS_TO_REMAKE = ("experiment.json", "placements.json", PROGRESS)
Found = TypeVar("Found")


class StorageError(OSError):
    """Storage that cannot be reached, or a run that a later attempt has taken over."""


def is_url(place: Path | str) -> bool:
    """Whether a place is a URL of fsspec."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", str(place)) is not None


class Name(NamedTuple):
    """A manifest's name; names order as what they say does."""

    epoch: int
    stage: int
    attempt: str

    @classmethod
    def read(cls, file: str) -> "Name | None":
        """From a file's name; None for another file."""
        found = re.fullmatch(r"(\d{6})\.(\d)-(\d{4}-[0-9a-f]{8})\.json", file)
        return cls(int(found[1]), int(found[2]), found[3]) if found else None

    @property
    def file(self) -> str:
        """The file's name."""
        return f"{self.epoch:06d}.{self.stage}-{self.attempt}.json"


class Bucket:
    """The file system under a URL, by paths below the URL.

    Args:
        url: without a slash at its end.

    Attributes:
        patience: for so many seconds storage that does not answer is asked again.

    Raises:
        ValueError: no such file system, or its library is missing.
        StorageError: it does not answer.
    """

    def __init__(self, url: str):
        self.url = url.rstrip("/")
        try:
            self.files, path = fsspec.url_to_fs(self.url, use_listings_cache=False)
        except ImportError as error:
            extra = "; pip install 'hf-semfocus[s3]'" if self.url.startswith("s3") else ""
            raise ValueError(f"{url} needs a library that is not installed ({error}){extra}") from None
        except ValueError as error:
            raise ValueError(f"{url} cannot be used ({error})") from None
        self.root = str(path).rstrip("/")
        self.patience = 0.0

    def ask(self, action: Callable[[], Found]) -> Found:
        """What `action` returns, once the storage answers."""
        until, pause = time.monotonic() + self.patience, 0.5
        while True:
            try:
                return action()
            except FileNotFoundError:
                raise
            except Exception as error:  # each file system has its own
                if isinstance(error, PermissionError) or time.monotonic() + pause > until:
                    reason = " ".join(str(error).split())[:200] or type(error).__name__
                    raise StorageError(f"{self.url} cannot be read or written ({reason})") from error
                time.sleep(pause)
                pause = min(2 * pause, 20.0)

    def path(self, *parts: str) -> str:
        """The path that the file system takes."""
        return "/".join((self.root, *parts))

    def listed(self, below: str) -> list[str]:
        """All files below, by paths from there; none where there is nothing."""
        root = self.path(below)
        try:
            found = self.ask(lambda: self.files.find(root))
        except FileNotFoundError:
            return []
        return [path.partition(f"{root}/")[2] for path in found]

    def read(self, path: str) -> bytes | None:
        """A file's content; None where there is none."""
        try:
            return self.ask(lambda: self.files.cat_file(self.path(path)))
        except FileNotFoundError:
            return None

    def write(self, path: str, content: bytes) -> None:
        """Puts a file there, whole."""
        self._place(path, lambda full: self.files.pipe_file(full, content))

    def put(self, path: str, file: Path) -> None:
        """Puts a local file there."""
        self._place(path, lambda full: self.files.put_file(str(file), full))

    def get(self, path: str, file: Path) -> None:
        """Gets a file."""
        self.ask(lambda: self.files.get_file(self.path(path), str(file)))

    def remove(self, path: str) -> None:
        """Removes a file or all below it; what is gone, or cannot be removed now, takes room and nothing else."""
        with contextlib.suppress(Exception):
            self.files.rm(self.path(path), recursive=True)

    def _place(self, path: str, put: Callable[[str], Any]) -> None:
        full = self.path(path)

        def place() -> None:
            if OBJECT_STORES & set(
                [self.files.protocol] if isinstance(self.files.protocol, str) else self.files.protocol
            ):
                put(full)  # whole or not at all, and there are no folders
                return
            self.files.makedirs(self.files._parent(full), exist_ok=True)
            put(f"{full}.part")
            self.files.mv(f"{full}.part", full)

        try:
            self.ask(place)
        except FileNotFoundError:
            raise StorageError(f"{self.url} cannot be written: there is no such bucket or folder") from None


def _newest(names: list[str]) -> Name | None:
    return max((name for name in map(Name.read, names) if name is not None), default=None)


def _manifest(bucket: Bucket, run: str) -> dict[str, Any] | None:
    """The manifest that counts; None for a run without one."""
    for _ in range(20):
        name = _newest(bucket.listed(f"manifests/{run}"))
        if name is None:
            return None
        content = bucket.read(f"manifests/{run}/{name.file}")
        if content is not None:  # else a newer one has taken its place meanwhile
            return _parsed(bucket, run, name, content)
    raise StorageError(f"{bucket.url}/manifests/{run} changes faster than it can be read")


def _parsed(bucket: Bucket, run: str, name: Name, content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
        assert isinstance(found["records"], dict) and isinstance(found["objects"], dict)  # noqa: PT018
    except (ValueError, KeyError, TypeError, AssertionError):
        where = f"{bucket.url}/manifests/{run}/{name.file}"
        raise ValueError(f"{where} is damaged; remove it to go on from the one before it, or from the start") from None
    return {**found, "name": name.file}


def _write_records(folder: Path, records: dict[str, str]) -> None:
    for name in RECORDS:
        if name in records:
            atomic_write(folder / name, records[name])
        else:
            (folder / name).unlink(missing_ok=True)


def _unpack(bucket: Bucket, run: str, path: str, entry: dict[str, Any], folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder, prefix=".") as room:
        packed = Path(room) / "packed.tar"
        bucket.get(entry["object"], packed)
        if _digest(packed) != entry["blake2b"]:
            raise ValueError(
                f"{bucket.url}/{entry['object']} is damaged: it is not what its manifest says; remove {run} there"
            )
        shutil.rmtree(folder / path, ignore_errors=True)
        with tarfile.open(packed) as tar:
            tar.extractall(folder, filter="data")


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


@dataclass
class RunPlace:
    """Where a run is trained: its own folder."""

    folder: Path

    def publish(self, final: bool = False) -> None:
        """Makes what stands in the folder known to others; a folder's content is."""


@dataclass
class Attempt(RunPlace):
    """One worker's attempt at a run under a URL, in a scratch folder."""

    bucket: Bucket
    run: str
    attempt: str = ""
    published: Name | None = None
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    next: float = 0.0

    def take_up(self) -> None:
        """Gets what earlier attempts have published."""
        self.bucket.patience = PATIENCE_SECONDS
        manifest = _manifest(self.bucket, self.run)
        if manifest is not None:
            _write_records(self.folder, manifest["records"])
            for path, entry in manifest["objects"].items():
                _unpack(self.bucket, self.run, path, entry, self.folder)
        number = int(max(self._attempts(), default="0000")[:4]) + 1
        self.attempt = f"{number:04d}-{secrets.token_hex(4)}"
        self.bucket.write(f"manifests/{self.run}/{self.attempt}.begun", b"")

    def publish(self, final: bool = False) -> None:
        """Publishes the last epoch, unless that would take more than `SHARE` of the time; what has ended in any case.

        Raises:
            StorageError: the storage has not answered for long, or a later attempt has begun.
        """
        started = time.monotonic()
        if not final and started < self.next:
            return
        self.bucket.patience = PATIENCE_SECONDS if final else 0.0
        try:
            self._publish()
            self.next = time.monotonic() + (time.monotonic() - started) / SHARE
        except TakenOverError:
            raise
        except StorageError as error:
            if final:
                raise
            print(f"not published, training goes on: {error}")
            self.next = time.monotonic() + AWAY_SECONDS

    def _attempts(self) -> dict[str, list[str]]:
        """All attempts that have begun, with their files among the manifests."""
        found: dict[str, list[str]] = {}
        for file in self.bucket.listed(f"manifests/{self.run}"):
            name = Name.read(file)
            found.setdefault(name.attempt if name else file.removesuffix(".begun"), []).append(file)
        return found

    def _publish(self) -> None:
        others = self._attempts()
        if (latest := max(others, default="")) > self.attempt:
            raise TakenOverError(f"attempt {latest} at {self.bucket.url}/runs/{self.run} has taken this run over")
        records = {}
        for record in RECORDS:
            with contextlib.suppress(FileNotFoundError):
                records[record] = (self.folder / record).read_text(encoding="utf-8", errors="replace")
        if "log.txt" in records:
            records["log.txt"] = records["log.txt"][-LOG_CHARACTERS:]
        epoch = records.get("history.jsonl", "").count("\n")
        status = json.loads(records["result.json"])["status"] if "result.json" in records else None
        stage = STAGES["epoch" if status is None else "failed" if status == "failed" else "finished"]
        name = Name(epoch, stage, self.attempt)
        objects = {path: self._object(path, name) for path in self._packed()}
        manifest = {
            "format": 1,
            "attempt": self.attempt,
            "epoch": epoch,
            "node": socket.gethostname(),
            "objects": objects,
            "records": records,
        }
        self.bucket.write(f"manifests/{self.run}/{name.file}", json.dumps(manifest).encode())
        previous, self.published = self.published, name
        before, self.objects = self.objects, objects
        if previous is not None and previous != name:
            self.bucket.remove(f"manifests/{self.run}/{previous.file}")
        named = {entry["object"] for entry in self.objects.values()}
        for entry in before.values():
            if entry["object"] not in named:
                self.bucket.remove(entry["object"])
        if stage == STAGES["finished"]:  # nobody follows the earlier attempts any more
            for other in others.keys() - {self.attempt}:
                for file in others[other]:
                    self.bucket.remove(f"manifests/{self.run}/{file}")
                self.bucket.remove(f"objects/{self.run}/{other}")

    def _packed(self) -> list[str]:
        """What is put there as it is: the last checkpoint, and whatever else a run keeps beside its records."""
        others = (path for path in self.folder.iterdir() if path.name not in (*RECORDS, "checkpoints"))
        parts = [latest_complete_checkpoint(self.folder / "checkpoints"), *sorted(others)]
        return [part.relative_to(self.folder).as_posix() for part in parts if part is not None and part.name[0] != "."]

    def _object(self, path: str, name: Name) -> dict[str, Any]:
        """Puts a part of the folder there, unless it stands there since the last time."""
        stamp = max(file.stat().st_mtime_ns for file in [self.folder / path, *(self.folder / path).rglob("*")])
        earlier = self.objects.get(path)
        if earlier is not None and earlier["stamp"] == stamp:
            return earlier
        place = f"objects/{self.run}/{self.attempt}/{name.epoch:06d}.{name.stage}-{PurePosixPath(path).name}.tar"
        with tempfile.TemporaryDirectory(dir=self.folder, prefix=".") as room:
            packed = Path(room) / "packed.tar"
            with tarfile.open(packed, "w") as tar:
                tar.add(self.folder / path, arcname=path)
            self.bucket.put(place, packed)
            return {"object": place, "blake2b": _digest(packed), "bytes": packed.stat().st_size, "stamp": stamp}


class TakenOverError(StorageError):
    """A later attempt has begun: this one has no business any more."""


@contextlib.contextmanager
def run_at(place: str) -> Iterator[RunPlace]:
    """The place of a run, in which it can be trained; under a URL a scratch folder that is gone afterwards."""
    if not is_url(place):
        yield RunPlace(Path(place))
        return
    found = LAST_OF_RUN.match(place)
    assert found is not None, place
    with scratch_folder() as folder:
        attempt = Attempt(folder, Bucket(found[1]), found[2])
        attempt.take_up()
        yield attempt


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder of this process alone; removes those of processes that were killed."""
    root = Path(tempfile.gettempdir()) / f"semfocus-{os.getuid() if hasattr(os, 'getuid') else ''}"
    root.mkdir(mode=0o700, exist_ok=True)
    with FileLock(root / ".lock"):
        for lock in root.glob("*.lock"):
            with contextlib.suppress(Timeout), FileLock(lock, timeout=0):
                shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
                lock.unlink(missing_ok=True)
        folder = Path(tempfile.mkdtemp(dir=root))
        mine = FileLock(folder.with_suffix(".lock"))
        mine.acquire()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(mine.lock_file)
        mine.release()


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

    def told(self, name: str) -> Any:
        """What `tell` wrote last; None for nothing."""
        return read_json(self.folder / name) if (self.folder / name).is_file() else None

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
        self._manifests: dict[str, dict[str, Any]] = {}

    def place(self, run: str) -> str:
        """The run's URL."""
        return f"{self.bucket.url}/runs/{run}"

    def refresh(self, models: bool = False, only: str | None = None) -> None:
        """Gets what is new: the records of all runs, or of one, and their models if asked for."""
        for file in ("experiment.json", "placements.json"):
            content = self.bucket.read(file)
            if content is None:
                (self.folder / file).unlink(missing_ok=True)
            else:
                atomic_write(self.folder / file, content.decode())
        files: dict[str, list[str]] = {}
        for path in self.bucket.listed("manifests"):
            run, _, file = path.rpartition("/")
            files.setdefault(run, []).append(file)
        self.bucket.patience = PATIENCE_SECONDS  # it answers: from now on it may be away for a while
        newest = {run: name.file for run, names in files.items() if (name := _newest(names)) is not None}
        self._forget(newest)
        wanted = [run for run in newest if only in (None, run)]
        new = [run for run in wanted if (self._known(run) or {}).get("name") != newest[run]]
        for run, content in self._contents({run: newest[run] for run in new}).items():
            name = Name.read(newest[run])
            assert name is not None
            manifest = _parsed(self.bucket, run, name, content) if content is not None else _manifest(self.bucket, run)
            assert manifest is not None, run
            folder = self.folder / "runs" / run
            shutil.rmtree(folder, ignore_errors=True)
            _write_records(folder, manifest.pop("records"))
            atomic_write(folder / ".manifest.json", json.dumps(manifest))
        for run in wanted:
            for path, entry in (self._known(run) or {})["objects"].items():
                asked = path == SNAPSHOTS or (models and path == "model")
                if asked and not (self.folder / "runs" / run / path).exists():
                    _unpack(self.bucket, run, path, entry, self.folder / "runs" / run)

    def _contents(self, files: dict[str, str]) -> dict[str, bytes | None]:
        """The manifests themselves, many at a time; None for one that a newer one has replaced meanwhile."""
        paths = {self.bucket.path("manifests", run, file): run for run, file in files.items()}
        found = self.bucket.ask(lambda: self.bucket.files.cat(list(paths), on_error="return")) if paths else {}
        contents = {paths[path]: content for path, content in found.items()}
        return {run: content if isinstance(content, bytes) else None for run, content in contents.items()}

    def _known(self, run: str) -> dict[str, Any] | None:
        path = self.folder / "runs" / run / ".manifest.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def _forget(self, newest: dict[str, str]) -> None:
        for folder in (self.folder / "runs").glob("*/*/seed-*"):
            if folder.relative_to(self.folder / "runs").as_posix() not in newest:
                shutil.rmtree(folder)

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

    def told(self, name: str) -> Any:
        """What was put there last."""
        content = self.bucket.read(name)
        return json.loads(content) if content is not None else None

    def put_report(self) -> None:
        """Puts the summary, the pictures and the page there."""
        paths = (path.relative_to(self.folder) for path in self.folder.rglob("*") if path.is_file())
        self.put(
            *(
                path.as_posix()
                for path in paths
                if path.parts[0] != "runs" and not path.name.startswith(".") and path.name not in OURS_TO_REMAKE
            )
        )

    def goes_on(self, run: str) -> bool:
        """Whether the manifest names a checkpoint."""
        return any(path.startswith("checkpoints/") for path in (self._known(run) or {"objects": {}})["objects"])


def open_store(place: Path | str) -> Store:
    """The store of a comparison, up to date."""
    place = str(place)
    if is_url(place) and not place.startswith("file://"):
        store: Store = UrlStore(place)
    else:
        store = Store(Path(place.removeprefix("file://")))
    store.refresh()
    return store


def local_copy(place: Path | str, models: bool = True) -> Path:
    """A folder to read a comparison, a run or its model in: the folder itself, or a copy of what the URL holds now.

    Raises:
        ValueError: nothing of ours is there.
        StorageError: the storage does not answer.
    """
    if not is_url(place):
        return Path(place)
    found = LAST_OF_RUN.match(str(place))
    store = UrlStore(found[1] if found else str(place))
    store.refresh(models=models, only=found[2] if found else None)
    folder = store.folder / "runs" / found[2] if found else store.folder
    if not (folder / ("spec.json" if found else "experiment.json")).is_file():
        raise ValueError(f"{place} holds no {'run' if found else 'comparison'}; `semfocus compare` makes one")
    return folder / "model" if str(place).rstrip("/").endswith("/model") else folder
