"""Which checkpoints can be trusted: each has a manifest of its files, which neither half of one nor a changed one fits."""

import hashlib
from pathlib import Path

from ..files import read_json, write_json

MODEL_FILES = ("config.json", "model.safetensors", "modeling_semfocus.py", "tokenizer.json", "tokenizer_config.json")
MANIFEST = "whole.json"  # written last: the digest of every other file of the checkpoint


def _digests(checkpoint: Path) -> dict[str, str]:
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != MANIFEST)
    return {
        str(path.relative_to(checkpoint)): hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
        for path in files
    }


def missing_model_file(model: Path) -> str | None:
    """The first file that a run's saved model needs and has not; None for a complete one."""
    return next((name for name in MODEL_FILES if not (model / name).is_file()), None)


def write_manifest(checkpoint: Path) -> None:
    """Writes the manifest of `checkpoint`, all of whose files have been written."""
    write_json(checkpoint / MANIFEST, _digests(checkpoint))


def latest_complete_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint in `folder` that was written to its end; a kill in the middle of one leaves the one before it."""
    complete = [path.parent for path in folder.glob(f"checkpoint-*/{MANIFEST}")]
    return max(complete, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


def check_manifest(checkpoint: Path) -> None:
    """Raises `ValueError`, naming the file, if a file of a complete checkpoint has changed or is gone since it was written."""
    expected, present = read_json(checkpoint / MANIFEST), _digests(checkpoint)
    for name in sorted(expected.keys() | present.keys()):
        if expected.get(name) != present.get(name):
            what = "is gone" if name not in present else "was added" if name not in expected else "has changed"
            raise ValueError(
                f"checkpoint {checkpoint} is damaged: {name} {what} since it was written; remove that folder to go on from "
                "the one before it, or from the start"
            )
