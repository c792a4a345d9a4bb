"""Every command and snippet of the pages does what the page promises.

Those that an engine can answer run as printed, on one engine started as in the quickstart, at the
printed port. The others, each with a reason, are at least parsed: their options are valid, their
make targets exist.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import click
import pytest
from docs.printed import PAGES, ROOT, Printed, calls, commands, examples_of_help, fenced, name_of
from job.processes import until
from lakequeue.cli import main
from lakequeue.lake import read_columns
from lakequeue.streaming.java import start_tied
from lakequeue.streaming.spark.queries import QUERY_SETTINGS

from docs import forked

# Commands that cannot run here, and the reasons.
ELSEWHERE = {
    r"^make |^\. \.venv|^pip |^python3 -m venv|^app/bin/": "installs, or runs these tests",
    r"lakequeue (demo|bench)": "minutes of work; has tests of its own",
    r"lakequeue up": "runs already",
    r"kafka-1:9092|bootstrap kafka:9092|localhost:19092": "needs a cluster",
    r"^docker |^kubectl |engine\.log": "needs a cluster, or its log",
    r"lakequeue submit": "needs a cluster; tests/job/test_standalone.py has one",
    r"doctor --config FILE": "needs a file of several brokers; tests/platform/test_doctor.py",
    r"lakequeue move-queue|lakequeue brokers --": "several brokers: tests/job/test_standalone.py",
    r"lakequeue at 2026": "a time when nothing ran here; tests/cli goes to others",
    r"lakequeue move orders orders-2": "a queue that the quickstart does not define",
    r"lakequeue tables --repair": "an engine that has stopped: tests/platform/test_tables.py",
    r"lakequeue rebuild": "a home that has lost its checkpoint: tests/job/test_damage.py",
}
ENDLESS = re.compile(r"--watch|--follow|lakequeue monitor")
ENDLESS_S, COMMAND_S, START_S, TABLES_S, STEPS_S = 36, 240, 300, 180, 240

ALL = [printed for page in PAGES for printed in commands(page)]
HERE = [p for p in ALL if not any(re.search(e, p.text) for e in ELSEWHERE)]
SQL_PAGE, TRAVEL_PAGE = "docs/how-to/sql.md", "docs/how-to/travel.md"
TRACE_PAGE = "docs/how-to/trace-a-message.md"
FIRST, LAST = "docs/quickstart.md", TRAVEL_PAGE  # steps are in the tables after a minute
PARTS = [[FIRST], sorted({p.page for p in HERE} - {FIRST, LAST}), [LAST]]
TABLES_PAGE = ROOT / "docs" / "reference" / "delta-tables.md"
# Compiling plans takes longer than these few rows.
SHOW_SQL = """
import json, sys
for key, value in json.loads(sys.argv[5]).items():
    spark.conf.set(key, value)
for text in json.loads(sys.argv[4]):
    frame = spark.sql(text.strip().rstrip(";"))
    print("ROWS", json.dumps([row.asDict() for row in frame.collect()], default=str))
"""


# ---------------------------------------------------------------- parsed


def test_the_pages_have_commands() -> None:
    assert len(HERE) > 15
    assert len(examples_of_help()) > 30


@pytest.mark.parametrize("printed", [*ALL, *examples_of_help()], ids=lambda p: p.text[:60])
def test_options_are_understood(
    printed: Printed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in calls(printed.text.partition("\n")[0]):
        for word in words:
            if re.fullmatch(r"[\w*-]+\.\w+|token", word):
                Path(word).touch()  # a file of the reader
        check_understood(main, words)


def check_understood(command: click.Command, words: list[str]) -> None:
    """Parse a command line without running anything: a usage error fails the test."""
    with command.make_context("lakequeue", list(words), **{}) as context:
        if isinstance(command, click.Group) and context._protected_args:
            name, *rest = [*context._protected_args, *context.args]
            inner = command.get_command(context, name)
            assert inner is not None, f"no command {name}"
            check_understood(inner, rest)


@pytest.mark.parametrize("printed", [p for p in ALL if p.text.startswith("make ")], ids=str)
def test_make_targets_exist(printed: Printed) -> None:
    target = printed.text.split()[1]
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


# ---------------------------------------------------------------- run, on one engine


Done = subprocess.CompletedProcess[str]


class Place:
    """A folder with the engine of the quickstart, and the package's documentation."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / ".lakequeue"
        for name in ("docs", "conf", "examples"):
            (folder / name).symlink_to(ROOT / name)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        clean = {k: v for k, v in os.environ.items() if not k.startswith("LAKEQUEUE_")}
        self.environment = {**clean, "PATH": path}
        self.quickly = {**self.environment, "PATH": f"{folder}/bin:{path}"}

    @contextlib.contextmanager
    def forking(self) -> Iterator[None]:
        """Let `quickly` find a command that is already imported (`forked.py`)."""
        place = self.folder / "asked"
        forked.write_command(self.folder / "bin", place)
        command = [sys.executable, forked.__file__, str(place)]
        server = start_tied(command, env=self.environment, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout.readline() == "ready\n"
            yield
        finally:
            server.kill()

    def start(self) -> subprocess.Popen[str]:
        """Start `lakequeue up`, as printed."""
        process = subprocess.Popen(
            ["lakequeue", "up"], cwd=self.folder, env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        deadline = time.monotonic() + START_S
        while not (self.home / "address").exists():
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                pytest.fail(f"`lakequeue up`: {process.communicate()[0]}")
            time.sleep(0.2)
        return process

    def run(self, text: str, quickly: bool = True) -> Done:
        """Run a command in the shell."""
        environment = self.quickly if quickly else self.environment
        return self._run(["bash", "-c", text], environment, COMMAND_S)

    def python(self, code: str, *arguments: str, seconds: float = COMMAND_S) -> Done:
        """Run a snippet in a process of its own."""
        return self._run([sys.executable, "-c", code, *arguments], self.environment, seconds)

    def _run(self, command: list[str], environment: dict[str, str], seconds: float) -> Done:
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True,
            timeout=seconds, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def run_for_a_while(self, text: str) -> Done:
        """Run an endless command: it gets Ctrl-C a moment after its first output, or when it has
        printed nothing for `ENDLESS_S`."""
        process = subprocess.Popen(
            ["bash", "-c", f"exec {text}"], cwd=self.folder, env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            select.select([process.stdout], [], [], ENDLESS_S)
            time.sleep(1.0)
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=COMMAND_S)
        finally:
            process.kill()
        return subprocess.CompletedProcess(text, process.returncode, said, said)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    one = Place(tmp_path_factory.mktemp("reader"))
    process = one.start()
    try:
        with one.forking():
            yield one
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=180)
        assert process.returncode == 0, out
    finally:
        process.kill()


def good(done: Done) -> str:
    """Its output. A traceback or a failure fails the test."""
    assert done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout


def publish(place: Place) -> None:
    good(place.run("for n in 1 2 3; do echo '{\"price\": 12}'; done | lakequeue publish orders"))


@pytest.mark.job
@pytest.mark.parametrize("pages", PARTS, ids=["the first", "others", "the last"])
def test_commands_run_as_printed(place: Place, pages: list[str]) -> None:
    publish(place)
    for page in pages:
        print(page)  # shown if one of its commands fails
        if page in (SQL_PAGE, TRACE_PAGE):
            wait_for_events(place, {"spooled"}, "1")
        if page == TRAVEL_PAGE:
            wait_for_steps(place)
        printed = [one.text for one in HERE if one.page == page]
        if page != pages[0] and any("consume" in text for text in printed):
            publish(place)
        check_all_run(place, printed, quickly=page != FIRST)


def check_all_run(place: Place, printed: list[str], quickly: bool) -> None:
    """Run the commands of a page, one after the other, endless ones beside the others. quickly:
    without the imports of each."""
    endless: dict[str, Future[Done]] = {}
    with ThreadPoolExecutor() as beside:
        for text in printed:
            if ENDLESS.search(text):
                name = " ".join(text.split()[:2])
                if name in endless:  # two of a kind would want one port
                    good(endless[name].result())
                endless[name] = beside.submit(place.run_for_a_while, text)
            else:
                out = good(place.run(text, quickly))
                if text.startswith("lakequeue consume"):
                    assert out.startswith('{"price": 12}')
    for one in endless.values():
        good(one.result())


SNIPPETS = [
    (name_of(page), text)
    for page in PAGES
    for kind, text in fenced(page)
    if kind == "python" and "kafka://127.0.0.1:9092" in text and "memory://" not in text
]


@pytest.mark.job
@pytest.mark.parametrize(("page", "text"), SNIPPETS, ids=[page for page, _ in SNIPPETS])
def test_snippets_run_as_printed(place: Place, page: str, text: str) -> None:
    out = good(place.python(text))
    assert "stored as" in out
    assert "b'{\"price\": 12}'" in out


@pytest.mark.job
def test_spark_answers_the_questions_and_reads_and_writes_as_printed(place: Place) -> None:
    """Three pages in one session, which takes seconds to start."""
    lines = "; ".join(f"echo '{{\"n\": {n}}}'" for n in range(20))
    good(place.run(f"({lines}) | lakequeue publish orders"))
    consume = "lakequeue consume orders --timeout 6"  # on a slow machine the first comes later
    until(lambda: '{"n": 19}' in good(place.run(consume)), 60, "the last one is consumed")
    good(place.run("echo '{}' | lakequeue publish orders --ttl 100ms"))
    wait_for_events(place, {"acknowledged", "expired"})
    good(place.run("echo '{\"price\": 12}' | lakequeue publish orders"))
    kinds = list(fenced(TABLES_PAGE))
    opening = "\n".join(text for kind, text in kinds if kind == "python tables")
    questions = [text for kind, text in kinds if kind == "sql"]
    pages = ("spark-jobs.md", "write-from-spark.md")
    printed = dict(part for page in pages for part in fenced(ROOT / "docs" / "how-to" / page))
    frame = "rows = spark.sql(\"SELECT 'ann' AS customer, 5 AS price\")\n"
    stop = "spark.stop()\n"
    code = printed["python job"].replace(stop, frame + printed["python rows"] + stop)
    job = ("kafka://127.0.0.1:9092", "orders", "lake")
    asked = (*job, json.dumps(questions), json.dumps(QUERY_SETTINGS))
    done = place.python(opening + SHOW_SQL + code, *asked, seconds=2 * START_S)
    assert done.returncode == 0, done.stderr
    # PySpark's daemon may complain when it is told to end; its path says nothing about us.
    files = [line for line in done.stderr.splitlines() if "lakequeue/" in line]
    assert [line for line in files if "site-packages" not in line] == []
    assert "b'{\"price\": 12}' 1" in done.stdout
    said = good(place.run("lakequeue consume orders --count 1 --timeout 120"))
    assert said == '{"customer":"ann","price":5}\n'
    answers = [json.loads(line[5:]) for line in done.stdout.splitlines() if line[:5] == "ROWS "]
    assert len(answers) == len(questions) >= 3
    assert all(answers), "a query without rows"
    became, payload, *_ = answers
    assert {"spooled", "delivered"} <= {row["event"] for row in became}
    assert json.loads(payload[0]["payload"])


@pytest.mark.job
def test_the_tables_are_queried_from_python(place: Place) -> None:
    good(place.run("echo '{}' | lakequeue publish orders"))
    wait_for_events(place, {"spooled"}, "1")
    for kind in ("python tables", "python own"):
        (code,) = [text for found, text in fenced(ROOT / SQL_PAGE) if found == kind]
        assert "('orders'," in good(place.python(code))


def wait_for_steps(place: Place) -> None:
    """Wait until the tables have the steps taken so far: they are written once a minute."""
    steps = place.home / "tables" / "steps"
    until(lambda: len(read_columns(steps, ["step"])) > 1, STEPS_S, "steps are in the tables")


def wait_for_events(place: Place, wanted: set[str], number: str = "") -> None:
    """Wait until the table has these events, and that the message of this number was spooled; by
    default, that message 17 was acknowledged."""
    one = (number, "spooled") if number else ("17", "acknowledged")

    def are_there() -> bool:
        table = read_columns(place.home / "tables" / "journal", ["event", "message_id"])
        rows = {(row["message_id"], row["event"]) for row in table.to_pylist()}
        return one in rows and wanted <= {event for _, event in rows}

    until(are_there, TABLES_S, f"{wanted} are in the journal")
