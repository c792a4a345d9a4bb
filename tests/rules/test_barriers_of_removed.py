"""A broker is removed where barriers are: none is passed, none is lost, and none waits for ever,
whatever is heard late, whoever dies, and whether the broker goes or stays (O3, H4, Q5)."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from lakequeue.definitions import parse_configuration
from lakequeue.memory.broker_removal import remove_broker
from lakequeue.protocol import LakequeueError, LeaseLost, commands
from lakequeue.protocol.granting import Release
from lakequeue.state.broker import Broker
from lakequeue.state.header import Holding
from lakequeue.state.queue import Queue
from model.limits import TINY

from .harness import drain
from .mesh import BROKERS, Mesh, owned
from .mortal import Fate
from .slow import SlowEngine
from .test_emptying import SlowRemoval


def mesh(**keys: Any) -> Mesh:
    return Mesh(barrier_expression="/b = 1", **keys)


def numbers(messages: list[Any]) -> list[int]:
    return [json.loads(m.payload)["n"] for m in messages]


def finish(consumer: Any) -> list[int]:
    """All that comes; each message is acknowledged before the next one is looked for."""
    seen = []
    while messages := drain(consumer):
        seen += numbers(messages)
        for message in messages:
            if not message.is_barrier:
                message.ack()
    return seen


def queue_at(engine: SlowEngine, at: Any) -> Queue:
    """The queue as a broker has it."""
    state = Broker.load(at.store, at.home, engine.now, at._limits, first=False)
    queue = state.find("default", "orders")
    assert queue is not None
    return queue


def nothing_waits(engine: SlowEngine) -> None:
    """No broker holds anything back, or expects a word about a barrier."""
    for broker in engine.brokers:
        header = queue_at(engine, broker).header
        assert (header.held, header.holding, header.passed_on) == ({}, None, {}), broker.home.name


# ---------------------------------------------------------------- single stories


def test_O3_a_barrier_of_a_removed_broker_goes_on_waiting_for_all() -> None:
    """What is behind it has come to its new broker before, and elsewhere, and goes with it."""
    m = mesh()
    far, near = m.consumer("b", 1), m.consumer("a", 1)
    m.send("b", {"n": 1})
    (held,) = drain(far)
    m.send("c", {"n": 2, "b": 1})
    for n, broker in enumerate("abc", 3):
        m.send(broker, {"n": n})
    remove_broker(m.engine, "c")
    assert drain(far) == drain(near) == []
    held.ack()
    assert finish(near)[0] == finish(far)[0] == 2
    assert m.whole()["depth"] == 0


def test_O3_a_barrier_waits_for_what_a_removed_broker_held() -> None:
    m = mesh()
    m.send("c", {"n": 1})
    held = m.consumer("c", 1)
    (first,) = drain(held)
    m.send("b", {"n": 2, "b": 1})
    m.send("b", {"n": 3})
    remove_broker(m.engine, "c")
    held.close()
    only = m.consumer("b", 1)
    (again,) = drain(only)
    assert (again.id, again.redelivered) == (first.id, True)
    again.ack()
    assert finish(only) == [2, 3]


@pytest.mark.parametrize("keys", [{}, {"type": "GroupLocalQueue", "initial_owner": "b"}])
def test_O3_of_barriers_at_several_brokers_the_earlier_goes_first(keys: dict[str, Any]) -> None:
    m = mesh(**keys)
    held = m.consumer("a", 1)
    m.send("a", {"n": 0})
    (last,) = drain(held)
    for n, broker in enumerate("cbcabccb", 1):
        m.send(broker, {"n": n, "b": n % 2})
    remove_broker(m.engine, "c")
    only = m.consumer("b", 1)
    assert drain(only) == []
    last.ack()
    held.close()
    assert finish(only) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_O3_L12_a_scheduled_message_that_moved_counts_as_earlier() -> None:
    m = mesh()
    m.send("c", {"n": 1}, delay="10s")
    m.send("c", {"n": 2, "b": 1})
    m.send("a", {"n": 3, "b": 1})
    remove_broker(m.engine, "c")
    only = m.consumer("b", 1)
    assert drain(only) == []
    m.advance("11s")
    assert finish(only) == [1, 2, 3]


def test_O3_X1_a_barrier_that_moved_expires_and_lets_the_others_go() -> None:
    m = mesh()
    held = m.consumer("b", 1)
    m.send("b", {"n": 0})
    (first,) = drain(held)
    m.send("c", {"n": 1, "b": 1}, ttl="5s")
    m.send("c", {"n": 2, "b": 0})
    remove_broker(m.engine, "c")
    m.advance("6s")
    first.ack()
    assert finish(held) == [2]


def test_O3_F5_a_consumer_whose_filter_refuses_it_waits_and_does_not_get_it() -> None:
    m = mesh()
    other = m.consumer("b", filter="/n > 5")
    m.send("c", {"n": 1, "b": 1})
    m.send("c", {"n": 7})
    remove_broker(m.engine, "c")
    assert drain(other) == []
    assert numbers(drain(m.consumer("a", filter="/n < 5"))) == [1]
    assert numbers(drain(other)) == [7]


def test_O3_more_barriers_than_a_step_moves_keep_their_order() -> None:
    m = mesh(limits=TINY)
    for n in range(40):
        m.send("c", {"n": n, "b": n % 3 % 2})
    m.send("b", {"n": 40, "b": 1})
    remove_broker(m.engine, "c")
    assert finish(m.consumer("b", 1)) == list(range(41))


def test_O3_barriers_of_one_generation_meet_at_the_first_broker() -> None:
    """Nobody had heard of another's as they entered; and then there is one broker left."""
    m = mesh()
    for broker in BROKERS:
        m.engine.cut(broker)
    for n, broker in enumerate("cbcbaa"):
        m.send(broker, {"n": n, "b": n // 2 % 2 or n // 4})
    for broker in BROKERS:
        m.engine.mend(broker)
    remove_broker(m.engine, "c")
    remove_broker(m.engine, "b")
    only = m.consumer("a", 1)
    seen = finish(only)
    assert sorted(seen[:2]) == [0, 1]
    assert sorted(seen[2:]) == [2, 3, 4, 5]
    m.engine.check()


def test_O3_S10_of_a_queue_that_keeps_the_last_message_a_barrier_is_one() -> None:
    m = mesh(max_spool_usage=0)
    m.send("a", {"n": 1})
    m.advance("1s")
    m.send("c", {"n": 2, "b": 1})
    remove_broker(m.engine, "c")
    assert numbers(drain(m.consumer("a"))) == [2]


@pytest.mark.parametrize("away", ["a", "b", "c"])
def test_O3_a_removal_that_is_given_up_leaves_barriers_in_their_order(away: str) -> None:
    """Before anything has moved, or behind it: by who does not hear."""
    m = mesh()
    held = m.consumer("b", 1)
    m.send("b", {"n": 0})
    (first,) = drain(held)
    for n, broker in enumerate("cacbc", 1):
        m.send(broker, {"n": n, "b": n % 2})
    m.engine.cut(away)
    with pytest.raises(LakequeueError, match="it goes on"):
        remove_broker(m.engine, "c")
    m.engine.mend(away)
    m.send("c", {"n": 6})
    m.send("c", {"n": 7, "b": 1})
    assert drain(held) == []
    consumers = [held, *(m.consumer(broker, 1) for broker in "ac")]
    first.ack()
    rounds = [[finish(one) for one in consumers] for _ in range(5)]
    seen = [[n for part in of_one for n in part] for of_one in zip(*rounds, strict=True)]
    assert [[n for n in of_one if n % 2] for of_one in seen] == [[1, 3, 5, 7]] * 3
    assert sorted(n for of_one in seen for n in of_one if n % 2 == 0) == [2, 4, 6]
    assert m.depths() == [0, 0, 0]
    m.engine.check()


class Slowly:
    """A home in which it is said who hears whom; the third broker is removed."""

    def __init__(self) -> None:
        one = {
            "name": "orders", "message_type": "json", "max_per_subscription_backlog": 9,
            "barrier_expression": "/b = 1",
        }  # fmt: skip
        config = parse_configuration({"brokers": list(BROKERS), "queues": [one]})
        self.engine = SlowEngine(config)
        self.engine.checking = True
        self.at = {name: self.engine.connect(name, f"app-{name}") for name in BROKERS}

    def send(self, broker: str, n: int, b: int = 0) -> None:
        body = json.dumps({"n": n, "b": b}).encode()
        self.at[broker].producer(pub_ack_time="1h").send("orders", body)

    def consumer(self, broker: str) -> Any:
        return self.at[broker].consumer("orders", max_backlog=1, ack_mode="individual")

    def begin(self) -> None:
        """Everything takes its time from here on."""
        self.engine.slow()
        for to, command in (
            ("a", commands.RemoveBroker(broker="c")), ("c", commands.CloseBroker(round=1))
        ):  # fmt: skip
            self.engine.instruct("default", commands.encode_command(command), to)

    def hear(self, *ways: str) -> None:
        """By whom to whom, several times."""
        for _ in range(6):
            for way in ways:
                self.engine.let(way[1], by=way[0])


@pytest.mark.parametrize("heard", ["cb", "ab"])
def test_O3_H4_nothing_passes_a_barrier_between_its_old_broker_and_its_new_one(heard: str) -> None:
    """Of three, one hears that a barrier has left one of the others, and not yet that it is at the
    third; or the other way round."""
    s = Slowly()
    near, far = s.consumer("a"), s.consumer("b")
    s.send("a", 1)
    (held,) = drain(near)
    s.send("c", 2, b=1)
    s.send("b", 3)
    s.begin()
    s.hear("ac", "ca", "bc")
    s.engine.let("b", by="a")  # of the removal
    s.hear("bc", "cb", "ca")
    s.engine.let("a", by="c")
    s.engine.let("c", by="a")
    s.hear(heard)
    assert owned(s.engine.broker("c"), s.engine.now) == ([], [])
    assert drain(far) == []
    s.engine.haste()
    assert drain(far) == []
    held.ack()
    assert finish(near) == [2]
    assert finish(far) == [2, 3]
    nothing_waits(s.engine)


def test_what_an_earlier_version_said_and_stored_of_barriers_is_read() -> None:
    release = msgspec.msgpack.encode(["default", "orders", 7, False, None])
    assert msgspec.msgpack.decode(release, type=Release).to == -1
    assert msgspec.msgpack.decode(msgspec.msgpack.encode([7, {1: []}]), type=Holding).to == -1


# ---------------------------------------------------------------- walks

NEVER = 1 << 60
KINDS: tuple[dict[str, Any], ...] = (
    {}, {"lease_period": "150ms"}, {"type": "GroupLocalQueue", "initial_owner": "b"},
    {"partition_key": "/k"}, {"max_spool_messages": 6}, {},
)  # fmt: skip


class Walk(SlowRemoval):
    """A producer and a consumer at each broker; one is removed, be it the last or the first, now
    and then in vain.
    lows: how often all had heard everything before a message was sent; calms: where the journal
    ended then; got: the barriers of each consumer."""

    operations = ("send",) * 4 + ("take",) * 3 + ("some",) * 14 + ("time", "calm")
    steps = 250
    in_vain = 0.2

    def __init__(self, seed: int, death: float) -> None:
        self.fate = Fate(seed, death=death)
        self.random = self.fate.random
        queue = {
            "name": "orders", "message_type": "json", "max_per_subscription_backlog": 9,
            "barrier_expression": "/b = 1", "reject_msg_to_sender_on_discard": "never",
        }  # fmt: skip
        queues = [queue | KINDS[seed % len(KINDS)]]
        order = ("abc", "cab")[seed // 4 % 2]
        config = parse_configuration({"brokers": list(order), "queues": queues})
        self.engine = SlowEngine(config, TINY if seed % 2 else None)
        self.engine.checking = True
        self.at = {name: self.engine.connect(name, f"app-{name}") for name in BROKERS}
        self.producers = {n: one.producer(pub_ack_time="1h") for n, one in self.at.items()}
        filters = {"b": "/n % 2 = 0 OR /b = 1"} if seed % len(KINDS) == len(KINDS) - 1 else {}
        self.consumers = [
            one.consumer("orders", max_backlog=2, ack_mode="individual", filter=filters.get(name))
            for name, one in self.at.items()
        ]
        self.leaving: Any = self.engine.broker("c")
        self.round = self.given_up = 0
        self.answers: list[Any] = []
        self.futures: list[Any] = []
        self.lows: list[int] = []
        self.calms: list[int] = []
        self.delivered: set[tuple[str, int]] = set()
        self.held: list[Any] = []
        self.got: list[list[str]] = [[] for _ in BROKERS]
        self.engine.fated(self.fate)
        self.engine.slow()

    def send(self) -> None:
        n, barrier = len(self.futures), self.random.random() < 0.25
        body = json.dumps({"n": n, "b": int(barrier), "k": n % 3}).encode()
        what = self.random.random()
        options: dict[str, Any] = {"ttl": "400ms"} if what < 0.15 else {}
        options |= {"delay": "200ms"} if what > 0.85 else {}
        to = self.producers[self.random.choice(BROKERS)]
        self.lows.append(len(self.calms))
        self.futures.append(to.send_async("orders", body, **options))

    def calm(self) -> None:
        """Everything is read and heard: what is sent from now on is later, wherever that is."""
        self.engine.haste()
        self.engine.slow()
        self.calms.append(len(self.engine.journal()))

    def take(self) -> None:
        for at, consumer in enumerate(self.consumers):
            for message in drain(consumer):
                if message.is_barrier:
                    self.got[at].append(message.id)
                    continue
                delivery = message.id, message.delivery_count
                assert delivery not in self.delivered, f"{message.id} twice, unmarked"
                self.delivered.add(delivery)
                self.held.append(message)
        for message in list(self.held):
            if self.random.random() < 0.4:
                self.held.remove(message)
                try:
                    message.ack() if self.random.random() < 0.8 else message.cancel()
                except LeaseLost:
                    continue

    def never_two_owners(self) -> None:
        found = [owned(broker, self.engine.now)[0] for broker in self.engine.brokers]
        own = [number for numbers in found for number in numbers]
        assert len(own) == len(set(own))

    def finish(self) -> None:
        self.engine.fated(None)
        self.engine.haste()
        if self.leaving is not None and self.round:
            self.end(False)
            self.engine.haste()
        self.engine.until_answered(self.futures, "0s")
        self.told = [one.result(0).message_id for one in self.futures]
        self.consumers.pop().close()
        for _ in range(300):
            self.engine.advance("250ms")
            self.take()
            if not self.depth():
                break
        self.take()
        assert not self.depth(), "something stays"
        nothing_waits(self.engine)
        self.judge()
        self.engine.check()

    def depth(self) -> int:
        return int(self.at["a"].admin().describe("orders")["depth"])

    # ------------------------------------------------------------ what is allowed

    def judge(self) -> None:
        """Of each message and each barrier that went out, one was gone before the other came; of
        what was sent when the other had been heard everywhere, the earlier one."""
        journal = self.engine.journal()
        assert not [e for e in journal if e["event"] in ("mesh_gap", "mesh_refused")]
        ids = [one for one in self.told if one is not None]  # no quota refused it
        to = [(r["message_id"], r["subscription"]) for r in journal
              if r["event"] == "barrier_delivered"]  # fmt: skip
        assert len(to) == len(set(to)), "twice to a subscription"
        barriers = {one for one, _ in to}
        entered: dict[str, int] = {}
        first: dict[str, int] = {}
        went: dict[str, int] = {}
        for at, row in enumerate(journal):
            number, event = row["message_id"] or "", row["event"]
            if event == "spooled":
                entered.setdefault(number, at)
            elif event in ("delivered", "barrier_delivered"):
                first.setdefault(number, at)
            elif event in ("acknowledged", "expired"):
                assert number not in went, f"{number} went twice"
                went[number] = at
        assert set(ids) == set(went)
        order = sorted(barriers, key=lambda one: went[one])
        assert self.got[0] == order, "a"
        assert self.got[1] == order, "b"
        places = [order.index(one) for one in self.got[2]]
        assert places == sorted(places), "c"  # on its way to another broker it may miss some, or
        # get one there that had come to its old subscription
        low = dict(zip(self.told, self.lows, strict=True))
        high = {
            one: next((n for n, end in enumerate(self.calms, 1) if end > at), NEVER)
            for one, at in entered.items()
        }
        for barrier in order:
            for one in ids:
                if one == barrier:
                    continue
                gone = went[one] < went[barrier]
                what = f"{one}, barrier {barrier}"
                assert gone or first.get(one, NEVER) > went[barrier], f"{what}: passed or missed"
                if high[one] <= low[barrier]:
                    assert gone, f"{what}: it was earlier"
                if high[barrier] <= low[one] and one in first:
                    assert first[one] > went[barrier], f"{what}: it was later"


@pytest.mark.parametrize("seed", range(24))
def test_O3_no_barrier_is_passed_while_a_broker_leaves(seed: int) -> None:
    walk = Walk(seed, death=0.1 if seed % 3 else 0.0)
    walk.go()
    assert sum(map(len, walk.got)) > 3
