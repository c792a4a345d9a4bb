"""The version of the code that takes steps. The log records it, because only the same code may
replay a step."""

from __future__ import annotations

import hashlib
import importlib.metadata
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The code that determines a step's outputs and their encoding.
_ROOMS = ("definitions", "expressions", "mesh", "protocol", "replica", "state")
_LIBRARIES = ("google-re2", "lark", "msgspec", "numpy", "pyarrow")


@cache
def code_version() -> str:
    """Such as ``0.1.0+1f3a5c7e9b``: the release, and a digest of all code that affects a step."""
    digest = hashlib.sha256(f"{sys.version_info[:2]}".encode())
    for library in _LIBRARIES:
        digest.update(f"{library} {importlib.metadata.version(library)}\n".encode())
    files: list[Path] = []
    for room in _ROOMS:
        files += [p for p in (ROOT / room).rglob("*") if p.suffix in (".py", ".lark")]
    for path in sorted(files):
        digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return f"{release()}+{digest.hexdigest()[:10]}"


def release() -> str:
    """Such as ``0.1.0``."""
    try:
        return importlib.metadata.version("lakequeue")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
