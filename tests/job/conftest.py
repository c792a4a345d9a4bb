"""The real job for the tests: one Kafka broker and one engine for all of them. Then the same Java
serves another home, in micro-batches.

Only tests in which the engine dies, or which need other settings, start an engine of their own, as
a process (`processes.py`).
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
from lakequeue.streaming.engine_settings import MICRO_BATCH, REAL_TIME
from lakequeue.streaming.kafka.topics_admin import ensure_topics

BATCH_S = 8.0  # the driver gets reports at the end of a batch; each batch costs half a second
# When to make the archive of Java's classes, if it is missing. By default it is made later, with
# the lowest priority; here a dozen engines start in the next minutes, and it saves each of them a
# third of its start.
ARCHIVE_S = 25.0
java._LOWEST_PRIORITY = 'exec "$@"'
ENGINE = pytest.StashKey[contextlib.ExitStack]()
LAST = pytest.StashKey[bool]()

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

    failures: list[BaseException] = field(default_factory=list)
    kafka: EmbeddedKafka = field(init=False)
    engine: Engine = field(init=False)

    @property
    def url(self) -> str:
        return f"kafka://{self.kafka.bootstrap_servers}"

    @property
    def query(self) -> Any:
        """The query of the only broker."""
        (broker,) = self.engine.brokers.values()
        return broker.query

    def connect(self, name: str = "test") -> lakequeue.Connection:
        return lakequeue.connect(self.url, client_name=name)

    def start(self, home: Path, trigger: str = REAL_TIME) -> None:
        """Serve this home. Spark's Java belongs to this process, and is warm the second time."""
        settings = {
            "lakequeue.ui_port": "0", "lakequeue.tables_interval_s": "6",
            "lakequeue.history_interval_s": "12", "lakequeue.snapshots_interval_s": "24",
            "lakequeue.trigger": trigger, "lakequeue.batch_s": str(BATCH_S), **INTERPRETED,
        }  # fmt: skip
        bootstrap = self.kafka.bootstrap_servers
        self.engine = Engine(bootstrap, home, configuration(), settings=settings)
        self._supervisor = threading.Thread(target=self.watch, args=(self.engine,), daemon=True)
        self.engine.start()
        self._supervisor.start()

    def watch(self, engine: Engine) -> None:
        """The engine's supervisor; an exception in it fails the session at its end."""
        try:
            engine.wait()
        except BaseException as error:
            self.failures.append(error)

    def stop(self) -> None:
        self.engine.stop()
        with contextlib.suppress(RuntimeError):  # it was never started
            self._supervisor.join(30)


def configuration() -> Configuration:
    """The queues of all tests: a queue defined later could make the engine restart its query."""
    scenarios = [
        {"name": queue_name(rule, queue), "message_type": "json"}
        for rule, scenario in chosen().items()
        for queue in queues_of(scenario)
    ]
    return parse_configuration({"queues": QUEUES + scenarios})


@contextlib.contextmanager
def serving(job: Job, folder: Path, trigger: str) -> Iterator[None]:
    """Serve a new home, on a Kafka of its own."""
    with EmbeddedKafka(folder / "kafka") as job.kafka:
        ensure_topics(job.kafka.bootstrap_servers, [], WRITTEN_PLAINLY)
        try:
            job.start(folder, trigger)
            yield
        finally:
            job.stop()
    assert not job.failures, f"the engine failed: {job.failures[0]}"


@pytest.fixture(scope="session")
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """The engine, started once. It also makes the archives with which later engines start
    faster."""
    job = Job()
    with contextlib.ExitStack() as engine:
        request.config.stash[ENGINE] = engine
        engine.enter_context(serving(job, tmp_path_factory.mktemp("job"), REAL_TIME))
        java.make_later([job.kafka.archive, job.engine.application.archive], ARCHIVE_S)
        ensure_topics(job.kafka.bootstrap_servers, [], ["late-1"])  # for test_plain_kafka.py
        yield job


@pytest.fixture(scope="session")
def micro_batches(
    job: Job, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """From here on the engine runs with Spark's other trigger."""
    engine = request.config.stash[ENGINE]
    engine.close()
    engine.enter_context(serving(job, tmp_path_factory.mktemp("batches"), MICRO_BATCH))


def _turn(item: pytest.Item) -> int:
    """The order of tests: first those that leave the shared engine's home in place (0), then those
    that change it (1), those with the other trigger (2), and those without that engine (3)."""
    names = getattr(item, "fixturenames", ())
    if "job" not in names:
        return 3
    return 2 if "micro_batches" in names else int(item.get_closest_marker("last") is not None)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests, and mark the last one that uses the shared engine."""
    items.sort(key=_turn)
    for item in [item for item in items if _turn(item) < 3][-1:]:
        item.stash[LAST] = True


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Stop the shared engine after its last test. An idle engine would take a third of a core, or
    more, from the engines that later tests start."""
    if LAST in item.stash and ENGINE in item.config.stash:
        item.config.stash[ENGINE].close()


@pytest.fixture
def connection(job: Job) -> Iterator[lakequeue.Connection]:
    """A connection for this test only."""
    with job.connect() as connection:
        yield connection
