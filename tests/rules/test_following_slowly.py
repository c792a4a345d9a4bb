"""Queues move between brokers that bridges join while everything takes its time, and brokers die:
nothing is lost, nothing comes twice, and of each source the order is kept (H1, Q2, Q5)."""

from __future__ import annotations

import time
from typing import Any

import pytest
from lakequeue.client import following
from lakequeue.definitions import parse_configuration
from lakequeue.protocol import commands as c
from lakequeue.protocol.errors import Moved

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
        for n in range(30):  # clients ask again, too, after a pause of their own
            time.sleep(following.PAUSE_S if n % 5 == 4 else 0)
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


def _is_leaving(engine: SlowEngine) -> None:
    """Queue q is on its way from b to c, and stays so: the brokers hear each other slowly."""
    for broker in engine.brokers:
        broker.is_slow = True  # type: ignore[attr-defined]
    move = c.encode_command(c.MoveQueue(queue="q", broker="c"))
    engine.command("default.commands", b"", move)
    for to, by in ("ba", "cb", "bc"):
        engine.let(to=to, by=by)


def test_p1_what_a_broker_goes_on_refusing_is_sent_again_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The queue is on its way all the time, and each answer is heard while the next message is
    sent; however long that takes, each is sent again once, and keeps its place."""
    monkeypatch.setattr(following, "PAUSE_S", 0.0)  # it is over before all are sent
    queues = [local("q", "b")]
    engine = SlowEngine(parse_configuration({"brokers": list(BROKERS), "queues": queues}))
    engine.checking = True
    near = engine.connect("b", "app")
    producer = near.producer()
    producer.send("q", b"0")
    _is_leaving(engine)
    sent = [producer.send_async("q", b"%d" % n) for n in range(1, 4)]
    for _ in range(3):
        near.attend()
    assert not any(future.done() for future in sent)
    engine.haste()
    engine.advance("5s")
    assert all(future.result(0).message_id for future in sent)
    assert [m.payload for m in near.admin().browse("q")] == [b"0", b"1", b"2", b"3"]


def test_h4_who_asks_two_brokers_that_name_each_other_is_told_so() -> None:
    """The queue has left b, which names c; and c, which has not heard the last of it, names b."""
    engine = SlowEngine(
        parse_configuration({"brokers": list(BROKERS), "queues": [local("q", "b")]})
    )
    near = engine.connect("b", "app")
    _is_leaving(engine)
    with pytest.raises(Moved, match="queue 'q'"):
        near.consumer("q")
    engine.haste()
    near.consumer("q").close()
