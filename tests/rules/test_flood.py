"""A client floods its VPN: it uses bounded memory, refusals are counted, and another VPN's messages
continue. The step reports useless commands by partition, so that the reader can slow a flood.
Limits are small here; `bench flood` runs it with a million."""

from __future__ import annotations

from typing import Any

import pytest
from lakequeue.protocol import commands as c
from lakequeue.protocol.outputs import InVain
from lakequeue.state import Batch, Limits
from rules.steps import INBOX, Steps, define, delivered, described, of, started, subscribe

MANY = 200
LIMITS = Limits(early_acks=20, subscriptions=20, events=50, queues=20)


def floods(turn: int) -> dict[str, list[c.Command | bytes]]:
    """Floods by kind, each with many names or ids of its own."""
    names = [f"{turn}-{n}" for n in range(MANY)]
    first = 10**6 * (turn + 1)
    ids = [str(first + 2 * n) for n in range(MANY)]
    forged = c.encode_command(c.Configure(system={}))
    return {
        "garbage": [b"{%d" % n for n in range(MANY)],
        "unknown commands": [f'{{"command":"{name}"}}'.encode() for name in names],
        "forged": [forged for _ in names],
        "acks of unknown ids": [c.Ack(queue="orders", ids=one) for one in ids],
        "acks in no queue": [c.Ack(queue=name, ids="1") for name in names],
        "heartbeats of sessions": [c.Heartbeat(session=name) for name in names],
        "ends of sessions": [c.Bye(session=name) for name in names],
        "subscriptions": [subscribe(name, session="one") for name in names],
        "sessions": [subscribe(f"s{name}", session=name) for name in names],
        "queues": [define(name) for name in names],
        "backlogs": [c.SetBacklog(queue="orders", subscription=n, max_backlog=1) for n in names],
        "arrivals": [c.TransportAck(queue="orders", subscription=n, received=9) for n in names],
    }


KINDS = list(floods(0))


def stored(steps: Steps) -> int:
    return sum(len(key) + len(page) for key, page in steps.marked().items())


def flood(kind: str, steps: Steps, turn: int) -> None:
    values = floods(turn)[kind]
    for start in range(0, MANY, 100):
        steps.run(values[start : start + 100])


@pytest.mark.parametrize("kind", KINDS)
def test_a_flood_uses_bounded_memory(kind: str) -> None:
    steps = started(define(), limits=LIMITS, checked=False)
    flood(kind, steps, 0)
    flood(kind, steps, 1)
    before = stored(steps)
    for turn in range(2, 6):
        flood(kind, steps, turn)
    assert stored(steps) < before + 5_000  # 800 more came
    if kind in ("garbage", "unknown commands", "forged"):
        assert steps.ask(c.Usage())["vpn"]["refused"]["malformed"] == 6 * MANY
    assert len(steps.events()) <= 50
    steps.run([], [("orders", b"{}")])
    assert described(steps)["depth"] == 1


def test_a_deleted_queue_makes_room_for_another() -> None:
    steps = started(define(), limits=LIMITS)
    flood("queues", steps, 0)
    steps.run([c.Delete(queue="0-5")])
    flood("queues", steps, 1)
    assert len(steps.ask(c.Queues())) == 20


def test_a_departed_client_leaves_nothing() -> None:
    """Names that are used once and never again."""
    steps = started(define(), limits=LIMITS, checked=False)
    sizes = []
    for turn in range(6):
        for n in range(40):
            name = f"{turn}-{n}"
            steps.run([subscribe(name, session=name), c.Bye(session=name)])
        sizes.append(stored(steps))
    assert max(sizes[3:]) < max(sizes[:3]) + 100  # pages of the newest events: full, or not


def test_another_vpn_works_beside_a_flood() -> None:
    """In one step with it: records of another topic are taken, however many the first one has."""
    steps = started(define(), limits=LIMITS)
    own = subscribe("w", 9, inbox=c.Inbox("west.deliveries"))
    west = steps.command_records([define(), own])
    west.topics[:] = ["west.commands"] * len(west)
    steps.step(Batch(west))
    commands = steps.command_records(
        [value for kind in floods(0).values() for value in kind if isinstance(value, bytes)]
    )
    publishes = steps.publish_records([("orders", b"{}")])
    publishes.topics[:] = ["west.publish"]
    out = steps.step(Batch(commands, publishes))
    assert len(delivered(out, "w")) == 1
    assert INBOX.topic not in {getattr(o, "topic", "") for o in out if hasattr(o, "subscription")}


# ---------------------------------------------------------------- useless commands


def in_vain(outputs: list[Any]) -> int:
    found = of(InVain, outputs)
    assert all((o.topic, o.partition) == ("default.commands", 0) for o in found)
    return sum(o.count for o in found)


@pytest.mark.parametrize("kind", KINDS)
def test_a_floods_commands_are_useless_beyond_the_limits(kind: str) -> None:
    steps = started(define(), limits=LIMITS, checked=False)
    kept = {"subscriptions": 20, "sessions": 20, "queues": 19}.get(kind, 0)
    assert in_vain(steps.run(floods(0)[kind])) == MANY - kept


MINE = {"queue": "orders", "subscription": "w"}


def test_ordinary_commands_are_not_useless() -> None:
    steps = Steps()
    out = steps.run([define(max_per_subscription_backlog=9), subscribe("w", session="s")])
    out += steps.run([c.Heartbeat(session="s")], [("orders", b"%d" % n) for n in range(4)])
    first, second, third, fourth = (str(one) for one in delivered(out, "w"))
    out += steps.run([c.Ack(ids=first, **MINE), c.Renew(ids=second, **MINE)])
    out += steps.run([c.Cancel(ids=second, **MINE), c.SetBacklog(max_backlog=3, **MINE)])
    out += steps.run([c.Reject(ids=third, **MINE), c.Returned(ids=fourth, **MINE)])
    out += steps.run([c.Unsubscribe(**MINE)])
    assert in_vain(out) == 0


@pytest.mark.parametrize("kind", [c.Ack, c.Cancel, c.Reject, c.Renew, c.Returned])
def test_commands_about_a_settled_message_are_useless(kind: Any) -> None:
    steps = started(define(), subscribe("w", session="s"))
    assert delivered(steps.run(publishes=[("orders", b"1")]), "w") == [1]
    steps.run([c.Ack(ids="1", **MINE)])
    assert in_vain(steps.run([kind(ids="1", **MINE)])) == 1


def test_an_ack_over_several_steps_is_not_useless() -> None:
    queue = define(max_per_subscription_backlog=100)
    steps = started(queue, subscribe("w", session="s"), limits=Limits(command_rows=10))
    assert len(delivered(steps.run(publishes=[("orders", b"1")] * 50))) == 50
    assert in_vain(steps.run([c.Ack(ids="1-50", **MINE)])) == 0
