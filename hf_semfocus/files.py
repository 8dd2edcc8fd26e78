"""Files that appear complete or not at all, and JSON that is checked when it is read: what is wrong is named, with file and field."""

import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

AnyRecord = TypeVar("AnyRecord", bound=BaseModel)
LEFT_BEHIND_SECONDS = 3600


def atomic_write(path: Path | str, content: str | bytes) -> None:
    """Writes `content` (text as UTF-8) to a temporary file beside `path`, flushes it to the disk, and renames it into place."""
    path = Path(os.path.realpath(path))  # a link stays one: what it points to is written
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        _share(temporary, 0o666)
        os.replace(temporary, path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # a full disk names no file
            raise type(error)(error.errno, error.strerror, str(path)) from error
        raise


@contextmanager
def atomic_folder(target: Path | str) -> Iterator[Path]:
    """A hidden folder beside `target` that takes its name, and its place, at the end, or is removed. A link stays one.

    What a killed process left there is removed once it is an hour old: until then somebody may be at work in it.
    """
    target = Path(os.path.realpath(target))
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{target.name}.incomplete-"
    for left in target.parent.glob(f"{prefix}*"):
        if time.time() - max(path.stat().st_mtime for path in (left, *left.iterdir())) > LEFT_BEHIND_SECONDS:
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    try:
        _share(folder, 0o777)
        yield folder
        for path in folder.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        if target.exists():
            # Renaming over a folder works only where it is empty; what was there steps aside first and is deleted last.
            aside = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent)) / target.name
            target.rename(aside)
            folder.rename(target)
            shutil.rmtree(aside.parent, ignore_errors=True)
        else:
            folder.rename(target)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _share(path: Path | str, mode: int) -> None:
    """What `tempfile` makes is its owner's alone; a result is for everyone whom the umask allows."""
    umask = os.umask(0)
    os.umask(umask)
    os.chmod(path, mode & ~umask)


def json_text(value: Any) -> str:
    """Strict JSON (no NaN, no Infinity) with two spaces of indent, as `write_json` writes it."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(path: Path | str, value: Any) -> None:
    """Writes `json_text`, atomically."""
    atomic_write(path, json_text(value))


def read_json(path: Path | str, remedy: str = "move it away to make it again") -> Any:
    """Reads JSON; a file that is not JSON raises a `ValueError` that names it and says `remedy`."""
    try:
        return json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: it is not JSON ({error}); {remedy}") from None


def read_json_lines(path: Path | str) -> list[dict[str, Any]]:
    """Reads one JSON object a line; a broken line raises a `ValueError` that names the file and the line."""
    rows = []
    for number, line in enumerate(Path(path).read_bytes().splitlines(), start=1):
        try:
            rows.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is damaged: line {number} is not JSON ({error})") from None
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


def check_format(path: Path | str, given: Any, known: int) -> None:
    """Refuses a file of a format above the `known` one."""
    if type(given) is int and given > known:
        raise ValueError(f"{path} was written by a newer hf-semfocus: format {given}; this one reads up to {known}")


def check_not_newer(path: Path, known: int) -> None:
    """The same, of a file that is to be written again: whatever else is wrong with it does not matter."""
    try:
        given = json.loads(path.read_bytes())["format"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return
    check_format(path, given, known)


def read_record(path: Path, model: type[AnyRecord], remedy: str) -> AnyRecord:
    """The record that a file of JSON holds.

    Raises:
        ValueError: it cannot be read; the message names the file and the field, and ends with `remedy`.
    """
    return parse_record(path.read_bytes(), model, str(path), remedy)


def parse_record(text: bytes, model: type[AnyRecord], path: str, remedy: str, place: str = "") -> AnyRecord:
    """As `read_record`, of text that stands at `place` in the file."""
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        for fault in error.errors(include_url=False):
            if fault["loc"] == ("format",) and fault["type"] in ("less_than_equal", "literal_error"):
                check_format(path, fault["input"], int(next(iter(fault["ctx"].values()))))
        problem = _problem(error)
    except (KeyError, TypeError, AttributeError) as error:  # of a file of a format before
        problem = f"{type(error).__name__} {error}"
    raise ValueError(f"{path} is damaged: {place}{problem}; {remedy}")


def _problem(error: ValidationError) -> str:
    """The first fault, with its field and what stands there."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"] if part not in ("str", "int", "float"))
    if first["type"] == "missing":
        return f"{where} is missing"
    if not where:
        return f"it is not JSON of its kind ({first['msg']})"
    return f"{where} is {str(first['input'])[:80]!r} ({first['msg'].removeprefix('Value error, ')})"
