"""A report's files: written whole or not at all, pictures with the same bytes for the same figures."""

import io
import os
import tempfile
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

PNG_DPI = 150


def drawn(figure: Figure, kind: str) -> bytes:
    """The figure as a file's bytes, `kind` "png" or "svg": the same bytes for the same summary (no date, no random ids)."""
    buffer = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    with matplotlib.rc_context({"svg.hashsalt": "hf-semfocus"}):
        figure.savefig(buffer, format=kind, dpi=PNG_DPI, metadata=metadata, facecolor=figure.get_facecolor())
    return buffer.getvalue()


def write_whole(path: Path, content: bytes) -> None:
    """A temporary file beside `path`, renamed into place: a reader never meets half a file."""
    path = Path(os.path.realpath(path))  # a link stays one: what it points to is written
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        umask = os.umask(0)  # mkstemp makes files for their owner alone
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # a full disk names no file
            raise type(error)(error.errno, error.strerror, str(path)) from error
        raise
