"""Checks files against Hadoop's checksums, which Spark writes next to its local files.

A power loss can empty or truncate files that were closed and renamed before. Java's readers detect
this with the file ``.NAME.crc`` and raise. This module makes the same check in advance.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

DAMAGED = "is truncated or damaged"
_MAGIC, _HEAD = b"crc\0", 8


def sums_of(file: Path) -> Path:
    """The path of the file with a file's checksums."""
    return file.with_name(f".{file.name}.crc")


def damage_of(file: Path) -> str:
    """Describe a file's damage, such as "is missing" or "is empty"; an empty text if none is
    visible. Raises OSError if the file cannot be read."""
    try:
        size = file.stat().st_size
    except FileNotFoundError:
        return "is missing"
    if not size:
        return "is empty"
    try:
        sums = sums_of(file).read_bytes()
    except FileNotFoundError:
        return ""
    if sums[:4] != _MAGIC or len(sums) < _HEAD:  # Java ignores such a file, too
        return ""
    (chunk,) = struct.unpack_from(">I", sums, 4)
    wanted = memoryview(sums)[_HEAD:]
    at = 0
    with file.open("rb") as data:
        while part := data.read(chunk):
            if bytes(wanted[at : at + 4]) != zlib.crc32(part).to_bytes(4, "big"):
                return DAMAGED
            at += 4
    return "" if at == len(wanted) else DAMAGED


def remove(file: Path) -> None:
    """Remove a file with its checksums."""
    file.unlink(missing_ok=True)
    sums_of(file).unlink(missing_ok=True)
