"""Q2, Q5: a broker that reads captured topics is removed. Each record is taken once, however far
apart the brokers read, whoever dies when, and whether the broker goes or stays."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from lakequeue.definitions import parse_configuration
from lakequeue.protocol import commands
from model.limits import TINY

from .mortal import Fate
from .own_pace import PARTITIONS, OwnPace
from .slow import SlowEngine
from .test_mesh_partitions import QUEUES

NAMES = ("a", "b", "c", "d", "e", "f")


class Home(OwnPace):
    """Brokers that read one topic, each at its own pace from its beginning, and hear each other
    late. They are added and removed."""

    def __init__(
        self, seed: int, brokers: int, death: float = 0.0, queues: Any = QUEUES, **sections: Any
    ) -> None:
        super().__init__()
        self.fate = Fate(seed, death=death)
        self.random = self.fate.random
        config = {"brokers": list(NAMES[:brokers]), "queues": queues, **sections}
        given = parse_configuration(config)
        self.engine = SlowEngine(given, TINY if seed % 2 else None)
        self.engine.checking = True
        self.client = self.engine.connect("a")
        self.busy = range(PARTITIONS)  # partitions that are written to
        self.given, self.n, self.gone = brokers, 0, 0
        self.engine.fated(self.fate)

    # ------------------------------------------------------------ what happens

    def write(self) -> None:
        self.written[self.random.choice(self.busy)].append(b"%d" % self.n)
        self.n += 1

    def some(self, times: int) -> None:
        for _ in range(times):
            what = self.random.choice(["write"] * 3 + ["read"] * 7 + ["hear"] * 4)
            if what == "write":
                self.write()
            elif what == "read":
                name, partition = self.random.choice(self.names()), self.random.choice(self.busy)
                self.read(name, partition, self.random.choice((1, 2, 5)))
            else:
                self.engine.some(self.fate)

    def add(self) -> None:
        """A broker more; all that was said is heard, or not."""
        self.engine.haste()
        names = [*self.names(), NAMES[self.given]]
        self.given += 1
        self.engine.configure(parse_configuration({"brokers": names}))
        self.engine.fated(self.fate)
        self.engine.slow()

    def remove(self, steps: int, name: str = "") -> bool:
        """Remove a broker, some one if none is named; whether it is gone within so many steps."""
        name = name or self.random.choice(self.names())
        leaver: Any = self.engine.broker(name)
        self.engine.haste()  # definitions are done
        self.engine.slow()
        number, done = 0, False
        while not number:  # until the directory has changed hands, where it is to
            answer = self.ask(commands.RemoveBroker(broker=name))
            assert answer is None or answer["error"] is None
            number = answer["result"]["round"] if answer else 0
            for _, queue, to in answer["result"].get("moves", ()) if answer else ():
                self.client.ask(commands.MoveQueue(queue=queue, broker=to), self.answers.append)
                self.engine.haste()
                self.engine.slow()
            self.some(3)
        for n in range(steps):
            self.some(1)
            if n > 15 and leaver.unread is None and self.random.random() < 0.2:
                leaver.unread = []
                self.instruct(name, commands.CloseBroker(round=number))
            if leaver.unread is not None and n % 4 == 0:
                done = self.ask(commands.RemoveBroker(broker=name, round=number))["result"]["done"]
            if done:
                break
        leaver.unread = None
        if done:
            self.engine.brokers.remove(leaver)
            self.engine.removed[leaver.home.number] = name
            self.gone += 1
        peers = {broker.home.name: broker.home.number for broker in self.engine.brokers}
        for other in self.random.sample(self.names(), len(self.names())):
            self.some(3)
            self.instruct(other, commands.Peers(brokers=peers))
        return done

    def end(self) -> None:
        """All is read and heard."""
        self.engine.haste()
        for name in self.random.sample(self.names(), len(self.names())):
            for partition in range(PARTITIONS):
                self.read(name, partition, 1 << 20)
        self.engine.advance("0s")

    def taken(self, queue: str) -> Counter[bytes]:
        return Counter(m.payload for m in self.client.admin().browse(queue, limit=10_000))

    def check(self) -> None:
        once = Counter({b"%d" % n: 1 for n in range(self.n)})
        for queue in ("shared", "too", "local"):
            assert self.taken(queue) == once, queue
        self.engine.check()


def walk(seed: int) -> Home:
    """Some brokers come and go."""
    home = Home(seed, 2 + seed % 2, death=0.1 if seed % 4 == 3 else 0.0)
    if seed % 3 == 0:
        home.busy = range(3)  # of the others nothing is read before the end
    home.engine.slow()
    home.some(home.random.choice((0, 20, 60)))
    for _ in range(4):
        if home.given < len(NAMES) and home.random.random() < 0.5:
            home.add()
        else:
            home.remove(home.random.choice((60, 400)))
        home.some(home.random.choice((0, 30, 60)))
        if len(home.names()) < 2:
            home.add()
    home.busy = range(PARTITIONS)
    home.some(40)
    home.engine.fated(None)
    home.end()
    home.engine.slow()
    home.some(40)
    home.end()
    return home


@pytest.mark.parametrize("seed", range(24))
def test_Q2_each_record_is_taken_once_while_brokers_come_and_go(seed: int) -> None:
    walk(seed).check()
