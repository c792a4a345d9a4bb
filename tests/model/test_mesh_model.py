"""Random walks over three brokers, of which some die, do what the model of a mesh allows: queues of
each type, moves of a local one, dead messages, clients that die, administration from anywhere (Q5,
H4, L, B1, B2, O2, X1, X5, C3, R6)."""

import json
import random
from contextlib import suppress
from typing import Any

import pytest
from lakequeue.protocol import LeaseLost
from reference.mesh_model import MeshModel, Taker
from rules.harness import drain
from rules.mesh import BROKERS, Mesh
from rules.mortal import Fate

from .limits import TINY

QUEUES = ("shared", "near", "grouped")
DEAD = "dead"
DELAYS = (0, 50, 300)
TIMEOUT_MS = 200
COUNTED = (
    "spooled", "acknowledged", "canceled", "redelivered", "expired", "dead_lettered",
    "consumer_rejected",
)  # fmt: skip
FILTERS = (None, None, "/k = 1", "/n > 6")
MANY = {
    "max_backlog": 2, "expiration": "300ms", "priority": "/n", "delays": True, "leasing": "strict",
    "max_deliveries": 3, "dead_message_queue": DEAD,
}  # fmt: skip
WALKS = 14
OPERATIONS = (
    ["send"] * 6 + ["open"] * 2 + ["close", "move", "purge", "time", "time"] + ["settle"] * 4
    + ["acknowledge"] * 2
)  # fmt: skip


def definitions(keys: dict[str, Any]) -> list[dict[str, Any]]:
    """The last one is only there where they name it."""
    common = {"message_type": "json", "max_per_subscription_backlog": 9, **keys}
    dead = {"name": DEAD, "message_type": "json", "max_per_subscription_backlog": 9}
    return [
        {"name": "shared", **common},
        {"name": "near", "type": "LocalQueue", "broker": "b", **common},
        {"name": "grouped", "type": "GroupLocalQueue", "initial_owner": "c", "group": ["a", "c"],
         **common},
        *([dead] if "dead_message_queue" in keys else []),
    ]  # fmt: skip


class MeshWalk:
    """The mesh and the model, side by side. delays: whether cancels have some (L11); kills: whether
    clients die (C3)."""

    def __init__(
        self, seed: int, death: float, delays: bool = False, kills: bool = False, **keys: Any
    ) -> None:
        self.delays = delays
        self.operations = [*OPERATIONS, *(["kill"] * 2 if kills else [])]
        self.dying: dict[str, tuple[Taker, int]] = {}  # by subscription; until when it is missed
        self.read = 0  # rows of the journal
        self.fate = Fate(seed, death=death)
        self.random = random.Random(seed)
        system = {"heartbeat_timeout": f"{TIMEOUT_MS}ms"} if kills else None
        limits = TINY if seed % 2 else None
        self.mesh = Mesh(self.fate, limits, system, queues=definitions(keys))
        self.model = MeshModel()
        for one in definitions(keys):
            hosts = {"near": ("b",), "grouped": ("a", "c")}.get(one["name"], BROKERS)
            self.model.define(one, hosts)
        self.consumers: list[tuple[Taker, Any]] = []
        self.held: list[tuple[Taker, Any]] = []
        self.n = 0
        self.begin = self.mesh.engine.now

    def go(self, steps: int) -> None:
        for _ in range(steps):
            operation = self.random.choice(self.operations)
            getattr(self, operation)()
            self.receive()
            self.look()

    def queue(self) -> str:
        return self.random.choice(list(self.model.queues))

    def anywhere(self) -> Any:
        return self.mesh.at[self.random.choice(BROKERS)].admin()

    # ------------------------------------------------------------ what is done

    def send(self) -> None:
        """Producers know where queues are: a broker that has none of it takes a message in (M2)."""
        for connection in self.mesh.at.values():
            connection.attend()
        self.n += 1
        queue, broker = self.random.choice(QUEUES), self.random.choice(BROKERS)
        body = {"n": self.n % 13, "k": self.n % 3}
        number = self.mesh.send(broker, body, queue)
        entered = BROKERS[int(number) >> 48]
        hosts = self.model.queues[queue].hosts
        assert entered == broker or broker not in hosts, f"{number}: sent to {broker}"
        self.model.send(queue, number, json.dumps(body).encode(), entered)

    def open(self) -> None:
        if len(self.consumers) < 6:
            queue, backlog = self.queue(), self.random.choice((1, 2, 4))
            text = self.random.choice(FILTERS)
            near = self.random.choice(BROKERS)
            consumer = self.mesh.consumer(near, backlog, queue, filter=text)
            broker = BROKERS[consumer.broker]
            hosts = self.model.queues[queue].hosts
            assert broker in hosts
            assert broker == near or near not in hosts
            taker = Taker(queue, broker, backlog, text)
            self.model.takers.append(taker)
            self.consumers.append((taker, consumer))

    def close(self) -> None:
        if self.consumers:
            taker, consumer = self.consumers.pop(self.random.randrange(len(self.consumers)))
            self.held = [(t, m) for t, m in self.held if t is not taker]
            consumer.close()
            self.model.close(taker)

    def kill(self) -> None:
        """It is sent more, until that is noticed; nobody sees what was sent."""
        if self.consumers:
            taker, consumer = self.consumers.pop(self.random.randrange(len(self.consumers)))
            self.held = [(t, m) for t, m in self.held if t is not taker]
            self.dying[consumer.subscription] = taker, self.model.now + TIMEOUT_MS
            consumer.kill()

    def settle(self) -> None:
        if self.held:
            taker, message = self.held.pop(self.random.randrange(len(self.held)))
            how = self.random.choice(("ack", "ack", "cancel", "reject"))
            known = self.model.queues[taker.queue].messages.get(message.id)
            count = message.delivery_count
            if known is None or known.holder is not taker or known.deliveries != count:
                with suppress(LeaseLost):  # it is another's, or gone
                    message.cancel()
                return
            delay = self.random.choice(DELAYS) if self.delays and how == "cancel" else 0
            message.cancel(delay=f"{delay}ms") if delay else getattr(message, how)()
            self.model.settle(taker.queue, message.id, how, delay)

    def acknowledge(self) -> None:
        """By ids, of any broker, of any consumer's (L8, L13)."""
        if self.consumers:
            taker, consumer = self.random.choice(self.consumers)
            known = self.model.queues[taker.queue].messages.values()
            there = [m.id for m in known if not m.barrier]
            if there:
                ids = self.random.sample(there, min(2, len(there)))
                before = len(self.mesh.engine.journal())
                consumer.ack(ids=ids)
                self.model.acknowledge(taker, ids)
                for number in self.sent_to(consumer, before):
                    if number in ids:
                        self.model.unseen(taker.queue, number)

    def sent_to(self, consumer: Any, before: int) -> list[str]:
        """What was delivered to a consumer since the journal had so many rows."""
        return [
            row["message_id"] for row in self.mesh.engine.journal()[before:]
            if row["event"] in ("delivered", "redelivered")
            and row["subscription"] == consumer.subscription
        ]  # fmt: skip

    def move(self) -> None:
        broker = self.random.choice(BROKERS)
        self.anywhere().move_queue("near", broker)
        self.model.move("near", broker)
        self.notice()

    def purge(self) -> None:
        queue, where = self.queue(), f"/n = {self.n % 5}"
        assert self.anywhere().purge(queue, where=where) == self.model.purge(queue, where)

    def time(self) -> None:
        """In parts of what periods are multiples of: a client counts from when it looks."""
        for _ in range(2):
            self.mesh.advance("50ms")
            self.model.advance(50)
            self.notice()
            self.receive()

    def notice(self) -> None:
        """Who died is noticed within the time-out."""
        for name, (taker, until) in list(self.dying.items()):
            flows = self.anywhere().describe(taker.queue)["consumers"]
            if all(flow["subscription"] != name for flow in flows):
                del self.dying[name]
                self.model.close(taker)
            assert name not in self.dying or self.model.now <= until, f"{name}: is not missed"

    # ------------------------------------------------------------ what is seen

    def receive(self) -> None:
        came = [(taker, drain(consumer)) for taker, consumer in self.consumers]
        self.look_at_barriers(came)
        for taker, messages in came:
            for message in messages:
                if message.is_barrier:
                    continue
                ends = message.lease_expires_at
                until = None if ends is None else round(ends.timestamp() * 1000) - self.begin
                self.model.deliver(taker, message.id, message.delivery_count, until)
                self.held.append((taker, message))
        rows = self.mesh.engine.journal()[self.read :] if self.dying else []
        for row in rows:
            if row["subscription"] in self.dying and row["event"] in ("delivered", "redelivered"):
                until = row["until"] and row["until"] - self.begin
                taker, _ = self.dying[row["subscription"]]
                self.model.deliver(taker, row["message_id"], row["deliveries"], until)
        self.read = len(self.mesh.engine.journal())

    def look_at_barriers(self, came: list[tuple[Taker, list[Any]]]) -> None:
        """O3: what a consumer gets after one is behind it. Barriers are looked at before the rest,
        for what one consumer has may be behind one that another has; the earlier ones first."""
        rows = self.mesh.engine.journal()[self.read :] if self.dying else []
        told = [
            (self.dying[row["subscription"]][0], row["message_id"]) for row in rows
            if row["subscription"] in self.dying and row["event"] == "barrier_delivered"
        ]  # fmt: skip
        told += [(taker, m.id) for taker, messages in came for m in messages if m.is_barrier]
        for taker, number in sorted(told, key=lambda one: self.model.place(one[0].queue, one[1])):
            self.model.tell(taker, number)
        for taker, messages in came:
            places = [self.model.place(taker.queue, m.id) for m in messages]
            for at, message in enumerate(messages):
                passed = message.is_barrier and max(places[:at], default=0) > places[at]
                assert not passed, f"{messages[:at]} passed barrier {message.id}"

    def look(self) -> None:
        admin = self.anywhere()
        owners: dict[str, dict[str, str]] = {}
        for name, queue in self.model.queues.items():
            described, shown = admin.describe(name), admin.browse(name, limit=1000)
            local = described["broker"]
            owners[name] = {m.id: m.broker or local for m in shown}
            assert {m.id: (m.state, m.delivery_count) for m in shown} == {
                m.id: (m.state, m.deliveries) for m in queue.messages.values()
            }
            if local is not None:  # O1, L7
                order = sorted(queue.messages.values(), key=lambda m: (-m.rank, m.place))
                assert [m.id for m in shown] == [m.id for m in order]
            states = [m.state for m in queue.messages.values()]
            numbers = [described[key] for key in ("depth", "leased", "moving", "delayed")]
            counts = [len(states), states.count("leased"), 0, states.count("delayed")]
            assert numbers == counts, f"{name}: {numbers} – {counts}"
            for counter in COUNTED:
                assert described["counters"][counter] == queue.counters[counter], counter
        self.model.quiet(owners)


KEYS: list[dict[str, Any]] = [
    {},
    {"lease_period": "250ms"},
    {"max_cancels": 2, "fairness_model": "round-robin"},
    {"max_cancels": 2, "fairness_model": "fast"},
    MANY,
    {"max_backlog": 2, "kills": True, "delays": True, "lease_period": "250ms"},
    {"max_deliveries": 2, "dead_message_queue": DEAD, "kills": True},
]


@pytest.mark.parametrize("part", range(7))
def test_Q5_H4_walks_over_three_brokers(part: int) -> None:
    deaths = 0
    for seed in range(part, WALKS, 7):
        keys = KEYS[seed % len(KEYS)]
        walk = MeshWalk(seed, death=(0.0, 0.1, 0.2)[seed % 3], **keys)
        try:
            walk.go(60)
        except Exception as error:
            error.add_note(f"seed {seed}, {keys}")
            raise
        assert walk.n > 5
        deaths += walk.fate.deaths
    assert deaths > 5


@pytest.mark.parametrize("wrong", ["owner", "lost", "held", "waits"])
def test_the_judge_of_a_mesh_sees_what_is_wrong(wrong: str) -> None:
    walk = MeshWalk(0, 0.0)
    walk.n = 1  # of the body: /k = 1 and /n <= 6
    number = walk.mesh.send("a", {"n": 1, "k": 1}, "shared")
    walk.model.send("shared", number, b'{"n": 1, "k": 1}', "a")
    walk.look()
    message = walk.model.queues["shared"].messages[number]
    taker = Taker("shared", "b", 2, None)
    if wrong == "owner":
        message.owner = "c"
    elif wrong == "lost":
        del walk.model.queues["shared"].messages[number]
    elif wrong == "held":
        message.holder = taker
    else:
        walk.model.takers.append(taker)
    with pytest.raises(AssertionError):
        walk.look()
