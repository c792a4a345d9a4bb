"""The real job for the tests: one Kafka broker and one engine for each trigger, and all tests.

Only what must see the engine die, or needs other settings, starts an engine of its own, as a
process (`processes.py`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lakequeue
import pytest
from job.processes import INTERPRETED
from job.scenarios import chosen, queue_name, queues_of
from lakequeue.definitions import Configuration, parse_configuration
from lakequeue.streaming import EmbeddedKafka, Engine, java
from lakequeue.streaming.engine_settings import REAL_TIME, TRIGGERS
from lakequeue.streaming.kafka.topics_admin import ensure_topics

BATCH_S = 8.0  # what the driver hears comes with the end of a batch, which costs half a second
# Java's archive, where there is none. By default it is made later and humbly; here a dozen engines
# begin in the next minutes, and it saves each a third of its start.
ARCHIVE_S = 25.0
java._HUMBLY = 'exec "$@"'
ENGINE = pytest.StashKey[contextlib.ExitStack]()
LAST = pytest.StashKey[bool]()
in_real_time = pytest.mark.parametrize("job", [REAL_TIME], indirect=True)  # one trigger is enough

QUEUES: list[dict[str, Any]] = [
    {"name": "plain", "message_type": "json", "max_per_subscription_backlog": 50},
    {"name": "bad", "message_type": "json", "max_per_subscription_backlog": 50},
    {"name": "tables", "message_type": "text", "max_per_subscription_backlog": 200},
    {"name": "clock", "message_type": "text", "max_per_subscription_backlog": 50},
    {"name": "to-table", "message_type": "text", "max_per_subscription_backlog": 400},
    {"name": "from-rows", "message_type": "text", "max_per_subscription_backlog": 400},
    {"name": "orders", "message_type": "text", "max_per_subscription_backlog": 50},
    {"name": "others", "message_type": "text"},
    {
        "name": "late",
        "message_type": "text",
        "underlying_topic": "late(?P<number>-.*)?",
        "default_publish_target": "late-1",
    },
]
WRITTEN_PLAINLY = ["plain", "bad", "tables"]  # topics that tests write to


@dataclass
class Job:
    """A running engine in this process."""

    kafka: EmbeddedKafka
    trigger: str
    failures: list[BaseException] = field(default_factory=list)
    engine: Engine = field(init=False)

    @property
    def url(self) -> str:
        return f"kafka://{self.kafka.bootstrap_servers}"

    @property
    def query(self) -> Any:
        """The one broker's."""
        (broker,) = self.engine.brokers.values()
        return broker.query

    def connect(self, name: str = "test") -> lakequeue.Connection:
        return lakequeue.connect(self.url, client_name=name)

    def start(self, home: Path) -> None:
        """Serve this home. Spark's Java is this process's, and warm the second time."""
        settings = {
            "lakequeue.ui_port": "0", "lakequeue.tables_interval_s": "6",
            "lakequeue.trigger": self.trigger, "lakequeue.batch_s": str(BATCH_S), **INTERPRETED,
        }  # fmt: skip
        if self.trigger == REAL_TIME:  # with it are the tests that look at the history
            settings |= {
                "lakequeue.history_interval_s": "12", "lakequeue.snapshots_interval_s": "24"
            }  # fmt: skip
        bootstrap = self.kafka.bootstrap_servers
        self.engine = Engine(bootstrap, home, configuration(), settings=settings)
        self._supervisor = threading.Thread(target=self.watch, args=(self.engine,), daemon=True)
        self.engine.start()
        self._supervisor.start()

    def watch(self, engine: Engine) -> None:
        """The engine's supervisor; what it raises fails the session at its end."""
        try:
            engine.wait()
        except BaseException as error:
            self.failures.append(error)

    def stop(self) -> None:
        self.engine.stop()
        with contextlib.suppress(RuntimeError):  # it was never started
            self._supervisor.join(30)


def configuration() -> Configuration:
    """Every queue of every test, so that none of them makes the engine restart its query."""
    scenarios = [
        {"name": queue_name(rule, queue), "message_type": "json"}
        for rule, scenario in chosen().items()
        for queue in queues_of(scenario)
    ]
    return parse_configuration({"queues": QUEUES + scenarios})


@contextlib.contextmanager
def running(home: Path, trigger: str) -> Iterator[Job]:
    """An engine, and a Kafka of its own. Others that are started later start faster."""
    with EmbeddedKafka(home / "kafka") as kafka:
        ensure_topics(kafka.bootstrap_servers, [], WRITTEN_PLAINLY)
        job = Job(kafka, trigger)
        try:
            job.start(home)
            java.make_later([kafka.archive, job.engine.application.archive], ARCHIVE_S)
            ensure_topics(kafka.bootstrap_servers, [], ["late-1"])  # for test_plain_kafka.py
            yield job
        finally:
            job.stop()
    assert not job.failures, f"the engine failed: {job.failures[0]}"


@pytest.fixture(scope="session", params=TRIGGERS)
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """The engine, started once for each trigger; a module may choose one of them."""
    with contextlib.ExitStack() as engine:
        request.config.stash[ENGINE] = engine
        home = tmp_path_factory.mktemp("job")
        yield engine.enter_context(running(home, request.param))


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Put behind the others what leaves the engine another home, before pytest groups all by
    trigger; then find the last test that has the engine, of each trigger."""
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)
    yield
    last = {
        item.callspec.params["job"]: item
        for item in items
        if isinstance(item, pytest.Function) and "job" in item.fixturenames
    }
    for item in last.values():
        item.stash[LAST] = True


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Behind it the engine ends. Left alone it would take a third of a core, or more, from the
    engines that all later tests start."""
    if LAST in item.stash and ENGINE in item.config.stash:
        item.config.stash[ENGINE].close()


@pytest.fixture
def connection(job: Job) -> Iterator[lakequeue.Connection]:
    """A connection of this test's own."""
    with job.connect() as connection:
        yield connection
