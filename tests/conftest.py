"""Fixtures for all tests. A real Kafka for the session starts when a test first asks for it, so
``-m "not job"`` starts none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from lakequeue.definitions import definition
from lakequeue.definitions import definition_values as read
from lakequeue.streaming.kafka.embedded_kafka import JAVA_OPTIONS, EmbeddedKafka
from rules.harness import Bench

# The time of an example depends on the machine and its other load.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")
# Brokers of tests live for seconds: optimised compilation would take longer than it saves.
os.environ.setdefault(JAVA_OPTIONS, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


class RootIsNoPackage:
    """The root is the package lakequeue, but pytest would import it under the name of its folder,
    which fails for a checkout called, say, lakequeue-main."""

    def pytest_collect_directory(
        self, path: Path, parent: pytest.Collector
    ) -> pytest.Collector | None:
        if path == Path(__file__).parent.parent:
            return pytest.Dir.from_parent(parent, path=path)  # type: ignore[arg-type]
        return None


def pytest_configure(config: pytest.Config) -> None:
    """A hook of this file itself would apply only below its folder."""
    config.pluginmanager.register(RootIsNoPackage())


class SharedKafka(EmbeddedKafka):
    """Its cleaner checks every second for topics to compact, instead of every fifteen."""

    def _configure(self) -> None:
        super()._configure()
        with (self.home / "server.properties").open("a") as file:
            file.write("\nlog.cleaner.backoff.ms=1000\n")


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A running broker that all tests share: use topics with names of your own, and leave it
    running."""
    with SharedKafka(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="module")
def small_active_sets() -> Iterator[None]:
    """Allow `target_queue_depth` from 1 on, instead of from 1000 on (R5), because walks are
    short."""
    with pytest.MonkeyPatch.context() as patch:
        key = "target_queue_depth"
        patch.setitem(definition._READERS, key, (key, read.count(1)))
        yield


@pytest.fixture
def bench() -> Bench:
    """An engine with one queue, `orders`, that gives a consumer up to 100 messages."""
    bench = Bench()
    bench.define(max_per_subscription_backlog=100)
    return bench


@pytest.fixture
def empty() -> Bench:
    """An engine without queues."""
    return Bench()
