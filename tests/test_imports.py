"""The import arrows of DESIGN §6, read from the source."""

import ast
from pathlib import Path

import pytest

import hf_semfocus

PACKAGE = Path(hf_semfocus.__file__).parent
ALLOWED = {
    "model": {"model"},
    "data": {"data"},
    "integrations": {"integrations", "model"},
    "analysis": {"analysis", "integrations", "model"},
    "bench": {"bench", "model"},
}


def imported_parts(path: Path) -> set[str]:
    """The parts of the package (first level) that a file imports, relative or absolute, at the top or inside functions."""
    package = ("hf_semfocus", *path.relative_to(PACKAGE).parts[:-1])
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *filter(None, [node.module])])
            names = [module, *(f"{module}.{alias.name}" for alias in node.names)]
        for name in names:
            parts = name.split(".")
            if parts[0] == "hf_semfocus" and len(parts) > 1 and (PACKAGE / parts[1]).is_dir():
                found.add(parts[1])
    return found


@pytest.mark.parametrize("part", ALLOWED)
def test_arrows(part):
    files = list((PACKAGE / part).rglob("*.py"))
    assert files
    for path in files:
        assert imported_parts(path) <= ALLOWED[part], path


def test_the_reader_sees_relative_and_nested_imports(tmp_path, monkeypatch):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "data").mkdir()
    (folder / "x.py").write_text("def f():\n    from ..data import y\n")
    monkeypatch.setattr(
        "tests.test_imports.PACKAGE" if __name__.startswith("tests") else f"{__name__}.PACKAGE", tmp_path
    )
    assert imported_parts(folder / "x.py") == {"data"}


def test_checkpoint_files_import_only_flat_siblings():
    for path in (PACKAGE / "model").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1, path
                assert node.module, f"{path}: `from . import x` is missed by the copier of remote code"
                assert "." not in node.module, path
