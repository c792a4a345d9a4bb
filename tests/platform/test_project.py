"""Rules of the project: every shipped package is pinned with hashes; the wheel is complete and
works without a checkout; imports are at the top of a file, and a table has the modules that
functions import, each with its reason; names of modules and classes are unique; a handler that
catches every exception gives its reason at its line. Import rules: `.importlinter`.

The wheel is installed into a virtual environment of its own; the dependencies come from the
environment that runs the tests, through a path file, so nothing is fetched. Editable installs do
not come with a path file, so `lakequeue` there is the wheel's. About 10 s.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import threading
import tomllib
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest
from lakequeue.streaming.spark import spark_session as spark
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAKEFILE = (ROOT / "Makefile").read_text()
SHIPPED = ("demo", "monitor", "sql")


def locked() -> dict[str, tuple[str, int]]:
    """Version and number of hashes, by name."""
    text = (ROOT / "requirements.lock").read_text().replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        if one := re.match(r"([A-Za-z0-9._-]+)==([^ ;]+)", line):
            hashes = len(re.findall(r"--hash=sha256:[0-9a-f]{64}", line))
            found[canonicalize_name(one[1])] = one[2], hashes
        else:
            assert not line.strip() or line.strip().startswith("#"), line  # no addresses
    return found


def test_all_shipped_packages_are_pinned_with_hashes() -> None:
    extras, there = PROJECT["project"]["optional-dependencies"], locked()
    wanted = [*PROJECT["project"]["dependencies"], *(x for extra in SHIPPED for x in extras[extra])]
    for requirement in map(Requirement, wanted):
        version, _ = there[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement}: {version} is locked"
    assert all(hashes for _, hashes in there.values())


def test_the_makefile_locks_the_shipped_packages() -> None:
    (line,) = re.findall(r"^SHIPPED := (.*)$", MAKEFILE, re.MULTILINE)
    assert tuple(line.split()) == SHIPPED


def test_an_audit_without_an_answer_fails() -> None:
    """A package index without the list of vulnerabilities does not prove that there are none."""
    (line,) = (x for x in MAKEFILE.splitlines() if "/pip-audit " in x)
    assert "--strict" in line
    assert "--require-hashes" in line


# ------------------------------------------------------------ the wheel


ROOMS = [name.partition(".")[2] for name in PROJECT["tool"]["setuptools"]["packages"]]
ROUND_TRIP = """
import lakequeue, lakequeue.aio
from lakequeue.cli.start_engine import PACKAGE_CONFIGURATION
from lakequeue.conf import load
from lakequeue.streaming.jars import JARS_XML
from lakequeue.streaming.spark.spark_session import read_conf

with lakequeue.connect(f"memory://?config={PACKAGE_CONFIGURATION}") as connection:
    producer = connection.producer()
    producer.send("orders", b'{"price": 5}')
    producer.send("orders", b'{"price": 80}')
    with connection.consumer("orders", filter="/price > 10") as consumer:
        message = consumer.receive()
        message.ack()
        assert message.payload == b'{"price": 80}'
    assert connection.admin().describe("orders")["depth"] == 1
assert read_conf() and JARS_XML.is_file()
print(lakequeue.__file__)
"""


def run(*command: str | Path, cwd: Path) -> str:
    """The output of a command, whose exit status is 0."""
    done = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    environment = Path(sys.executable).parent
    # -o: as if the environment were up to date, so that the test installs nothing into it.
    run("make", "-o", ".venv/.installed", "wheel", f"BIN={environment}", f"DIST={folder}", cwd=ROOT)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands' folder in an environment with the wheel."""
    home = tmp_path_factory.mktemp("fresh")
    run(sys.executable, "-m", "venv", "--without-pip", home, cwd=home)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    run(*pip, "install", "--no-deps", "--no-index", wheel, cwd=home)
    (site,) = home.glob("lib/python*/site-packages")
    paths = [path for path in sys.path if Path(path).name == "site-packages"]
    (site / "dependencies.pth").write_text("".join(f"{path}\n" for path in paths))
    return home / "bin"


def test_the_wheels_name_is_that_of_the_readme(wheel: Path) -> None:
    assert wheel.name == f"lakequeue-{PROJECT['project']['version']}-py3-none-any.whl"
    assert wheel.name in (ROOT / "README.md").read_text()


def test_the_wheel_has_every_room_and_nothing_else(wheel: Path) -> None:
    """Python files and package data as in the checkout; no tests, no docs."""
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    data = PROJECT["tool"]["setuptools"]["package-data"]
    wanted = set()
    for room in ROOMS:
        for pattern in ("*.py", *data.get(f"lakequeue.{room}", ())):
            folder = room.replace(".", "/")
            found = (ROOT / folder).glob(pattern)
            wanted |= {Path("lakequeue", file.relative_to(ROOT)) for file in found}
    assert {str(path) for path in wanted} == held
    assert {"lakequeue/conf/queues.yaml", "lakequeue/conf/jars.xml", "lakequeue/aio.py",
            "lakequeue/expressions/grammar.lark"} <= held  # fmt: skip


def test_every_folder_of_code_is_a_room() -> None:
    """A room missing in pyproject.toml, the Makefile or the Dockerfile is missing for users."""
    rooms = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert rooms == {room for room in ROOMS if "." not in room} - {""}
    parts = {f.parent.relative_to(ROOT).as_posix() for room in rooms
             for f in (ROOT / room).glob("*/__init__.py")}  # fmt: skip
    assert parts == {room.replace(".", "/") for room in ROOMS if "." in room}
    assert set(MAKEFILE.partition("ROOMS := ")[2].partition("\n")[0].split()) == rooms
    assert rooms == set(spark.ROOMS)
    image = (ROOT / "Dockerfile").read_text()
    assert {room for room in rooms if f"COPY {room} {room}\n" not in image} == set()
    assert all(file.name in image for file in ROOT.glob("*.py"))


def test_no_page_installs_the_package_from_an_index() -> None:
    """No index has it: a package of its name there would be somebody else's."""
    files = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    files += [file for room in ROOMS for file in (ROOT / room).glob("*.py")]
    told = [file for file in files if re.search(r"pip install '?lakequeue", file.read_text())]
    assert told == []


def test_the_command_runs(installed: Path, tmp_path: Path) -> None:
    said = run(installed / "lakequeue", "--version", cwd=tmp_path)
    assert PROJECT["project"]["version"] in said


def test_a_round_trip_on_memory(installed: Path, tmp_path: Path) -> None:
    where = run(installed / "python", "-c", ROUND_TRIP, cwd=tmp_path).strip()
    assert Path(where).is_relative_to(installed.parent), "not the wheel's"


def test_the_wheel_has_the_benchmarks(installed: Path, tmp_path: Path) -> None:
    """`bench` is part of the wheel: it measures the machine where the wheel is installed."""
    said = run(installed / "lakequeue", "bench", "core", "--messages", "2000", cwd=tmp_path)
    assert "µs" in said


# ------------------------------------------------------------ the source

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

# A room or file, and a module, each with everything inside: why functions there import it.
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
    ("streaming/loop/realtime.py", "lakequeue.streaming.loop.loop"): START,
    ("streaming/loop/realtime.py", "pyspark"): START,
    ("streaming/loop/worker_daemon.py", "lakequeue.streaming.loop"): DAEMON,
    ("streaming/loop/worker_daemon.py", "pyspark"): DAEMON,
    ("streaming/spark/spark_session.py", "pyspark"): PYSPARK,
}


@cache
def modules() -> dict[Path, ast.Module]:
    """The parsed modules of all rooms."""
    files = [file for room in spark.ROOMS for file in sorted((ROOT / room).rglob("*.py"))]
    return {file: ast.parse(file.read_text()) for file in files}


def named() -> list[Path]:
    """Without Python's own names (`__init__`)."""
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


def test_only_slow_or_optional_modules_are_imported_in_functions() -> None:
    used = set()
    for file, tree in modules().items():
        if not re.search(r"^ +(?:import|from) ", file.read_text(), re.MULTILINE):
            continue  # most files: their trees need not be walked
        name = file.relative_to(ROOT).as_posix()
        package = ".".join(["lakequeue", *file.relative_to(ROOT).parts[:-1]])
        for module in within_functions(tree, package):
            rows = [(where, what) for where, what in IN_FUNCTIONS
                    if is_part(name, where, "/") and is_part(module, what, ".")]  # fmt: skip
            assert rows, f"{name}: import {module} at the top, or add why not to the table"
            used.update(rows)
    assert used == set(IN_FUNCTIONS)


STARTS = """
import sys
from lakequeue.cli import main
slow = {"confluent_kafka", "deltalake", "duckdb", "kafka", "lark", "numpy", "pandas", "pyarrow",
        "pyspark", "rich"}
def say(what):
    print(what, *sorted(slow & set(sys.modules)))
main(["--help"], standalone_mode=False)
say("help")
import lakequeue.cli.command_options
say("commands")
import lakequeue.client
say("client")
"""


def test_the_command_line_and_a_client_import_little() -> None:
    """Slow modules are loaded only where they are needed."""
    ran = subprocess.run([sys.executable, "-c", STARTS], capture_output=True, text=True, check=True)
    assert "Usage: " in ran.stdout
    assert ran.stdout.splitlines()[-3:] == ["help", "commands", "client"]


def more_than_once(names: Iterable[tuple[str, Path]]) -> dict[str, list[str]]:
    """Names that occur in several places, and the places."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, path in names:
        places[name].append(str(path.relative_to(ROOT)))
    return {name: found for name, found in places.items() if len(found) > 1}


def test_names_of_modules_and_classes_are_unique() -> None:
    files = [(file.stem, file) for file in named()]
    classes = [(node.name, file) for file in named() for node in modules()[file].body
               if isinstance(node, ast.ClassDef)]  # fmt: skip
    assert min(len(files), len(classes)) > 100, "the rooms were not found"
    assert more_than_once(files) == more_than_once(classes) == {}


def without_a_reason(source: str, tree: ast.Module) -> Iterator[int]:
    """The lines of handlers that catch everything, raise nothing, and have no comment."""
    lines = source.splitlines()
    for node in ast.walk(tree) if "Exception" in source or "except:" in source else ():
        if isinstance(node, ast.ExceptHandler) and "#" not in lines[node.lineno - 1]:
            named = node.type.id if isinstance(node.type, ast.Name) else None
            every = node.type is None or named in ALL
            if every and not any(isinstance(inner, ast.Raise) for inner in ast.walk(node)):
                yield node.lineno


def test_a_handler_that_catches_everything_has_a_reason() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}"
        for file, tree in modules().items() for line in without_a_reason(file.read_text(), tree)
    ]  # fmt: skip
    assert found == []


def test_a_handler_without_a_reason_is_found() -> None:
    handlers = ("Exception: # why\n  x", "Exception:\n  raise", "Exception:\n  x")
    sources = [f"try:\n  x\nexcept {h}\n" for h in handlers]
    assert [list(without_a_reason(s, ast.parse(s))) for s in sources] == [[], [], [3]]


THREADS = {"threading.Thread", "WatchThread", "TopicReader"}
OF_THREADS = vars(threading.Thread()).keys() | set(dir(threading.Thread))


def hidden_of_threads(tree: ast.Module) -> Iterator[str]:
    """Attributes of Thread that our thread classes replace: with a `_bootstrap` of its own no
    thread can start."""
    for kind in ast.walk(tree):
        if isinstance(kind, ast.ClassDef) and THREADS & {ast.unparse(one) for one in kind.bases}:
            stored = (node for node in ast.walk(kind) if isinstance(node, ast.Attribute)
                      and isinstance(node.ctx, ast.Store))  # fmt: skip
            for node in stored:
                if ast.unparse(node.value) == "self" and node.attr in OF_THREADS:
                    yield f"{kind.name}.{node.attr}"


def test_no_thread_class_hides_attributes_of_thread() -> None:
    assert [found for tree in modules().values() for found in hidden_of_threads(tree)] == []
    one = "class A(WatchThread):\n  def f(self):\n    self._bootstrap = self.mine = 1\n"
    assert list(hidden_of_threads(ast.parse(one))) == ["A._bootstrap"]
