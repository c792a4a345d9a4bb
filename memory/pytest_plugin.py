"""A pytest plugin: the fixture `lakequeue` gives each test an engine of its own.

    def test_orders(lakequeue):
        lakequeue.define("orders", max_cancels=3)
        application.run(lakequeue.url)
        lakequeue.advance("30s")
        lakequeue.assert_all_acknowledged()

The marker ``lakequeue`` sets a configuration, and what is checked at the end of the test:

    @pytest.mark.lakequeue(config="conf/queues.yaml", all_acknowledged=True)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from ..protocol.bounds import shown

if TYPE_CHECKING:
    from ..client import Admin
    from .in_process import MemoryEngine
    from .registry import MemoryConnection

_numbers = itertools.count(1)


class EngineForTest:
    """The value of the fixture `lakequeue`.

    url: the address for the application. connection: the test's own connection, which keeps the
    engine alive. admin: its `Admin`. engine: to look inside (`journal`, `restart`, `check`).
    """

    def __init__(self, config: Any = None) -> None:
        from .registry import open_memory

        name = f"pytest-{next(_numbers)}"
        self.url = f"memory://{name}"
        self.connection: MemoryConnection = open_memory(name, "", "default", "test", config)
        self.connection.engine.checking = True
        self.admin: Admin = self.connection.admin()
        self._opened: list[Any] = []

    @property
    def engine(self) -> MemoryEngine:
        """The engine, to look inside."""
        return self.connection.engine

    def connect(self, **options: Any) -> Any:
        """Another connection, closed after the test; the options of `lakequeue.connect`."""
        from ..client import connect

        connection = connect(self.url, **options)
        self._opened.append(connection)
        return connection

    def define(self, name: str, **keys: Any) -> None:
        """Define a queue; ``message_type`` is `json` unless given."""
        self.admin.define({"name": name, "message_type": "json", **keys})

    def advance(self, duration: str | float) -> None:
        """Move the clock, stopping at each deadline on the way."""
        self.connection.advance(duration)

    def now(self) -> datetime:
        """The engine's time."""
        return self.connection.now()

    def unacknowledged(self, *queues: str) -> dict[str, int]:
        """How many messages these queues (default: all) still hold; only queues that hold some."""
        found = {q["name"]: q["depth"] for q in self.admin.queues()}
        for name in queues:
            if not isinstance(name, str) or name not in found:
                there = ", ".join(sorted(found)) or "none"
                raise ValueError(f"queue: {shown(name)} – the queues are {there}")
        return {name: n for name, n in found.items() if n and (not queues or name in queues)}

    def assert_all_acknowledged(self, *queues: str) -> None:
        """Fail if these queues (default: all) still hold messages: ready, leased, delayed, or dead
        in a dead message queue."""
        __tracebackhide__ = True
        left = self.unacknowledged(*queues)
        if left:
            lines = [
                f"  {m.queue} {m.id}: {m.state}, {m.delivery_count} deliveries, {m.payload[:60]!r}"
                for name in left for m in self.admin.browse(name, limit=5)
            ]  # fmt: skip
            counts = ", ".join(f"{name}: {n}" for name, n in left.items())
            raise AssertionError("\n".join([f"messages are left unacknowledged: {counts}", *lines]))

    def close(self) -> None:
        """Close all connections, which ends the engine."""
        for connection in [*self._opened, self.connection]:
            connection.close()


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        "lakequeue(config=None, all_acknowledged=False): configuration of the engine that the "
        "fixture `lakequeue` gives (a mapping or a file), and whether the test fails if a queue "
        "still holds messages at its end (or, as a list, which queue)",
    )


@pytest.fixture
def lakequeue(request: pytest.FixtureRequest) -> Iterator[EngineForTest]:
    """An engine for this test only, in this process: no Kafka, no Spark, a clock to move."""
    mark = request.node.get_closest_marker("lakequeue")
    options = {"config": None, "all_acknowledged": False}
    for key, value in (mark.kwargs if mark is not None else {}).items():
        if key not in options:
            raise ValueError(f"marker lakequeue: {key!r} – allowed are {', '.join(options)}")
        options[key] = value
    wanted = options["all_acknowledged"]
    if isinstance(wanted, str):
        wanted = [wanted]
    if not isinstance(wanted, bool | list | tuple):
        raise ValueError(
            f"marker lakequeue: all_acknowledged={shown(wanted)} – allowed are True, False, and a "
            "list of queues"
        )
    given = EngineForTest(options["config"])
    try:
        yield given
        if wanted:
            given.assert_all_acknowledged(*(() if wanted is True else wanted))
    finally:
        given.close()
