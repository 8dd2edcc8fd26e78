"""The file system under a URL: asked again while that can help, and written file by file, each whole or not at all."""

import contextlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import fsspec

OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss", "memory"}
PASSING = re.compile("Connect|Timeout|HTTPClient|ClientPayload|IncompleteRead|ResponseParser|ServiceRequest")
"""Names of errors that can pass, in the libraries of boto, aiohttp, requests and Azure, and Python's own."""
Found = TypeVar("Found")


class StorageError(OSError):
    """Storage that cannot be reached, or a run that a later attempt has taken over."""


def is_url(place: Path | str) -> bool:
    """Whether a place is a URL of fsspec, and not a folder's."""
    return re.match(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]+://", str(place)) is not None


def checked_place(place: Path | str) -> str:
    """The folder or the URL that a user names; `~` and `file://` stand for folders.

    Raises:
        ValueError: it is no path, it looks like a URL and is none, or names no bucket.
    """
    if not isinstance(place, str | Path) or not str(place):
        raise ValueError(f"the place is {place!r}; allowed: a path or a URL")
    text = os.path.expanduser(str(place))
    folder = text.removeprefix("file://")
    scheme, _, rest = text.partition("://")
    if is_url(text):
        if not rest.strip("/"):
            raise ValueError(f"{place} names no bucket or folder; allowed: {scheme}://BUCKET/FOLDER")
        return text
    if re.match(r"[\w+.:-]{2,}:/|\w://", folder) or (folder != text and not folder.startswith("/")):
        raise ValueError(f"{place} is neither a folder nor a URL; allowed: FOLDER, file:///FOLDER, s3://BUCKET/FOLDER")
    return folder


def can_pass(error: BaseException) -> bool:
    """Whether asking again can help: no connection, a time-out, or a fault of the server's own (5xx, or too many requests)."""
    if any(PASSING.search(kind.__name__) for kind in type(error).__mro__):
        return True
    statuses = []
    for one in (error, error.__cause__):  # s3fs renames boto's errors, and keeps them as the cause
        response = getattr(one, "response", None)
        if isinstance(response, dict):
            statuses.append(response.get("ResponseMetadata", {}).get("HTTPStatusCode"))
        statuses += [getattr(one, name, None) for name in ("code", "status", "status_code")]
    return any(isinstance(status, int) and (status >= 500 or status == 429) for status in statuses)


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
        except OSError as error:
            raise StorageError(f"{url} cannot be reached ({error})") from None
        except (ValueError, TypeError, AttributeError) as error:  # the last two for a file system that needs options
            raise ValueError(f"{url} cannot be used ({error}); allowed: a URL such as s3://BUCKET/FOLDER") from None
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
                if not can_pass(error) or time.monotonic() + pause > until:
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
            if self.url.partition("://")[0] not in OBJECT_STORES:
                self.files.makedirs(self.files._parent(full), exist_ok=True)
                put(f"{full}.part")
                self.files.mv(f"{full}.part", full)
            else:
                put(full)  # whole or not at all, and there are no folders

        try:
            self.ask(place)
        except FileNotFoundError:
            raise StorageError(f"{self.url} cannot be written: there is no such bucket or folder") from None
