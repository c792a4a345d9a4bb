"""A handler that catches every exception hides bugs unless it says why it must: at its line."""

import ast
from collections.abc import Iterator
from pathlib import Path

from lakequeue.streaming.spark.spark_session import ROOMS

ROOT = Path(__file__).parents[2]
ALL = {"Exception", "BaseException"}


def without_a_reason(source: str) -> Iterator[int]:
    """The lines of handlers that catch everything, raise nothing, and have no comment."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ExceptHandler) and "#" not in lines[node.lineno - 1]:
            named = node.type.id if isinstance(node.type, ast.Name) else None
            every = node.type is None or named in ALL
            if every and not any(isinstance(inner, ast.Raise) for inner in ast.walk(node)):
                yield node.lineno


def test_a_handler_that_catches_everything_says_why() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}"
        for room in ROOMS
        for file in sorted((ROOT / room).rglob("*.py"))
        for line in without_a_reason(file.read_text())
    ]
    assert found == []


def test_one_without_a_reason_is_found() -> None:
    handlers = (
        "except Exception: # why\n  x",
        "except Exception:\n  raise",
        "except Exception:\n  x",
    )
    assert [list(without_a_reason(f"try:\n  x\n{h}\n")) for h in handlers] == [[], [], [3]]
