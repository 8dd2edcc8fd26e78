"""Repositories on disk: blobs by content, commits as immutable JSON files, branches and tags as one small file each.

A commit becomes visible by one rename of its branch's file, after everything that it names is on disk. A server killed at any
moment leaves the repository as it was, or as the commit makes it.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
import threading
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class RefusalError(Exception):
    """An answer other than success; `code` is the Hub's X-Error-Code, which clients turn into exception classes."""

    def __init__(self, status: int, message: str, code: str | None = None):
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


@dataclass(frozen=True)
class File:
    """A file of a commit: its content's SHA-256, its size in bytes, and whether Git would hold an LFS pointer for it."""

    sha256: str
    size: int
    git_oid: str
    lfs: bool

    @property
    def upload_oid(self) -> str:
        """What a client compares with its local file to skip an upload."""
        return self.sha256 if self.lfs else self.git_oid


@dataclass(frozen=True)
class Commit:
    """A snapshot of a repository: file by path."""

    id: str
    parent: str | None
    title: str
    date: str
    files: dict[str, File] = field(default_factory=dict)


def git_oid(content: bytes) -> str:
    """The object id that Git gives to a blob."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def lfs_pointer(sha256: str, size: int) -> bytes:
    """The text that Git holds in place of an LFS file."""
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()


def check_path(path: str) -> str:
    """The path of a file in a repository, or a refusal if it leaves the repository."""
    if not path or path.startswith("/") or any(part in ("", ".", "..", ".git") for part in path.split("/")):
        raise RefusalError(400, f"not a path in a repository: {path!r}")
    return path


class Store:
    """All repositories of a server, in one folder.

    Args:
        root: the folder; what an earlier server left in it is served on.
    """

    def __init__(self, root: Path):
        self.root = root
        self.blobs = root / "blobs"
        self.incoming = root / "incoming"
        self._lock = threading.Lock()
        shutil.rmtree(self.incoming, ignore_errors=True)
        for folder in (self.blobs, self.incoming, root / "repos"):
            folder.mkdir(parents=True, exist_ok=True)

    def create(self, kind: str, repo: str, *, private: bool = False) -> bool:
        """Make a repository with an empty first commit on `main`; False if it exists."""
        target = self._folder(kind, repo)
        folder = Path(tempfile.mkdtemp(dir=self.incoming))
        (folder / "commits").mkdir()
        (folder / "refs").mkdir()
        (folder / "tags").mkdir()
        if private:
            (folder / "private").touch()
        first = self._write_commit(folder, None, "initial commit", {})
        self._write(folder / "refs" / "main", first.id.encode())
        target.parent.mkdir(parents=True, exist_ok=True)
        with self._lock:
            if target.exists():
                shutil.rmtree(folder)
                return False
            folder.rename(target)
        return True

    def is_private(self, kind: str, repo: str) -> bool:
        """Whether the repository was made for its owner alone."""
        return (self._existing(kind, repo) / "private").exists()

    def add_reference(self, kind: str, repo: str, group: str, name: str, revision: str) -> None:
        """Name a commit: a branch ("refs") or a tag ("tags"); 409 if there is one of that name."""
        folder, commit = self._existing(kind, repo), self.commit_at(kind, repo, revision)
        if not _NAME.fullmatch(name):
            raise RefusalError(400, f"not a name: {name!r}")
        with self._lock:
            if (folder / "refs" / name).exists() or (folder / "tags" / name).exists():
                raise RefusalError(409, f"Reference already exists: {name}")
            self._write(folder / group / name, commit.id.encode())

    def commit_at(self, kind: str, repo: str, revision: str) -> Commit:
        """The commit that a branch, a tag or a commit id names."""
        folder = self._existing(kind, repo)
        for reference in (folder / "refs" / revision, folder / "tags" / revision):
            if _NAME.fullmatch(revision) and reference.is_file():
                revision = reference.read_text()
        path = folder / "commits" / f"{revision}.json"
        if not _COMMIT.fullmatch(revision) or not path.is_file():
            raise RefusalError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        record = json.loads(path.read_text())
        files = {name: File(**file) for name, file in record.pop("files").items()}
        return Commit(id=revision, files=files, **record)

    def blob(self, sha256: str) -> Path | None:
        """Where the content with this SHA-256 lies, if it is here."""
        path = self.blobs / sha256
        return path if _SHA256.fullmatch(sha256) and path.is_file() else None

    async def receive(self, sha256: str, chunks: AsyncIterator[bytes]) -> None:
        """Take in a blob; it exists only once all of it is here and its SHA-256 is the announced one."""
        if not _SHA256.fullmatch(sha256):
            raise RefusalError(400, f"not a SHA-256: {sha256!r}")
        digest = hashlib.sha256()
        temporary = self._temporary()
        try:
            with temporary.open("wb") as file:
                async for chunk in chunks:
                    digest.update(chunk)
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            if digest.hexdigest() != sha256:
                raise RefusalError(422, f"the content's SHA-256 is {digest.hexdigest()}, not {sha256}")
            temporary.replace(self.blobs / sha256)
        finally:
            temporary.unlink(missing_ok=True)

    def commit(
        self,
        kind: str,
        repo: str,
        branch: str,
        title: str,
        change: Callable[[dict[str, File]], dict[str, File]],
        *,
        parent: str | None = None,
        before_publishing: Callable[[], None] = lambda: None,
    ) -> Commit:
        """Add a commit to a branch, or leave the branch as it is.

        Args:
            change: makes the new files of the old ones; it may refuse.
            parent: the commit that the branch must be at; 412 if it is at another.
            before_publishing: called when all is on disk and nothing is visible yet.
        """
        folder = self._existing(kind, repo)
        with self._lock:
            head = self.commit_at(kind, repo, branch)
            if not (folder / "refs" / branch).is_file():
                raise RefusalError(400, f"commits go to a branch, and {branch} is none")
            if parent is not None and parent != head.id:
                raise RefusalError(412, f"the branch is at {head.id}, not at {parent}")
            commit = self._write_commit(folder, head.id, title, change(dict(head.files)))
            before_publishing()
            self._write(folder / "refs" / branch, commit.id.encode())
        return commit

    def keep(self, content: bytes) -> File:
        """Store the content of a regular file."""
        sha256 = hashlib.sha256(content).hexdigest()
        self._write(self.blobs / sha256, content)
        return File(sha256=sha256, size=len(content), git_oid=git_oid(content), lfs=False)

    def lfs_file(self, sha256: str) -> File:
        """The file that points to an uploaded blob."""
        path = self.blob(sha256)
        if path is None:
            raise RefusalError(400, f"LFS pointer pointed to a file that does not exist: {sha256}")
        size = path.stat().st_size
        return File(sha256=sha256, size=size, git_oid=git_oid(lfs_pointer(sha256, size)), lfs=True)

    def _folder(self, kind: str, repo: str) -> Path:
        if not all(_NAME.fullmatch(part) for part in repo.split("/")):
            raise RefusalError(400, f"not a repository's name: {repo!r}")
        return self.root / "repos" / kind / repo

    def _existing(self, kind: str, repo: str) -> Path:
        folder = self._folder(kind, repo)
        if not folder.is_dir():
            raise RefusalError(404, "Repository not found", "RepoNotFound")
        return folder

    def _write_commit(self, folder: Path, parent: str | None, title: str, files: dict[str, File]) -> Commit:
        date = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        record = {"parent": parent, "title": title, "date": date}
        text = json.dumps({**record, "files": {path: asdict(file) for path, file in sorted(files.items())}}).encode()
        commit = hashlib.sha1(text).hexdigest()
        self._write(folder / "commits" / f"{commit}.json", text)
        return Commit(commit, parent, title, date, files)

    def _temporary(self) -> Path:
        return self.incoming / uuid.uuid4().hex

    def _write(self, path: Path, content: bytes) -> None:
        temporary = self._temporary()
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
