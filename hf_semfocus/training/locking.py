"""Who trains in a folder: one process at a time, and none whose comparison is gone."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

POLL_SECONDS = 0.2
WAIT_SECONDS = 10.0  # a worker whose comparison was killed notices within a poll and ends; its lock is free then


@contextlib.contextmanager
def folder_lock(folder: Path, what: str, wait: float = 0.0) -> Iterator[None]:
    """`folder`, made if need be, and locked while the block runs. The lock dies with the process that holds it.

    Args:
        folder: what is locked, by a file `.lock` in it.
        what: who else may be at work there, for the message: "another comparison".
        wait: seconds to wait for the other.

    Raises:
        ValueError: somebody else is at work there.
    """
    made = not folder.exists()
    os.makedirs(os.path.realpath(folder), exist_ok=True)  # a link whose target is yet to be made, too
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=wait)
    except Timeout:
        raise ValueError(f"{what} is at work in {folder}; wait for it, or choose another --output") from None
    try:
        yield
    finally:
        lock.release()
        if made:  # refused before anything was written: leave no trace
            with contextlib.suppress(OSError):
                if [entry.name for entry in folder.iterdir()] == [".lock"]:
                    (folder / ".lock").unlink()
                    folder.rmdir()


def exit_with_parent(parent: int) -> None:
    """Ends this process, at once and wherever it is, when the process `parent` is no longer its parent.

    A killed comparison cannot stop its workers. Without this they would train on, unseen, beside those of the next start.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(POLL_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="exit-with-parent").start()
