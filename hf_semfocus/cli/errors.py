"""An exception as the one line that a user can act on."""

import errno
import os
from pathlib import Path

# Torch and safetensors raise plain RuntimeErrors (or types of their own) for what the machine lacks.
NO_MEMORY = ("can't allocate memory", "out of memory", "Storage size calculation overflowed")
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def one_line(error: Exception, output: str | None) -> str | None:
    """The line; None for an error of ours, whose traceback is wanted.

    Args:
        error: what was raised.
        output: the folder that the command works in.
    """
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in text for words in NO_MEMORY)
    ):
        return f"not enough memory ({text[:200]}); ask for smaller sizes (model, batch size, length, examples)"
    if "No space left on device" in text or getattr(error, "errno", None) in DISK_FULL:
        where = getattr(error, "filename", None) or output
        return (
            f"{text}{'' if where is None or str(where) in text else f': {where}'}; free some space, then start again"
        )
    if not isinstance(error, ValueError | OSError):
        return None
    return _about_a_file(error, output) or text


def _about_a_file(error: Exception, output: str | None) -> str | None:
    """An error of the system about a file, with what to do instead of its number; None for another error."""
    if not isinstance(error, OSError) or not isinstance(error.filename, str | os.PathLike) or not error.strerror:
        return None
    path, reason = Path(error.filename), error.strerror.lower()
    if isinstance(error, FileExistsError | NotADirectoryError):
        path = next((part for part in (*reversed(path.parents), path) if part.is_file()), path)
        reason = "a file is in the way"
    if output is None:
        return f"{path}: {reason}"
    place, full = Path(output).absolute(), path.absolute()
    beside = full.parent == place.parent and full.name.startswith(f".{place.name}.")  # renamed into place at the end
    if not (beside or full.is_relative_to(place) or place.is_relative_to(full)):
        return f"{path}: {reason}"
    return f"the folder {output} cannot be used ({path}: {reason}); choose one that can be made, read and written"
