"""A barrier of a distributed queue waits for all owners, and goes to all consumers (O3, H4)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .harness import drain
from .mesh import BROKERS, Mesh
from .mortal import Fate


def mesh(**keys: Any) -> Mesh:
    return Mesh(barrier_expression="/b = 1", **keys)


def numbers(messages: list[Any]) -> list[int]:
    return [json.loads(m.payload)["n"] for m in messages]


def test_O3_a_barrier_goes_to_the_consumers_of_all_hosts() -> None:
    m = mesh()
    consumers = [m.consumer(broker) for broker in BROKERS]
    m.send("a", {"n": 1, "b": 1})
    assert [numbers(drain(c)) for c in consumers] == [[1], [1], [1]]
    assert m.depths() == [0, 0, 0]


def test_O3_H4_a_barrier_that_was_granted_keeps_its_id_for_all() -> None:
    m = mesh(type="GroupLocalQueue", initial_owner="c")
    consumers = [m.consumer(broker) for broker in BROKERS]
    sent = m.send("a", {"n": 1, "b": 1})
    assert m.seen("c")["counters"]["acknowledged"] == 1
    assert [[got.id for got in drain(c)] for c in consumers] == [[sent]] * 3


def test_R1_a_barrier_is_in_the_journal_by_its_own_id_at_all_hosts() -> None:
    """Also where a message that has come to a host has the barrier's number in its own count."""
    m = mesh()
    near = m.consumer("a")
    for n, broker in enumerate("ab"):
        m.send(broker, {"n": n})
        for message in drain(near):
            message.ack()
    sent = m.send("b", {"n": 2, "b": 1})
    assert numbers(drain(near)) == [2]
    told = [r["message_id"] for r in m.engine.journal() if r["event"] == "barrier_delivered"]
    assert told == [sent]


def test_O3_a_barrier_waits_for_what_other_owners_hold() -> None:
    m = mesh()
    far, near = m.consumer("b", 1), m.consumer("a", 1)
    first = m.send("b", {"n": 1})
    (held,) = drain(far)
    assert held.id == first
    m.send("a", {"n": 2, "b": 1})
    m.send("a", {"n": 3})
    m.send("b", {"n": 4})
    assert drain(near) == []
    assert drain(far) == []
    held.ack()
    assert numbers(drain(near)) == [2, 3]
    assert numbers(drain(far)) == [2, 4]


def test_O3_what_was_before_it_reaches_consumers_anywhere_first() -> None:
    m = mesh()
    for n, broker in enumerate(BROKERS):
        m.send(broker, {"n": n})
    m.send("a", {"n": 10, "b": 1})
    m.send("a", {"n": 11})
    m.send("c", {"n": 12})
    only = m.consumer("c", 1)
    seen = []
    while messages := drain(only):
        seen += numbers(messages)
        for message in messages:
            if not message.is_barrier:
                message.ack()
    assert sorted(seen[:3]) == [0, 1, 2]
    assert seen[3] == 10
    assert sorted(seen[4:]) == [11, 12]
    assert m.depths() == [0, 0, 0]


def test_O3_with_no_consumer_anywhere_it_waits_for_one() -> None:
    m = mesh()
    m.send("a", {"n": 1, "b": 1})
    assert m.depths() == [1, 0, 0]
    assert numbers(drain(m.consumer("c"))) == [1]
    assert m.depths() == [0, 0, 0]


def test_O3_a_consumer_whose_filter_refuses_it_waits_and_does_not_get_it() -> None:
    m = mesh()
    other = m.consumer("b", filter="/n > 5")
    m.send("a", {"n": 1, "b": 1})
    m.send("a", {"n": 7})
    assert drain(other) == []
    assert numbers(drain(m.consumer("c", filter="/n < 5"))) == [1]
    assert numbers(drain(other)) == [7]


def test_O3_two_barriers_at_two_owners_go_one_after_the_other() -> None:
    m = mesh()
    held = m.consumer("c", 1)
    m.send("c", {"n": 0})
    (first,) = drain(held)
    m.send("a", {"n": 1, "b": 1})
    m.send("b", {"n": 2, "b": 1})
    assert drain(held) == []
    first.ack()
    assert numbers(drain(held)) == [1, 2]
    assert m.depths() == [0, 0, 0]


def test_O3_what_enters_elsewhere_while_barriers_wait_is_behind_all_of_them() -> None:
    m = mesh()
    at_a = m.consumer("a", 1)
    m.send("a", {"n": 0})
    (first,) = drain(at_a)
    for n in (1, 2):
        m.send("b", {"n": n, "b": 1})
    m.send("c", {"n": 3})
    at_c = m.consumer("c", 1)
    assert drain(at_c) == []
    first.ack()
    assert numbers(drain(at_c)) == [1, 2, 3]
    assert m.depths() == [0, 0, 1]


def test_O3_of_barriers_at_several_owners_the_earlier_goes_first() -> None:
    m = mesh()
    held = m.consumer("c", 1)
    m.send("c", {"n": 0})
    (first,) = drain(held)
    for n, broker in enumerate(("c", "b", "b", "a", "b"), 1):
        m.send(broker, {"n": n, "b": 1})
    first.ack()
    assert numbers(drain(held)) == [1, 2, 3, 4, 5]


def test_O3_what_is_between_two_barriers_comes_between_them_wherever_it_is() -> None:
    m = mesh()
    held = m.consumer("a", 1)
    m.send("a", {"n": 0})
    (last,) = drain(held)
    for n, broker in enumerate("bcabcacb", 1):
        m.send(broker, {"n": n, "b": n % 2})
    only = m.consumer("b", 1)
    seen = []
    last.ack()
    held.close()
    while messages := drain(only):
        seen += numbers(messages)
        for message in messages:
            if not message.is_barrier:
                message.ack()
    assert seen == [1, 2, 3, 4, 5, 6, 7, 8]


def test_O3_who_holds_a_later_barrier_gets_what_it_may_before_it() -> None:
    m = mesh()
    m.send("a", {"n": 0})
    m.send("a", {"n": 1, "b": 1})
    m.send("b", {"n": 2, "b": 1})
    m.send("c", {"n": 3})
    only = m.consumer("b", 1)
    (first,) = drain(only)
    assert numbers([first]) == [0]
    first.ack()
    assert numbers(drain(only)) == [1, 2, 3]


def test_O3_a_barrier_that_expires_lets_the_others_go() -> None:
    m = mesh()
    held = m.consumer("b", 1)
    m.send("b", {"n": 0})
    (first,) = drain(held)
    m.send("a", {"n": 1, "b": 1}, ttl="5s")
    m.send("c", {"n": 2})
    m.advance("6s")
    first.ack()
    assert numbers(drain(held)) == [2]


LOCAL = {"type": "LocalQueue", "broker": "b"}


@pytest.mark.parametrize(("keys", "to"), [({}, None), (LOCAL, None), (LOCAL, "c")])
def test_O3_X1_a_barrier_goes_when_all_before_it_have_expired(
    keys: dict[str, Any], to: str | None
) -> None:
    m = mesh(**keys)
    only = m.consumer("a", 2, filter="/n > 5")
    for n, broker in enumerate("bca"):
        m.send(broker, {"n": n, "b": 0}, ttl="5s")
    m.send("c", {"n": 9, "b": 1})
    m.send("a", {"n": 10, "b": 0})
    if to:
        m.at["a"].admin().move_queue("orders", to)
    assert drain(only) == []
    m.advance("6s")
    assert numbers(drain(only)) == [9, 10]


def test_O3_S3_where_the_holder_has_no_room_what_is_left_waits_until_it_has() -> None:
    m = mesh(max_spool_usage=60)
    at_a = m.consumer("a", 1)
    m.send("a", {"n": 1, "b": 0, "x": "y" * 12})
    (first,) = drain(at_a)
    m.send("b", {"n": 2, "b": 0, "x": "y" * 12})
    m.send("a", {"n": 3, "b": 1})
    assert drain(at_a) == []
    assert m.whole()["moving"] == 0
    first.ack()
    (second,) = drain(at_a)
    assert numbers([second]) == [2]
    second.ack()
    assert numbers(drain(at_a)) == [3]


GROUP = {"type": "GroupLocalQueue", "initial_owner": "b"}


@pytest.mark.parametrize(
    ("seed", "keys"), [(0, {}), (1, {}), (2, {"partition_key": "/k"}), (3, GROUP), (4, GROUP)]
)
def test_O3_no_message_passes_a_barrier_whoever_dies(seed: int, keys: dict[str, Any]) -> None:
    fate = Fate(seed, death=0.2)
    run = Run(mesh(fate=fate, **keys), fate)
    part: dict[int, int] = {}  # the part of each message: between which barriers it was sent
    for n in range(1, 31):
        barrier = n % 10 == 0
        part[n] = n // 10
        where = "a" if barrier else fate.random.choice(BROKERS)
        run.mesh.send(where, {"n": n, "b": int(barrier), "k": n % 4})
        run.settle(0.2)
        if barrier:
            run.finish()
    assert run.barriers == [[10, 20, 30]] * 3
    assert sorted(n for n, _ in run.seen) == [n for n in part if n % 10]
    for n, after in run.seen:
        assert part[n] == after, f"{n} came after {after} barriers"
    assert run.mesh.depths() == [0, 0, 0]
    assert fate.deaths > 20


@pytest.mark.parametrize(("seed", "keys"), [(5, {}), (6, {}), (7, GROUP)])
def test_O3_several_barriers_wait_at_any_broker_whoever_dies(
    seed: int, keys: dict[str, Any]
) -> None:
    fate = Fate(seed, death=0.2)
    run = Run(mesh(fate=fate, **keys), fate)
    for n in range(1, 37):
        run.mesh.send(fate.random.choice(BROKERS), {"n": n, "b": int(n % 4 == 0)})
        run.settle(0.1)
    run.finish()
    assert run.barriers == [list(range(4, 37, 4))] * 3
    assert sorted(n for n, _ in run.seen) == [n for n in range(1, 37) if n % 4]
    for n, after in run.seen:
        assert n // 4 == after, f"{n} came after {after} barriers"
    assert run.mesh.depths() == [0, 0, 0]
    assert fate.deaths > 20


class Run:
    """Consumers at all brokers. seen: each message, and how many barriers had come before it."""

    def __init__(self, mesh: Mesh, fate: Fate) -> None:
        self.mesh, self.random = mesh, fate.random
        self.consumers = [mesh.consumer(broker, 1) for broker in BROKERS]
        self.held: list[Any] = []
        self.seen: list[tuple[int, int]] = []
        self.barriers: list[list[int]] = [[] for _ in BROKERS]

    def settle(self, share: float) -> bool:
        """Take what there is, and acknowledge a share of what is held; whether there was any."""
        found = [(at, message) for at, c in enumerate(self.consumers) for message in drain(c)]
        for at, message in found:
            (n,) = numbers([message])
            if message.is_barrier:
                self.barriers[at].append(n)
                before = [m for m in self.held if numbers([m])[0] < n]
                assert not before, f"barrier {n} came while {numbers(before)} were held"
            else:
                self.seen.append((n, max(map(len, self.barriers))))
                self.held.append(message)
        busy, kept = bool(found or self.held), []
        for message in self.held:
            if self.random.random() < share:
                message.ack()
            else:
                kept.append(message)
        self.held = kept
        return busy

    def finish(self) -> None:
        """Until nothing comes any more."""
        while self.settle(0.3):
            pass
