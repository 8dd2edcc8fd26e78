"""Files that are seen whole or not at all: a reader, or a killed process, never meets half of one."""

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def write_atomically(path: Path | str, text: str) -> None:
    """Writes `text` (UTF-8) to a temporary file beside `path`, flushes it to the disk, and renames it into place."""
    path = Path(os.path.realpath(path))  # a link stays one: what it points to is written
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files that only their owner can read; a result is for everyone whom the umask allows.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # a full disk names no file
            raise type(error)(error.errno, error.strerror, str(path)) from error
        raise


def json_text(value: Any) -> str:
    """Strict JSON (no NaN, no Infinity) with two spaces of indent, as `write_json` writes it."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(path: Path | str, value: Any) -> None:
    """Writes `json_text`, atomically."""
    write_atomically(path, json_text(value))


def read_json(path: Path | str, remedy: str = "move it away to make it anew") -> Any:
    """Reads JSON; a file that is not JSON raises a `ValueError` that names it and says `remedy`."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: it is not JSON ({error}); {remedy}") from None


def read_json_lines(path: Path | str, remedy: str = "") -> list[dict[str, Any]]:
    """Reads one JSON object a line; a damaged line raises a `ValueError` that names the file and the line."""
    rows, then = [], remedy and f"; {remedy}"
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged: it is not UTF-8 text ({error}){then}") from None
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"{path} is damaged: line {number} is not JSON ({error}){then}") from None
        if not isinstance(row, dict):
            raise ValueError(f"{path} is damaged: line {number} is not a JSON object{then}")
        rows.append(row)
    return rows


def source_digest(classes: Iterable[type]) -> str | None:
    """A digest of the files that define those of `classes` that are a user's own; None where all come with this package."""
    package = __name__.partition(".")[0]
    modules = {cls.__module__ for cls in classes if cls.__module__.partition(".")[0] != package}
    if not modules:
        return None
    files = [getattr(sys.modules.get(module), "__file__", None) for module in modules]
    texts = sorted(Path(file).read_bytes() if file and Path(file).is_file() else b"" for file in files)
    return hashlib.blake2b(b"".join(texts), digest_size=8).hexdigest()
