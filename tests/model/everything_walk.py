"""Random walks over three brokers in which everything happens at once while it takes its time and
brokers die: queues move, messages die into a dead message queue that moves too and are redriven,
bridges bring some, also to another VPN, a broker is removed, or all are made again from what was
written down. Each message is in each queue that takes it once, or dead of it (S1, S5, X5, X6, H1,
H4, R3).

More than once may be there what a step refused as moved that is lost then: its producer has heard
that, and sent it where the queue was; and whoever refused it takes it in again, as what it is now
did not do so (decision 0024)."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from typing import Any

from lakequeue.client.following import PAUSE_S
from lakequeue.definitions import parse_configuration
from lakequeue.memory import MemoryConnection
from lakequeue.protocol import LeaseLost
from lakequeue.protocol import commands as c
from rules.kept import KeptEngine
from rules.mortal import Fate
from rules.slow import SlowEngine
from rules.spread import BROKERS, local

from .limits import TINY
from .moving_walk import MovingWalk
from .rebuilt_walk import RebuiltWalk

QUEUES = ("q", "r", "s", "all")
TAKES = {
    "q": ("q",), "r": ("r", "t/1", "t/2"), "s": ("s", "t/1", "t/2", "t/3"), "all": ("all", "t/3"),
}  # fmt: skip
OVER = ("t/1", "t/2")  # go to another VPN too, wherever they are published
DESTINATIONS = ("q", "r", "all", "t/1", "t/2", "t/3")
OPERATIONS = (
    ["send"] * 8 + ["some"] * 24 + ["move"] * 2 + ["time"] * 2 + ["take"] * 2 + ["redrive", "again"]
)
NO_CONSUMERS = [name for name in OPERATIONS if name != "take"]


class EverythingWalk(MovingWalk):
    """What applications, an administrator and fate do. rebuilt: in the middle all brokers are made
    again, each as of another step, and nobody consumes; else broker c is removed. order: of the
    brokers by number."""

    def __init__(
        self, seed: int, death: float = 0.05, rebuilt: bool = False, order: str = "abc"
    ) -> None:
        self.fate = Fate(seed, death=0.0 if rebuilt else death)
        self.random = self.fate.random
        self.rebuilt = rebuilt
        keys = {"dead_message_queue": "dead"}
        queues = [
            local("q", "b", **keys), local("r", "c", "t/1", "t/2", **keys),
            local("s", "b", "t/>", **keys), local("dead", "a"),
            {"name": "all", "message_type": "json", "subscriptions": ["t/3"], **keys},
        ]  # fmt: skip
        vpns = {"default": None, "far": None}
        config = parse_configuration({"brokers": list(order), "queues": queues, "vpns": vpns})
        self.engine = (KeptEngine if rebuilt else SlowEngine)(config, TINY if seed % 2 else None)
        self.engine.checking = True
        self.at = {name: self.engine.connect(name, f"app-{name}") for name in BROKERS}
        self.admin = self.engine.connect("a", "admin").admin()
        self.admin.bridge({"name": "ab", "from": "a", "to": "b", "subscriptions": ["t/1"]})
        self.far = MemoryConnection(self.engine, "far", "over", "a").admin()
        self.far.define(local("over", "a", "t/>"))
        out = {"name": "out", "subscriptions": list(OVER)}
        self.far.bridge(out | {"from": "vpn://default", "to": "a"})
        self.admin.bridge(out | {"from": "b", "to": "vpn://far?broker=a"})
        self.producers = {name: at.producer(pub_ack_time="1h") for name, at in self.at.items()}
        self.sent: dict[int, tuple[str, str, Any]] = {}
        self.consumers = {} if rebuilt else {
            queue: self.at[near].consumer(queue, max_backlog=4, ack_mode="individual")
            for queue, near in (("q", "a"), ("s", "c"), ("all", "b"))
        }  # fmt: skip
        self.seen: dict[str, int] = {}  # of messages by their ids
        self.leaving: Any = None
        self.round = self.keeper = 0
        self.may_leave = self.gone = False
        self.answers: list[Any] = []
        if rebuilt:
            for broker in self.engine.brokers:
                del broker.history[:-1]  # type: ignore[attr-defined]
        self.engine.fated(self.fate)
        self.engine.slow()

    def go(self, steps: int) -> None:
        operations = NO_CONSUMERS if self.rebuilt else OPERATIONS
        for n in range(steps):
            getattr(self, self.random.choice(operations))()
            if self.rebuilt and n in (steps // 2, steps * 3 // 4):
                back = {b.home.name: self.random.choice((0, 3, 20)) for b in self.engine.brokers}
                self.engine.lose(back)  # type: ignore[attr-defined]
            elif not self.rebuilt:
                self.may_leave = n > steps // 3
                self.leave()
        self.finish()
        self.judge()

    # ------------------------------------------------------------ what is done

    def send(self) -> None:
        n, name = len(self.sent) + 1, self.random.choice(BROKERS)
        to = self.random.choice(DESTINATIONS)
        ttl = None if to in OVER else self.random.choice((None, None, "100ms"))  # not on a bridge
        self.sent[n] = name, to, self.producers[name].send_async(to, b'{"n":%d}' % n, ttl=ttl)

    def say(self, command: Any, broker: str = "a") -> None:
        self.engine.instruct("default", c.encode_command(command), broker)

    def move(self) -> None:
        to = self.random.choice("ab" if self.may_leave else "abc")
        self.move_to(self.random.choice(("q", "r", "s", "dead")), to)

    def move_to(self, queue: str, to: str) -> None:
        move = c.encode_command(c.MoveQueue(queue=queue, broker=to))
        self.engine.command("default.commands", b"", move)

    def redrive(self) -> None:
        redrive = c.encode_command(c.Redrive(queue="dead"))
        near = self.random.choice([broker.home.name for broker in self.engine.brokers])
        self.engine.command("default.commands", b"", redrive, near)

    def take(self) -> None:
        queue = self.random.choice(list(self.consumers))
        for _ in range(self.random.choice((1, 3, 20))):
            message = self.consumers[queue].receive(timeout=0)
            if message is None:
                break
            n = int(message.payload[5:-1])
            self.seen[message.id] = n
            with suppress(LeaseLost):
                message.reject("no") if self.random.random() < 0.4 else message.ack()

    # ------------------------------------------------------------ a broker leaves

    def leave(self) -> None:
        """One step of a removal, where there is one to be done."""
        if not self.may_leave or self.gone or self.random.random() > 0.1:
            return
        for _ in range(40):  # others hear of it before the walk is over
            self.some()
        if not self.round:
            answer = self._ask(c.RemoveBroker(broker="c"))
            result = answer["result"] or {"round": 0, "moves": []}
            self.round, self.leaving = result.get("round", 0), self.engine.broker("c")
            for _, queue, to in result.get("moves", ()):
                self.move_to(queue, to)
        elif self.leaving.unread is None:
            self.leaving.unread = []
            self.say(c.CloseBroker(round=self.round), "c")
        else:
            done = self._ask(c.RemoveBroker(broker="c", round=self.round))["result"]["done"]
            if done or self.random.random() < 0.1:
                self._end_leaving(done)

    def _ask(self, command: Any) -> Any:
        asked = self.admin._session
        asked.ask(command, self.answers.append, self.keeper)
        asked.attend()
        answer = self.answers.pop()
        self.keeper = (answer["result"] or {}).get("keeper", self.keeper)
        return answer

    def _end_leaving(self, done: bool) -> None:
        unread, self.leaving.unread = self.leaving.unread or [], None
        self.round, self.gone = 0, done
        if done:
            self.engine.brokers.remove(self.leaving)
            self.engine.removed[self.leaving.home.number] = "c"
        names = [broker.home.name for broker in self.engine.brokers]
        peers = {broker.home.name: broker.home.number for broker in self.engine.brokers}
        for name in self.random.sample(names, len(names)):
            self.say(c.Peers(brokers=peers), name)
        for batch in unread:
            self.engine.give(self.engine.at(self.leaving.home.number), batch)

    # ------------------------------------------------------------ the end

    def finish(self) -> None:
        self.engine.fated(None)
        self.engine.haste()
        if self.round:
            self._end_leaving(False)
        for _ in range(8):
            time.sleep(PAUSE_S)
            for producer in self.producers.values():
                producer.retransmit(time.monotonic() + 1e6)
            self.engine.advance("5s")
        for consumer in self.consumers.values():
            consumer.close()
        self.engine.advance("5s")

    def judge(self) -> None:
        numbers = {future.result(0).message_id: n for n, (_, _, future) in self.sent.items()}
        numbers |= self.seen
        there = Counter(
            (row["queue"], numbers[row["message_id"]]) for row in self.engine.journal()
            if row["event"] == "acknowledged" and not row["queue"].startswith("#")
        )  # fmt: skip
        ids: dict[int, set[str]] = {}
        for name in (*QUEUES, "dead"):
            for message in self.admin.browse(name, limit=10_000):
                n = int(message.payload[5:-1])
                ids.setdefault(n, set()).add(message.id)
                headers = message.headers
                also = headers.get("lq-dead-also", "").split(",")
                died = [headers.get("lq-dead-queue"), *filter(None, also)]
                for queue in died if name == "dead" else [name]:
                    there[str(queue), n] += 1
        over = Counter(int(m.payload[5:-1]) for m in self.far.browse("over", limit=10_000))
        for n, (producer, to, future) in self.sent.items():
            what = f"{n}, of {producer} to {to}"
            assert future.done(), f"{what}: has no answer"
            assert future.exception(0) is None, f"{what}: {future.exception(0)!r}"
            known = {future.result(0).message_id}
            may_differ = self.rebuilt or to == "t/1"  # taken in again, or by a bridge's far end
            assert may_differ or ids.get(n, set()) <= known, f"{what}: {ids[n]}"
            again = self.rebuilt and any(b'{"n":%d}' % n in b.moved for b in self.engine.brokers)
            times = min(over[n], 1) if again else over[n]
            assert times == (to in OVER), f"{what}: {over[n]} times in the other VPN"
            found = {queue: there[queue, n] for queue in QUEUES if there[queue, n]}
            wanted = {queue: 1 for queue in QUEUES if to in TAKES[queue]}
            if again:
                found = dict.fromkeys(found, 1)
            assert found == wanted, f"{what}: in {found}, not {wanted}"
        RebuiltWalk.nothing_open(self.engine)
