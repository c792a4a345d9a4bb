"""The wheel that `make wheel` builds: complete, without the tests, and it runs without a checkout.

It is installed into a virtual environment of its own; the dependencies are those of the environment
that runs the tests, by a path file, so that nothing is fetched. Editable installs do not come with
a path file, so `lakequeue` there is the wheel's. About 10 s.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
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
    """What a command prints; its exit status is 0."""
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
    """The folder of the commands of an environment that has the wheel."""
    home = tmp_path_factory.mktemp("fresh")
    run(sys.executable, "-m", "venv", "--without-pip", home, cwd=home)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    run(*pip, "install", "--no-deps", "--no-index", wheel, cwd=home)
    (site,) = home.glob("lib/python*/site-packages")
    paths = [path for path in sys.path if Path(path).name == "site-packages"]
    (site / "dependencies.pth").write_text("".join(f"{path}\n" for path in paths))
    return home / "bin"


def test_its_name_is_that_of_the_readme(wheel: Path) -> None:
    assert wheel.name == f"lakequeue-{PROJECT['project']['version']}-py3-none-any.whl"
    assert wheel.name in (ROOT / "README.md").read_text()


def test_it_holds_every_room_and_nothing_else(wheel: Path) -> None:
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
    """A room that pyproject.toml, the Makefile or the Dockerfile forgets is missing elsewhere."""
    rooms = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert rooms == {room for room in ROOMS if "." not in room} - {""}
    parts = {f.parent.relative_to(ROOT).as_posix() for room in rooms
             for f in (ROOT / room).glob("*/__init__.py")}  # fmt: skip
    assert parts == {room.replace(".", "/") for room in ROOMS if "." in room}
    makefile = (ROOT / "Makefile").read_text().partition("ROOMS := ")[2].partition("\n")[0]
    assert set(makefile.split()) == rooms
    image = (ROOT / "Dockerfile").read_text()
    assert {room for room in rooms if f"COPY {room} {room}\n" not in image} == set()
    assert all(file.name in image for file in ROOT.glob("*.py"))


def test_nobody_is_told_to_install_it_from_an_index() -> None:
    """There is none that has it; whatever has its name there would be somebody else's."""
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


def test_the_benchmarks_are_there_and_run(installed: Path, tmp_path: Path) -> None:
    """`bench` is part of the wheel: it measures the machine that the wheel is installed on."""
    said = run(installed / "lakequeue", "bench", "core", "--messages", "2000", cwd=tmp_path)
    assert "µs" in said
