"""One name, one thing: no two modules and no two classes of the package are called the same."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from lakequeue.streaming.spark import spark_session as spark

ROOT = Path(spark.__file__).parents[2]


def modules() -> Iterator[Path]:
    """The modules of all rooms. What Python itself names (`__init__`) is no name of ours."""
    for room in spark.ROOMS:
        yield from (p for p in sorted((ROOT / room).rglob("*.py")) if not p.stem.startswith("__"))


def classes() -> Iterator[tuple[str, Path]]:
    """The classes at the top of each module, with the module."""
    for path in modules():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                yield node.name, path


def more_than_once(names: Iterable[tuple[str, Path]]) -> dict[str, list[str]]:
    """What stands in several places, and where."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, path in names:
        places[name].append(str(path.relative_to(ROOT)))
    return {name: found for name, found in places.items() if len(found) > 1}


def test_each_module_has_a_name_of_its_own() -> None:
    named = [(path.stem, path) for path in modules()]
    assert len(named) > 100, "the rooms were not found"
    assert more_than_once(named) == {}


def test_each_class_has_a_name_of_its_own() -> None:
    named = list(classes())
    assert len(named) > 100, "no classes were found"
    assert more_than_once(named) == {}
