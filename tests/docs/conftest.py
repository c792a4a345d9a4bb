"""What the tests of the documentation share."""

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def generate() -> ModuleType:
    """`docs/generate.py` as a module."""
    return load(ROOT / "docs" / "generate.py", "docs_generate")


@pytest.fixture(scope="session")
def table() -> Callable[[str, str], dict[str, list[str]]]:
    """Reads a marked table of a page: first column, without backquotes → the other columns."""

    def read(page: str, name: str) -> dict[str, list[str]]:
        text = (ROOT / "docs" / page).read_text()
        found = re.search(rf"<!-- table: {name} -->\n(.*?)\n<!-- end of table -->", text, re.DOTALL)
        assert found, f"{page}: no table {name!r}"
        rows = [
            [cell.strip() for cell in line.strip().strip("|").split("|")]
            for line in found[1].splitlines()[2:]
        ]
        keys = [row[0].strip("`") for row in rows]
        assert len(keys) == len(set(keys)), f"{page}: a row of {name!r} stands twice"
        return {key: row[1:] for key, row in zip(keys, rows, strict=True)}

    return read


def load(path: Path, name: str) -> ModuleType:
    """A file as a module."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
