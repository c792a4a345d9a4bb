"""The programs in examples/ that people copy, run on the engine in memory."""

from __future__ import annotations

import importlib.util
import io
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from runpy import run_path
from types import ModuleType
from typing import Any

import lakequeue
import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
QUEUES = {
    "queues": [
        {
            "name": "orders", "message_type": "json", "max_per_subscription_backlog": 100,
            "dead_message_queue": "dead", "filter": "/id IS NULL OR /id > 0",
        },
        {"name": "dead", "message_type": "json"},
        {"name": "prices", "message_type": "text", "max_per_subscription_backlog": 100},
    ]
}  # fmt: skip


def program(name: str) -> ModuleType:
    """A program, run from its file as a user would."""
    spec = importlib.util.spec_from_file_location(f"copied_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look there
    spec.loader.exec_module(module)
    return module


def said_by(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: str) -> Any:
    """The message with which a program exits."""
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    with pytest.raises(SystemExit) as ended:
        run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return ended.value.code


@pytest.fixture
def connection() -> Iterator[lakequeue.Connection]:
    with lakequeue.connect("memory://", config=QUEUES) as connection:
        yield connection


def test_the_worker_settles_each_message_by_its_outcome(
    connection: lakequeue.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, stop = program("worker"), threading.Event()
    handled: list[int | None] = []

    def handle(order: dict[str, int]) -> None:
        handled.append(order.get("id"))
        if len(handled) == 4:
            stop.set()
        print(order["id"])
        if order["id"] == 2:
            raise worker.TryAgain

    monkeypatch.setattr(worker, "handle", handle)
    with connection.producer() as producer:
        for order in ('{"id": 1}', '{"id": 2}', '{"number": 3}', '{"id": 4}'):
            producer.send("orders", order)
    worker.work(connection, "orders", stop)
    assert handled == [1, 2, None, 4]
    left = connection.admin().browse("orders")
    assert [(m.payload, m.state) for m in left] == [(b'{"id": 2}', "delayed")]
    (dead,) = connection.admin().browse("dead")
    assert dead.payload == b'{"number": 3}'
    assert dead.headers["lq-dead-detail"].startswith("KeyError")


@pytest.mark.parametrize(
    ("second", "status", "out", "err"),
    [(2, 0, "2 of 2 stored\n", []), (0, 1, "1 of 2 stored\n", ["""refused: '{"id": 0}'"""])],
)
def test_the_publisher_reads_lines_and_reports_refused_messages(
    second: int, status: int, out: str, err: list[str], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    lines = io.StringIO(f'{{"id": 1}}\n\n{{"id": {second}}}\n')
    with lakequeue.connect("memory://lines", config=QUEUES) as connection:
        monkeypatch.setattr(sys, "stdin", lines)
        assert program("publisher").main("memory://lines", "orders") == status
        assert connection.admin().describe("orders")["depth"] == 2 - status
    told = capsys.readouterr()
    assert (told.out, [line[:20] for line in told.err.splitlines()]) == (out, err)


def test_a_reply_reaches_its_request(connection: lakequeue.Connection) -> None:
    example = program("request_reply")
    with example.Requester(connection) as one, example.Requester(connection) as other:
        first, second, third = one.send("apples"), other.send("pears"), one.send("plums")
        assert example.serve(connection, timeout=0) == 3
        assert other.receive(second) == "1.60"
        assert one.receive(third) == "unknown", "a reply to another request is ignored"
        late = one.send("pears")
        with pytest.raises(TimeoutError, match="no reply within 10"):
            one.receive(late)
        assert first != third
    names = {queue["name"] for queue in connection.admin().queues()}
    assert names == {"orders", "dead", "prices"}, "queues for replies are deleted"


def test_a_request_of_a_departed_client_is_rejected(connection: lakequeue.Connection) -> None:
    example = program("request_reply")
    with example.Requester(connection) as gone:
        gone.send("apples")
    assert example.serve(connection, timeout=0) == 0
    assert connection.admin().describe("prices")["depth"] == 0


def test_a_request_without_a_reply_address_is_rejected(
    connection: lakequeue.Connection,
) -> None:
    """`lakequeue publish prices` sends such requests; the next request is answered all the same."""
    example = program("request_reply")
    connection.producer().send("prices", "apples")
    with example.Requester(connection) as requester:
        asked = requester.send("apples")
        assert example.serve(connection, timeout=0) == 1
        assert requester.receive(asked) == "1.20"
    assert connection.admin().describe("prices")["counters"]["consumer_rejected"] == 1


def test_a_server_ends_with_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(lakequeue, "connect", interrupted)
    assert said_by(monkeypatch, "request_reply", "serve", "memory://") == 130


def test_the_spark_job_is_the_documented_one() -> None:
    """A job test runs the page's code on a real engine."""
    page = (ROOT / "docs/how-to/spark-jobs.md").read_text()
    printed = page.partition("```python job\n")[2].partition("```")[0]
    text = (EXAMPLES / "spark_job.py").read_text()
    assert printed.strip(), "the page has a job"
    assert text.partition('"""\n\n')[2] == printed


def test_programs_are_small_and_say_how_to_run_them() -> None:
    programs = {path.stem: path.read_text() for path in EXAMPLES.glob("[a-z]*.py")}
    assert set(programs) == {
        "celery_shop", "plain_kafka", "publisher", "request_reply", "spark_job", "worker",
    }  # fmt: skip
    for name, text in programs.items():
        assert f"python examples/{name}.py" in text or "docs/how-to/celery.md runs it" in text
        assert len(text.splitlines()) <= (220 if name == "plain_kafka" else 130)


@pytest.mark.parametrize(
    "line",
    [
        "celery_shop --help", "publisher --help", "publisher", "request_reply --help",
        "request_reply serve", "request_reply ask kafka://127.0.0.1:1",
        "request_reply sell kafka://127.0.0.1:1", "spark_job --help", "spark_job", "worker --help",
        "worker kafka://127.0.0.1:1 orders more",
    ],
)  # fmt: skip
def test_wrong_arguments_get_one_line(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said = said_by(monkeypatch, *line.split())
    assert said.startswith("usage: ")
    assert line.split()[0] in said
    assert "\n" not in said


@pytest.fixture
def own_signals() -> Iterator[None]:
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("own_signals")
@pytest.mark.parametrize(
    "line",
    ["publisher nonsense:// orders", "request_reply ask nonsense:// apples",
     "worker nonsense:// orders"],
)  # fmt: skip
def test_a_wrong_address_gets_one_line(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    said = str(said_by(monkeypatch, *line.split()))
    assert "nonsense" in said
    assert "\n" not in said
