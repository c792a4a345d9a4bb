"""Random walks over three brokers whose queues move while everything takes its time and brokers
die: clients publish to queues and topics, by what they know of where queues are, which is old. No
queue is ever full, so a publish is never refused; each is in every queue that takes it, once, and
what a producer sends to one queue stays in order there (S1, S5, P1, O1)."""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import suppress
from typing import Any

from lakequeue.client.following import PAUSE_S
from lakequeue.definitions import parse_configuration
from lakequeue.protocol import LeaseLost
from lakequeue.protocol import commands as c
from lakequeue.protocol.messages import HEADER
from rules.mortal import Fate
from rules.slow import SlowEngine
from rules.spread import BROKERS, local

from .limits import TINY

QUEUES = {  # its broker at first, and topics: of its definition, and subscribed at run time
    "q": ("b", (), ()),
    "r": ("c", ("t/1",), ("t/2", "q")),
    "s": ("b", ("t/>",), ()),
    "stays": ("b", ("t/2", "q"), ()),
}
DESTINATIONS = ("q", "q", "q", "r", "t/1", "t/2", "t/3")
TAKES = {
    "q": ("q",), "r": ("r", "t/1", "t/2", "q"), "s": ("s", "t/1", "t/2", "t/3"),
    "stays": ("t/2", "q"),
}  # fmt: skip
OPERATIONS = (
    ["send"] * 8 + ["plain"] + ["some"] * 24 + ["move"] * 2 + ["time", "time", "take", "again"]
)


class MovingWalk:
    """What applications, an administrator and fate do."""

    ENGINE = SlowEngine

    def __init__(self, seed: int, death: float = 0.1) -> None:
        self.fate = Fate(seed, death=death)
        self.random = self.fate.random
        queues = [local(name, broker, *of) for name, (broker, of, _) in QUEUES.items()]
        config = parse_configuration({"brokers": list(BROKERS), "queues": queues})
        self.engine = self.ENGINE(config, TINY if seed % 2 else None)
        self.engine.checking = True
        self.at = {name: self.engine.connect(name, f"app-{name}") for name in BROKERS}
        self.admin = self.engine.connect("a", "admin").admin()
        for name, (_, _, topics) in QUEUES.items():
            for topic in topics:
                self.admin.subscribe_topic(name, topic)
        self.producers = {name: at.producer(pub_ack_time="1h") for name, at in self.at.items()}
        self.sent: dict[int, tuple[str, str, Any]] = {}  # by number: producer, destination, future
        self.found: dict[str, list[tuple[int, str]]] = defaultdict(list)
        self.consumers = {
            queue: self.at[near].consumer(queue, max_backlog=4, ack_mode="individual")
            for queue, near in (("q", "a"), ("s", "c"))
        }
        self.taken: dict[str, set[str]] = defaultdict(set)
        self.engine.fated(self.fate)
        self.engine.slow()

    def go(self, steps: int) -> None:
        for _ in range(steps):
            getattr(self, self.random.choice(OPERATIONS))()
        self.finish()
        self.judge()

    # ------------------------------------------------------------ what is done

    def send(self) -> None:
        n, name = len(self.sent) + 1, self.random.choice(BROKERS)
        to = self.random.choice(DESTINATIONS)
        self.sent[n] = name, to, self.producers[name].send_async(to, b'{"n":%d}' % n)

    def plain(self) -> None:
        """Of whom nobody waits for an answer."""
        n, partition = len(self.sent) + 1, 8 * self.random.randrange(len(BROKERS))
        to = self.random.choice(DESTINATIONS)
        meta = b'{"to":"%s"}' % to.encode()
        body = b'{"n":%d}' % n
        self.engine.publish("default.publish", body, None, [(HEADER, meta)], partition=partition)
        self.sent[n] = f"plain {partition}", to, None

    def again(self) -> None:
        """Who has no answer asks once more (P2)."""
        self.producers[self.random.choice(BROKERS)].retransmit(time.monotonic() + 1e6)

    def some(self) -> None:
        self.engine.some(self.fate)

    def move(self) -> None:
        queue = self.random.choice(("q", "q", "r", "s"))
        command = c.MoveQueue(queue=queue, broker=self.random.choice(BROKERS))
        self.engine.command("default.commands", b"", c.encode_command(command))

    def time(self) -> None:
        self.engine.advance(self.random.choice(("50ms", "150ms")))

    def take(self) -> None:
        """A consumer, which follows its queue, takes what has come."""
        queue = self.random.choice(list(self.consumers))
        consumer = self.consumers[queue]
        for _ in range(self.random.choice((1, 3, 20))):
            message = consumer.receive(timeout=0)
            if message is None:
                break
            assert message.redelivered or message.id not in self.taken[queue], "twice"
            if message.id not in self.taken[queue]:
                self.found[queue].append((int(message.payload[5:-1]), message.id))
            self.taken[queue].add(message.id)
            with suppress(LeaseLost):
                message.ack()

    def finish(self) -> None:
        """Nobody dies any more, and everything arrives."""
        self.engine.fated(None)
        self.engine.haste()
        for _ in range(8):
            time.sleep(PAUSE_S)  # clients whose queue was on its way ask again
            self.engine.advance("5s")
        for name in QUEUES:
            shown = self.admin.browse(name, limit=10_000)
            left = [m for m in shown if m.id not in self.taken[name]]
            assert len(left) == len(shown), f"{name}: holds what was acknowledged"
            self.found[name] += [(int(m.payload[5:-1]), m.id) for m in left]

    def judge(self) -> None:
        ids = defaultdict(set)
        inside = {name: [n for n, _ in found] for name, found in self.found.items()}
        for found in self.found.values():
            for n, number in found:
                ids[n].add(number)
        for n, (producer, to, future) in self.sent.items():
            wanted = {name for name in QUEUES if to in TAKES[name]}
            there = {name for name in QUEUES if n in inside[name]}
            what = f"{n}, of {producer} to {to}"
            if future is not None:
                assert future.done(), f"{what}: has no answer"
                assert future.exception(0) is None, f"{what}: {future.exception(0)!r}"
                assert ids[n] == {future.result(0).message_id}, f"{what}: {ids[n]}"
            assert there == wanted, f"{what}: in {there}, not {wanted}"
        for name, numbers in inside.items():
            assert len(numbers) == len(set(numbers)), f"{name}: twice"
            of: dict[Any, list[int]] = defaultdict(list)
            for n in numbers:
                producer, to, future = self.sent[n]
                if future is not None:
                    of[producer, to].append(n)
            for key, found in of.items():
                assert found == sorted(found), f"{name}, {key}: {found}"
