"""Queues move between brokers that bridges join while everything takes its time, and brokers die:
nothing is lost, nothing comes twice, and of each source the order is kept (H1, Q2, Q5)."""

from __future__ import annotations

from typing import Any

import pytest
from lakequeue.definitions import parse_configuration
from lakequeue.protocol import commands as c

from .mortal import Fate
from .slow import SlowEngine
from .spread import BROKERS, local

PLACES = {"q": "b", "other": "c", "plain": "b"}


class Joined:
    """Three brokers, bridged from a to b, and queues that take what goes over."""

    def __init__(self, fate: Fate) -> None:
        queues = [
            local(name, broker, *([] if name == "plain" else ["t/1"]))
            for name, broker in PLACES.items()
        ]
        bridges = [{"name": "a-b", "from": "a", "to": "b", "subscriptions": ["t/>"]}]
        config = {"brokers": list(BROKERS), "queues": queues, "bridges": bridges}
        self.engine = SlowEngine(parse_configuration(config))
        self.engine.checking = True
        self.engine.fated(fate)
        self.publisher = self.engine.connect("a", "app")
        self.producer = self.publisher.producer()
        self.admin = self.engine.connect("a", "admin").admin()
        self.fate, self.futures = fate, list[Any]()
        self.sent: dict[str, list[bytes]] = {"t/1": [], "plain": []}

    def one(self, n: int) -> None:
        random = self.fate.random
        what = random.choice(["t/1", "plain", "move", "wait", *["some"] * 8])
        if what == "move":
            queue, broker = random.choice(sorted(PLACES)), random.choice(BROKERS)
            command = c.encode_command(c.MoveQueue(queue=queue, broker=broker))
            self.engine.command("default.commands", b"", command)
        elif what == "wait":
            self.engine.advance("300ms")
        elif what == "some":
            self.engine.some(self.fate)
        else:
            self.sent[what].append(body := b"%d" % n)
            if what == "plain":
                self.engine.publish("plain", body, None, [])
            else:
                self.futures.append(self.producer.send_async("t/1", body))

    def end(self) -> None:
        """Everything arrives, and what waits goes on."""
        self.engine.fated(None)
        self.engine.haste()
        for _ in range(30):  # clients ask again, too
            self.engine.advance("1s")
            self.publisher.attend()

    def bodies(self, queue: str) -> list[bytes]:
        return [m.payload for m in self.admin.browse(queue, limit=1_000)]


@pytest.mark.parametrize("seed", range(5))
def test_h1_bridges_and_plain_records_follow_however_late_things_are_heard(seed: int) -> None:
    joined = Joined(Fate(seed, death=0.05))
    joined.engine.slow()
    for n in range(250):
        joined.one(n)
    joined.end()
    assert all(future.result(0).message_id for future in joined.futures)
    assert joined.bodies("q") == joined.bodies("other") == joined.sent["t/1"]
    assert joined.bodies("plain") == joined.sent["plain"]
    moved = [e for e in joined.engine.journal() if e["event"] == "arrived"]
    assert len(moved) > 2
