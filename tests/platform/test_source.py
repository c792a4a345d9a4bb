"""What the source of all rooms keeps to. Imports stand at the top of a file: the table below has
every module that a function imports instead, and why; who may import whom: `.importlinter`. No two
modules and no two classes are called the same. A handler that catches every exception hides bugs
unless it says why it must, at its line."""

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest
from lakequeue.streaming.spark import spark_session as spark

ROOT = Path(spark.__file__).parents[2]
ALL = {"Exception", "BaseException"}

PYARROW = "a third of a second; a client on Kafka, and a home on a disk, do without"
CLIENT = "a tenth of a second; many commands speak to no engine"
FILTERS = "a sixth of a second for the parser of filters; most commands read no definition"
PYSPARK = "part of a second; commands other than `up` and `run` need no Spark"
COMMAND = "slow, and only some commands, or some options of one, need it"
EXTRA = "an extra: it may be missing"
DAEMON = "the daemon imports what workers need when it starts, not when it is imported"
START = "Spark asks this module for its state variables while the query waits"
PLUGIN = "every run of pytest loads the plugin, most use no queue"

# A room or file and a module, with all that is in them: why a function imports it.
IN_FUNCTIONS = {
    ("bench", "lakequeue.streaming"): PYSPARK,
    ("bench", "pandas"): PYSPARK,
    ("bench", "pyspark"): PYSPARK,
    ("bench", "deltalake"): EXTRA,
    ("cli", "confluent_kafka"): EXTRA,
    ("cli", "duckdb"): EXTRA,
    ("cli", "kafka"): COMMAND,
    ("cli", "lakequeue.client"): CLIENT,
    ("cli", "lakequeue.conf"): FILTERS,
    ("cli", "lakequeue.definitions"): FILTERS,
    ("cli", "lakequeue.lake"): EXTRA,
    ("cli", "lakequeue.cli.sql"): EXTRA,
    ("cli", "lakequeue.cli.monitor"): EXTRA,
    ("cli", "lakequeue.monitor"): EXTRA,
    ("cli", "lakequeue.streaming"): COMMAND,
    ("cli", "prometheus_client"): COMMAND,
    ("cli", "pyspark"): PYSPARK,
    ("cli", "rich"): COMMAND,
    ("cli", "yaml"): COMMAND,
    ("client/spans.py", "opentelemetry"): EXTRA,
    ("lake", "deltalake"): EXTRA,
    ("lake", "duckdb"): EXTRA,
    ("lake/opening.py", "pyarrow"): "slow; only a scan of tables needs it",
    ("memory/pytest_plugin.py", "lakequeue"): PLUGIN,
    ("protocol/folders.py", "pyarrow"): PYARROW,
    ("protocol/wire.py", "lakequeue.protocol.journal_encoding"): PYARROW,
    ("streaming/application.py", "lakequeue.sources.kafka_source"): PYSPARK,
    ("streaming/loop/realtime.py", "lakequeue.streaming.loop.loop"): START,
    ("streaming/loop/realtime.py", "pyspark"): START,
    ("streaming/loop/worker_daemon.py", "lakequeue.streaming.loop"): DAEMON,
    ("streaming/loop/worker_daemon.py", "pyspark"): DAEMON,
    ("streaming/spark/queries.py", "lakequeue"): PYSPARK,
    ("streaming/spark/spark_session.py", "pyspark"): PYSPARK,
}


@cache
def modules() -> dict[Path, ast.Module]:
    """The modules of all rooms, parsed."""
    files = [file for room in spark.ROOMS for file in sorted((ROOT / room).rglob("*.py"))]
    return {file: ast.parse(file.read_text()) for file in files}


def named() -> list[Path]:
    """Without those that Python itself names (`__init__`)."""
    return [file for file in modules() if not file.stem.startswith("__")]


def within_functions(node: ast.AST, package: str, inside: bool = False) -> Iterator[str]:
    """The modules that functions import, by their full names."""
    for child in ast.iter_child_nodes(node):
        if inside and isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif inside and isinstance(child, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - child.level + 1]
            start = above if child.level else []
            if child.module:
                yield ".".join([*start, child.module])
            else:
                yield from (".".join([*start, alias.name]) for alias in child.names)
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from within_functions(child, package, inside or is_function)


def is_part(name: str, of: str, mark: str) -> bool:
    return name == of or name.startswith(of + mark)


def test_what_functions_import_is_slow_or_optional() -> None:
    used = set()
    for file, tree in modules().items():
        name = file.relative_to(ROOT).as_posix()
        package = ".".join(["lakequeue", *file.relative_to(ROOT).parts[:-1]])
        for module in within_functions(tree, package):
            rows = [(where, what) for where, what in IN_FUNCTIONS
                    if is_part(name, where, "/") and is_part(module, what, ".")]  # fmt: skip
            assert rows, f"{name}: import {module} at the top, or add why not to the table"
            used.update(rows)
    assert used == set(IN_FUNCTIONS)


@pytest.mark.parametrize("what", ["cli.common", "client"])
def test_a_command_and_a_client_start_with_little(what: str) -> None:
    slow = ("pyspark", "pandas", "pyarrow", "numpy", "kafka", "confluent_kafka", "lark", "rich")
    code = f"import lakequeue.{what}, sys; print(*(set({slow}) & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == ""


def more_than_once(names: Iterable[tuple[str, Path]]) -> dict[str, list[str]]:
    """What stands in several places, and where."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, path in names:
        places[name].append(str(path.relative_to(ROOT)))
    return {name: found for name, found in places.items() if len(found) > 1}


def test_each_module_and_each_class_has_a_name_of_its_own() -> None:
    files = [(file.stem, file) for file in named()]
    classes = [(node.name, file) for file in named() for node in modules()[file].body
               if isinstance(node, ast.ClassDef)]  # fmt: skip
    assert min(len(files), len(classes)) > 100, "the rooms were not found"
    assert more_than_once(files) == more_than_once(classes) == {}


def without_a_reason(source: str, tree: ast.Module) -> Iterator[int]:
    """The lines of handlers that catch everything, raise nothing, and have no comment."""
    lines = source.splitlines()
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and "#" not in lines[node.lineno - 1]:
            named = node.type.id if isinstance(node.type, ast.Name) else None
            every = node.type is None or named in ALL
            if every and not any(isinstance(inner, ast.Raise) for inner in ast.walk(node)):
                yield node.lineno


def test_a_handler_that_catches_everything_says_why() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}"
        for file, tree in modules().items() for line in without_a_reason(file.read_text(), tree)
    ]  # fmt: skip
    assert found == []


def test_one_without_a_reason_is_found() -> None:
    handlers = ("Exception: # why\n  x", "Exception:\n  raise", "Exception:\n  x")
    sources = [f"try:\n  x\nexcept {h}\n" for h in handlers]
    assert [list(without_a_reason(s, ast.parse(s))) for s in sources] == [[], [], [3]]
