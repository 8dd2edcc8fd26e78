"""What the copier of remote code needs of the files that ship; the layers are import-linter's (`make quality`)."""

import ast
from pathlib import Path

from hf_semfocus import model


def test_checkpoint_files_import_only_flat_siblings():
    for path in Path(model.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert not any(alias.name.startswith("hf_semfocus") for alias in node.names), path
            if isinstance(node, ast.ImportFrom):
                assert node.level or not (node.module or "").startswith("hf_semfocus"), path
                if node.level:
                    assert node.level == 1, path
                    assert node.module, f"{path}: `from . import x` is missed by the copier of remote code"
                    assert "." not in node.module, path
