"""Q2, Q5: plain records that begin to come while a broker is removed, of whose leaving not all know
yet: each is taken once, whether that broker goes or stays."""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest.mock import patch

import pytest
from lakequeue.definitions import parse_configuration
from lakequeue.protocol import commands
from lakequeue.state.commands import dispatch
from lakequeue.state.mesh import unread
from lakequeue.state.mesh.carried_out import carry_out
from model.limits import TINY

from .mortal import Fate
from .own_pace import PARTITIONS, TOPIC, OwnPace
from .slow import SlowEngine

BROKERS = ("a", "b", "c")


class Leaving(OwnPace):
    """Three brokers that read one topic, each at its own pace, and hear each other late; the third
    is to be removed. is_there: the topic has begun."""

    def __init__(self, seed: int, death: float = 0.0) -> None:
        super().__init__()
        self.fate = Fate(seed, death=death)
        self.random = self.fate.random
        one = {"name": "shared", "message_type": "json", "underlying_topic": TOPIC}
        given = parse_configuration({"brokers": list(BROKERS), "queues": [one]})
        self.engine = SlowEngine(given, TINY if seed % 2 else None)
        self.engine.checking = True
        self.client = self.engine.connect("a")
        self.leaver: Any = self.engine.broker("c")
        self.n = self.round = 0
        self.closed = self.is_there = False
        self.engine.fated(self.fate)

    def write(self) -> None:
        if self.is_there:
            self.written[self.random.randrange(PARTITIONS)].append(b"%d" % self.n)
            self.n += 1

    def some(self, times: int) -> None:
        for _ in range(times):
            what = self.random.choice(["write"] * 3 + ["read"] * 6 + ["hear"] * 3)
            if what == "write":
                self.write()
            elif what == "read":
                partition = self.random.randrange(PARTITIONS)
                self.read(self.random.choice(self.names()), partition, 3)
            else:
                self.engine.some(self.fate)

    def remove(self) -> bool:
        """Remove the broker while the first records come; whether it is gone."""
        self.engine.slow()
        answer = self.ask(commands.RemoveBroker(broker="c"))
        assert answer["error"] is None
        number = answer["result"]["round"]
        begins = self.random.choice((0, 5, 10, 15, 20, 30, 40, 200))
        done = False
        for n in range(120):
            self.is_there |= n >= begins
            self.some(1)
            if n > 15 and not self.closed and self.random.random() < 0.2:
                self.closed, self.leaver.unread = True, []
                self.instruct("c", commands.CloseBroker(round=number))
            if self.closed and not done:
                asked = commands.RemoveBroker(broker="c", round=number)
                done = self.ask(asked)["result"]["done"]
            if done:
                break
        self._tell(done)
        return done

    def _tell(self, done: bool) -> None:
        """What the engine says in the end, to each broker at its own time."""
        self.leaver.unread = None
        if done:
            self.engine.brokers.remove(self.leaver)
            self.engine.removed[2] = "c"
        else:
            self.closed = False
        peers = {broker.home.name: broker.home.number for broker in self.engine.brokers}
        for name in self.random.sample(self.names(), len(self.names())):
            self.some(3)
            self.instruct(name, commands.Peers(brokers=peers))

    def end(self) -> None:
        self.engine.fated(None)
        self.engine.haste()
        for name in self.random.sample(self.names(), len(self.names())):
            for partition in range(PARTITIONS):
                self.read(name, partition, 1 << 20)
        self.engine.advance("0s")

    def taken(self) -> Counter[bytes]:
        found = self.client.admin().browse("shared", limit=10_000)
        return Counter(m.payload for m in found)


@pytest.mark.parametrize("seed", range(24))
def test_Q2_records_that_begin_while_a_broker_leaves_are_taken(seed: int) -> None:
    one = Leaving(seed, death=0.1 if seed % 4 == 3 else 0.0)
    one.remove()
    one.end()
    doubtful = one.n
    assert one.taken() == Counter({b"%d" % n: 1 for n in range(doubtful)})
    one.is_there = True
    one.engine.slow()
    one.some(80)
    one.end()
    one.some(80)
    one.end()
    taken = one.taken()
    assert one.n > doubtful
    assert taken == Counter({b"%d" % n: 1 for n in range(one.n)})


@pytest.mark.parametrize("goes", [True, False])
def test_Q2_what_is_put_aside_keeps_its_order(goes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over more pages than a step takes up; what comes meanwhile is behind it. Nobody gets any of
    it before it is known whether the broker goes."""
    monkeypatch.setattr(unread, "ROWS", 2)
    monkeypatch.setattr(unread, "PAGES", 2)
    one = Leaving(0)
    engine = one.engine
    number = one.ask(commands.RemoveBroker(broker="c"))["result"]["round"]
    one.closed, one.leaver.unread = True, []
    one.instruct("c", commands.CloseBroker(round=number))
    engine.advance("0s")
    one.written[2] = [b"%d" % n for n in range(20)]  # its own
    for name in BROKERS:
        one.read(name, 2, 20)
    assert one.client.admin().describe("shared")["depth"] == 0
    assert one.ask(commands.RemoveBroker(broker="c", round=number))["result"]["done"]
    one._tell(goes)
    one.written[2] += [b"20", b"21"]
    for name in one.names():
        one.read(name, 2, 2)
    engine.advance("0s")
    got = [m.payload for m in one.client.admin().browse("shared", limit=100)]
    assert got == [b"%d" % n for n in range(22)]
    engine.check()


def test_S7_what_is_put_aside_goes_with_its_queue() -> None:
    one = Leaving(0)
    one.ask(commands.RemoveBroker(broker="c"))
    one.engine.advance("0s")
    one.written[2] = [b"1"]
    one.read("a", 2, 1)
    pages = one.engine.broker("a").store.pages
    assert [key for key in pages if key.startswith("V/")]
    with patch.dict(dispatch.OF_BROKER, {commands.Delete: carry_out}):  # as a host is told to
        delete = commands.encode_command(commands.Delete(queue="shared"))
        one.engine.command("default.commands", b"", delete, "a")
    assert not [key for key in one.engine.broker("a").store.pages if key.startswith("V/")]
    one._tell(False)
    one.engine.advance("0s")
