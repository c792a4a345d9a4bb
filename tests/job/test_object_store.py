"""The real job with tables and checkpoints on an S3 store, of which the home knows the address."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import lakequeue
import pytest
from job.processes import EngineProcess, until
from lakequeue.lake import NoLake, open_lake
from lakequeue.lake.past import as_of, brokers
from lakequeue.lake.queries_at import admin_of
from lakequeue.lake.rebuilding import rebuild
from lakequeue.protocol import LakequeueError
from lakequeue.protocol.folders import folder
from lakequeue.streaming import EmbeddedKafka
from s3_store import bucket

__all__ = ["bucket"]
pytestmark = pytest.mark.job

CONFIG = "queues: [{name: orders, message_type: text, max_per_subscription_backlog: 10}]\n"
SETTINGS = (
    # Each file is several requests, and the store is a server in this process: seldom is soon.
    "--set", "lakequeue.batch_s=6", "--set", "lakequeue.history_interval_s=6",
    "--set", "lakequeue.snapshots_interval_s=6", "--set", "lakequeue.tables_interval_s=6",
)  # fmt: skip
COUNT, ACKED, LOOK_EACH_S = 20, 8, 3.0


def left(admin: Any) -> list[bytes]:
    return [message.payload for message in admin.browse("orders", limit=100)]


def known(home: Path) -> list[bytes]:
    """What the tables know of the queue, made again of a snapshot."""
    time.sleep(LOOK_EACH_S)
    with contextlib.suppress(NoLake), open_lake(home) as lake:
        with contextlib.suppress(lakequeue.ConfigError):
            for broker in brokers(lake):
                moment = as_of(lake, home, broker)
                return left(admin_of(moment)) if moment.snapshot else []
    return []


def test_a_home_on_an_object_store_survives_its_engine(bucket: str, tmp_path: Path) -> None:
    """Killed, it goes on from the checkpoint there; without that it is made of the tables there."""
    (tmp_path / "queues.yaml").write_text(CONFIG)
    home, store = tmp_path / "home", folder(bucket)
    places = (
        "--set", f"lakequeue.tables={bucket}/tables",
        "--set", f"lakequeue.checkpoints={bucket}/checkpoints",
    )  # fmt: skip
    with EmbeddedKafka(tmp_path / "kafka") as kafka:
        address = kafka.bootstrap_servers
        engines = [EngineProcess(address, home, tmp_path / "queues.yaml", *SETTINGS, *places)]
        try:
            engines[0].wait_ready()
            with lakequeue.connect(f"kafka://{address}", client_name="tests") as connection:
                admin = connection.admin()
                works(connection)
                rest = [b"%d" % number for number in range(ACKED, COUNT)]
                until(lambda: left(admin) == rest, 30, "the acks")
                until(lambda: known(home) == rest, 90, "the tables")
                engines[0].kill()
                checkpoint = store / "checkpoints" / "checkpoint" / "broker-0"
                assert any(checkpoint.glob("commits/*"))
                engines.append(EngineProcess(address, home, tmp_path / "queues.yaml", *SETTINGS))
                engines[1].wait_ready()
                assert left(admin) == rest
        finally:
            for engine in engines:
                engine.kill()
    assert not (home / "checkpoint").exists()
    assert not any((home / "tables").glob("*/_delta_log"))
    with pytest.raises(LakequeueError, match=f"{bucket}/checkpoints has a checkpoint"):
        rebuild(home, home)
    (store / "checkpoints" / "checkpoint").remove()
    (made,) = rebuild(home, home)
    assert made.messages == COUNT - ACKED
    assert not any((store / "checkpoints").glob("*/metadata"))


def works(connection: Any) -> None:
    producer = connection.producer()
    for number in range(COUNT):
        producer.send("orders", f"{number}")
    with connection.consumer("orders", ack_mode="individual", max_backlog=4) as consumer:
        for _ in range(ACKED):
            until(lambda: consumer.receive(1.0), 30, "a message").ack()
