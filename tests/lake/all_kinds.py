"""A random life of queues of every kind: priorities, barriers, lanes, last values, delays, dead
messages, quotas and a captured topic, with consumers, an administrator, and crashes."""

from __future__ import annotations

import json
import random
from typing import Any

from lake.test_past import Keeps
from lake.test_rebuilding import pages_of
from lakequeue.lake.past import Moment
from lakequeue.lake.queries_at import admin_of
from lakequeue.protocol.messages import encode_run
from lakequeue.replica.driver import Snapshot
from lakequeue.state import DictStore, check
from loop.memory import HOME, PLACES, POINTS
from replica.test_driver import Walk

QUEUES: dict[str, dict[str, Any]] = {
    "dead": {},
    "prio": {
        "priority": "/n", "lease_period": "4s", "max_deliveries": 2, "dead_message_queue": "dead",
        "redelivery_delay": "500ms",
    },
    "barrier": {"barrier_expression": "/n = 3"},
    "lanes": {"partition_key": "/n % 3", "max_cancels": 2, "dead_message_queue": "dead"},
    "last": {"max_spool_usage": 0},
    "small": {"max_spool_messages": 4, "leasing": "strict", "dead_message_queue": "dead"},
    "short": {"expiration": "3s", "dead_message_queue": "dead"},
    "once": {"semantics": "at-most-once", "max_per_subscription_backlog": 1},
    "plain": {"underlying_topic": "orders", "filter": "/n > 1", "target_queue_depth": 1000},
    "audit": {"subscriptions": ["prio", "lanes", "orders"], "reject_low_priority_msg_limit": 9},
}  # fmt: skip
NAMES = sorted(QUEUES)
OPERATIONS = (
    "publish", "publish", "publish", "run", "plain", "subscribe", *["settle"] * 7, "bye",
    *["put_right"] * 4, "shutdown", "delete", "garbage", "wait", "go", "go", "go", "go", "crash",
    "save", "restart",
)  # fmt: skip


class Many(Keeps, Walk):
    """A life of queues of every kind, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        super().__init__()
        self.say("delete", queue="orders")
        for name in NAMES:
            self.define(name)
            if name != "last":
                self.subscribe(name, 0, session="")  # it never goes silent
        self.step(99)

    def define(self, name: str) -> None:
        usual = {"name": name, "message_type": "json", "max_per_subscription_backlog": 4}
        self.world.command(command="define", definition=usual | QUEUES[name])

    def live(self, length: int) -> None:
        for name in self.rng.choices(OPERATIONS, k=length):
            getattr(self, f"live_{name}")()
        self.world.point = None
        self.restart()
        self.step(1000)
        self.world.land(0)
        check(self.driver._replica.broker)

    def queue(self) -> str:
        return self.rng.choice(NAMES)

    def some(self) -> str:
        """Ids, most of them of stored messages."""
        first = self.rng.randint(1, self.sent + 2)
        return f"{first}-{first + self.rng.choice([0, 0, 3, 9])}"

    def say(self, command: str, **fields: Any) -> None:
        self.world.command(command=command, **fields)

    def live_publish(self) -> None:
        rng, queue = self.rng, self.queue()
        self.sent += 1
        options = rng.choice([{}, {}, {"ttl_ms": 2_000}, {"delay_ms": 1_500}, {"priority": 2},
            {"dmq": False}, {"deliver_at": self.world.now + 60_000}])  # fmt: skip
        body = json.dumps({"n": rng.randint(0, 9)}).encode()
        place = PLACES[rng.randint(1, 2)]
        self.world.write(
            place, body, to=queue, producer=f"p{place[1]}", seq=self.sent, reply=0, **options
        )
        if rng.random() < 0.3:
            last = self.world.topics[place][-1]
            last.key_, last.headers_ = b"k", [*(last.headers_ or []), ("colour", b"blue")]

    def live_run(self) -> None:
        payloads = [b'{"n": %d}' % self.rng.randint(0, 9) for _ in range(self.rng.randint(2, 8))]
        self.world.write(PLACES[1], encode_run(payloads), to=self.queue(), count=len(payloads))
        self.sent += len(payloads)

    def live_plain(self) -> None:
        self.world.write(PLACES[3], b'{"n": %d}' % self.rng.randint(0, 9))
        self.sent += 1

    def live_subscribe(self) -> None:
        self.subscribe(self.queue(), 1, session="x")

    def subscribe(self, queue: str, n: int, session: str) -> None:
        inbox = {"topic": "default.deliveries", "partition": n}
        self.say("subscribe", queue=queue, subscription=f"{queue}-{n}", session=session,
            max_backlog=self.rng.randint(1, 4), inbox=inbox)  # fmt: skip

    def live_bye(self) -> None:
        self.say("bye", session="x")

    def live_settle(self) -> None:
        queue, where = self.queue(), f"/n = {self.rng.randint(0, 9)}"
        command, chosen = self.rng.choice([
            ("ack", {"ids": self.some()}), ("ack", {"ids": self.some()}), ("ack", {"where": where}),
            ("cancel", {"ids": self.some(), **self.rng.choice([{}, {"delay_ms": 5_000}])}),
            ("reject", {"ids": self.some(), "reason": "no good"}), ("renew", {"ids": self.some()}),
            ("return", {"ids": self.some()}),
        ])  # fmt: skip
        subscription = f"{queue}-{self.rng.randint(0, 1)}"
        self.say(command, queue=queue, subscription=subscription, epoch=HOME.epoch, **chosen)

    def live_put_right(self) -> None:
        queue, to = self.rng.sample(NAMES, 2)
        command, fields = self.rng.choice([
            ("purge", {"queue": queue, "where": f"/n = {self.rng.randint(0, 9)}"}),
            ("move", {"queue": queue, "to": to, "ids": self.some()}),
            ("edit", {"queue": queue, "ids": self.some(), "headers": {"colour": "red"}}),
            ("redrive", {"queue": "dead"}),
        ])  # fmt: skip
        self.say(command, epoch=HOME.epoch, **fields)

    def live_shutdown(self) -> None:
        closed = {name: self.rng.random() < 0.2 for name in ("ingress", "egress")}
        self.say("shutdown", queue=self.queue(), **closed)

    def live_delete(self) -> None:
        if self.rng.random() < 0.2:
            queue = self.queue()
            self.say("delete", queue=queue)
            self.define(queue)

    def live_garbage(self) -> None:
        self.do_garbage(self.rng.randint(0, 3))

    def live_wait(self) -> None:
        self.world.now += self.rng.choice([1, 999, 4_000])

    def live_go(self) -> None:
        self.do_go(self.rng.randint(1, 4), self.rng.choice([1, 700]))

    def live_crash(self) -> None:
        self.do_crash(self.rng.choice(POINTS))

    def live_save(self) -> None:
        self.do_save()

    def live_restart(self) -> None:
        self.restart()


def lived(seed: int, length: int = 300) -> Many:
    walk = Many(seed)
    walk.live(length)
    answered = [r for _, said in walk.world.said for r in said]
    assert sum(r.topic == "default.deliveries" for r in answered) > 20, "nothing is delivered"
    return walk


Seen = dict[tuple[str, str], tuple[bytes, str, int, dict[str, str]]]


def looked_at(walk: Any) -> Seen:
    """Every message of every queue, as an administrator sees it."""
    return seen_in(pages_of(walk), walk)


def seen_in(pages: DictStore, walk: Any) -> Seen:
    """The same from other pages, after the walk's last step."""
    driver = walk.driver
    admin = admin_of(Moment(HOME.name, HOME, pages, driver.step, driver.now, 0, Snapshot()))
    return {
        (name, m.id): (m.payload, m.state, m.delivery_count, m.headers)
        for name in NAMES for m in admin.browse(name, limit=10_000)
    }  # fmt: skip
