"""Files that are seen whole or not at all: a reader, or a killed process, never meets half of one."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any


def write_atomically(path: Path | str, content: str | bytes) -> None:
    """Writes `content` (text as UTF-8) to a temporary file beside `path`, flushes it to the disk, and renames it into place."""
    path = Path(os.path.realpath(path))  # a link stays one: what it points to is written
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
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
