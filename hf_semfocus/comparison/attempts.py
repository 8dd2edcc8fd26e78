"""A run under a URL: its manifests and objects, and one worker's attempt at it in a scratch folder.

::

    manifests/TASK/MASK/seed-N/EPOCH.STAGE-ATTEMPT.json, and ATTEMPT.begun
    objects/TASK/MASK/seed-N/ATTEMPT/…               checkpoints and models, packed

Objects are published first and the manifest, which names them and holds the run's small files, last; both have names of the attempt alone,
so nothing is ever written over. Readers follow the manifest with the highest epoch.
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
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from filelock import FileLock, Timeout
from pydantic import BaseModel

from ..files import atomic_write, parse_record
from ..schema import RunResult, SpecRecord
from ..training.checkpoints import latest_complete_checkpoint
from .bucket import Bucket, StorageError, is_url
from .records import Manifest

SHARE = 0.05  # of a run's time, at most, goes into publishing its epochs
PATIENCE_SECONDS = 900.0  # for storage that is away, where the alternative is to lose a finished run
RECORDS = ("spec.json", "history.jsonl", "result.json", "log.txt")
LOG_CHARACTERS = 50_000
STAGES = {"epoch": 0, "failed": 1, "finished": 2}
ATTEMPT = re.compile(r"\d{4}-[0-9a-f]{8}")
LAST_OF_RUN = re.compile(r"^(.+)/runs/([^/]+/[^/]+/seed-\d+)(?:/model)?/?$")


class TakenOverError(StorageError):
    """A later attempt has begun: this one has no business any more."""


class GoneError(StorageError):
    """An object is not there any more: a newer manifest has taken its place, or somebody has removed it."""


def newest(files: list[str]) -> str | None:
    """The manifest that counts: names order as what they say does."""
    return max((file for file in files if file.endswith(".json")), default=None)


def read_manifest(bucket: Bucket, run: str) -> dict[str, Any] | None:
    """The manifest that counts; None for a run without one."""
    while (name := newest(bucket.listed(f"manifests/{run}"))) is not None:
        content = bucket.read(f"manifests/{run}/{name}")
        if content is not None:  # else a newer one has taken its place meanwhile
            return parsed(bucket, run, name, content)
    return None


def parsed(bucket: Bucket, run: str, name: str, content: bytes) -> dict[str, Any]:
    """A manifest's content, with its name."""
    where = f"{bucket.url}/manifests/{run}/{name}"
    remedy = "remove it to go on from the one before it, or from the start"
    manifest = parse_record(content, Manifest, where, remedy)
    models: dict[str, type[BaseModel]] = {"spec.json": SpecRecord, "result.json": RunResult}
    for file in models.keys() & manifest.records.keys():
        parse_record(manifest.records[file].encode(), models[file], where, remedy, f"{file}: ")
    return {**manifest.model_dump(), "name": name}


def write_records(folder: Path, records: dict[str, str]) -> None:
    """Writes a manifest's small files, and removes those that it has not."""
    for name in RECORDS:
        if name in records:
            atomic_write(folder / name, records[name])
        else:
            (folder / name).unlink(missing_ok=True)


def unpack(bucket: Bucket, run: str, path: str, entry: dict[str, Any], folder: Path) -> None:
    """Gets an object of a manifest and unpacks it as `folder / path`."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".") as room:
        packed = Path(room) / "packed.tar"
        try:
            bucket.get(entry["object"], packed)
        except FileNotFoundError:
            raise GoneError(f"{bucket.url}/{entry['object']} is gone; remove {run} there if it stays so") from None
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
    published: str | None = None
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    next: float = 0.0

    def take_up(self) -> None:
        """Gets what earlier attempts have published."""
        self.bucket.patience = PATIENCE_SECONDS
        before = None
        while (manifest := read_manifest(self.bucket, self.run)) is not None:
            try:
                for path, entry in manifest["objects"].items():
                    unpack(self.bucket, self.run, path, entry, self.folder)
                write_records(self.folder, manifest["records"])
                break
            except GoneError:
                if manifest["name"] == before:
                    raise
                before = manifest["name"]
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
        except TakenOverError:
            raise
        except StorageError as error:
            if final:
                raise
            print(f"not published, training goes on: {error}")
        self.next = time.monotonic() + (time.monotonic() - started) / SHARE

    def _attempts(self) -> dict[str, list[str]]:
        """All attempts that have begun, with their files among the manifests."""
        found: dict[str, list[str]] = {}
        for file in self.bucket.listed(f"manifests/{self.run}"):
            if attempt := ATTEMPT.search(file):
                found.setdefault(attempt[0], []).append(file)
        return found

    def _publish(self) -> None:
        others = self._attempts()
        if (latest := max(others, default="")) > self.attempt:
            raise TakenOverError(f"attempt {latest} at {self.bucket.url}/runs/{self.run} has taken this run over")
        paths = [path for path in map(self.folder.joinpath, RECORDS) if path.exists()]
        records = {path.name: path.read_text(encoding="utf-8", errors="replace") for path in paths}
        if "log.txt" in records:
            records["log.txt"] = records["log.txt"][-LOG_CHARACTERS:]
        epoch = records.get("history.jsonl", "").count("\n")
        status = json.loads(records["result.json"])["status"] if "result.json" in records else None
        stage = STAGES["epoch" if status is None else "failed" if status == "failed" else "finished"]
        name = f"{epoch:06d}.{stage}-{self.attempt}.json"
        objects = {path: self._object(path, name) for path in self._packed()}
        manifest = {
            "format": 1,
            "attempt": self.attempt,
            "epoch": epoch,
            "node": socket.gethostname(),
            "objects": objects,
            "records": records,
        }
        self.bucket.write(f"manifests/{self.run}/{name}", json.dumps(manifest).encode())
        previous, self.published = self.published, name
        before, self.objects = self.objects, objects
        if previous not in (None, name):
            self.bucket.remove(f"manifests/{self.run}/{previous}")
        for gone in {e["object"] for e in before.values()} - {e["object"] for e in objects.values()}:
            self.bucket.remove(gone)
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

    def _object(self, path: str, name: str) -> dict[str, Any]:
        """Puts a part of the folder there, unless it stands there since the last time."""
        stamp = max(file.stat().st_mtime_ns for file in [self.folder / path, *(self.folder / path).rglob("*")])
        earlier = self.objects.get(path)
        if earlier is not None and earlier["stamp"] == stamp:
            return earlier
        place = f"objects/{self.run}/{self.attempt}/{name[:8]}-{PurePosixPath(path).name}.tar"
        with tempfile.TemporaryDirectory(dir=self.folder, prefix=".") as room:
            packed = Path(room) / "packed.tar"
            with tarfile.open(packed, "w") as tar:
                tar.add(self.folder / path, arcname=path)
            self.bucket.put(place, packed)
            return {"object": place, "blake2b": _digest(packed), "bytes": packed.stat().st_size, "stamp": stamp}


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
