"""Fixtures for all tests: one real Kafka for the whole session, and the jars of Spark.

Both are made when a test first asks for them, so a run with ``-m "not job"`` starts nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from lakequeue.streaming.jars import ensure_jars
from lakequeue.streaming.kafka_broker import EmbeddedKafka


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A running broker that all tests share: take topics with names of your own, leave it up."""
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="session")
def spark_jars() -> list[Path]:
    """The jars for ``spark_session(jars=…)``."""
    return ensure_jars().spark
