"""One name, one thing: no two modules and no two classes of the package are called the same.

But for what takes over: as long as the core on live objects stands beside the old one, a name may
stand once in each of the two.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from lakequeue.streaming import spark

ROOT = Path(spark.__file__).parents[1]
TAKE_OVER = ("core/", "mesh/", "replica/", "protocol/neighbours.py", "streaming/earlier/")


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
    places: dict[tuple[str, bool], list[str]] = defaultdict(list)
    for name, path in names:
        place = str(path.relative_to(ROOT))
        places[name, place.startswith(TAKE_OVER)].append(place)
    return {name: found for (name, _), found in places.items() if len(found) > 1}


def test_each_module_has_a_name_of_its_own() -> None:
    named = [(path.stem, path) for path in modules()]
    assert len(named) > 100, "the rooms were not found"
    assert more_than_once(named) == {}


def test_each_class_has_a_name_of_its_own() -> None:
    named = list(classes())
    assert len(named) > 100, "no classes were found"
    assert more_than_once(named) == {}
