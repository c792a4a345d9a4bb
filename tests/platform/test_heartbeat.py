"""The engine says that it lives, also after Kafka was away, and not after its end."""

import json
import os
import threading
import time
from pathlib import Path

from lakequeue.protocol import NotConnected
from lakequeue.streaming.watch.heartbeat import EngineHeartbeat


def test_it_beats_until_its_end_whatever_kafka_does(tmp_path: Path) -> None:
    heard: list[bytes] = []
    enough = threading.Event()

    def send(value: bytes) -> None:
        heard.append(value)
        if len(heard) >= 3:
            enough.set()
        if len(heard) == 1:
            raise NotConnected("Kafka is away")

    heartbeat = EngineHeartbeat(send, tmp_path, every_s=0.01)
    heartbeat.start()
    assert enough.wait(60)
    heartbeat.stop()
    count = len(heard)
    time.sleep(0.1)
    assert count == len(heard)
    said = json.loads(heard[-1])
    assert (said["process"], said["home"]) == (os.getpid(), str(tmp_path))


def test_one_that_never_began_can_be_stopped(tmp_path: Path) -> None:
    sent: list[bytes] = []
    heartbeat = EngineHeartbeat(sent.append, tmp_path)
    heartbeat.stop()
    assert (sent, heartbeat.is_alive()) == ([], False)
