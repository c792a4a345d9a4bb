"""A client that floods its VPN: what is kept of it has an end, what is refused is counted, and
another VPN's messages go on. Limits are small here; `bench flood` does it with a million."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from lakequeue.protocol import commands as c
from lakequeue.state import Batch, Limits
from rules.steps import INBOX, REPLY, Steps, define, delivered, described, replies, subscribe

MANY = 400
LIMITS = Limits(early_acks=20, subscriptions=20, events=50, ignored_acks=20, queues=20)


def floods(turn: int) -> dict[str, Iterator[c.Command | bytes]]:
    """By kind, as many as one likes, each with names or ids of its own."""
    names = [f"{turn}-{n}" for n in range(MANY)]
    first = 10**6 * (turn + 1)
    ids = [str(first + 2 * n) for n in range(MANY)]
    return {
        "garbage": (b"{%d" % n for n in range(MANY)),
        "unknown commands": (f'{{"command":"{name}"}}'.encode() for name in names),
        "forged": (c.Configure(system={}) for _ in names),
        "acks of unknown ids": (c.Ack(queue="orders", ids=one) for one in ids),
        "acks in no queue": (c.Ack(queue=name, ids="1") for name in names),
        "heartbeats of sessions": (c.Heartbeat(session=name) for name in names),
        "ends of sessions": (c.Bye(session=name) for name in names),
        "subscriptions": (subscribe(name, session="one") for name in names),
        "sessions": (subscribe(f"s{name}", session=name) for name in names),
        "queues": (define(name) for name in names),
        "backlogs": (c.SetBacklog(queue="orders", subscription=n, max_backlog=1) for n in names),
        "arrivals": (c.TransportAck(queue="orders", subscription=n, received=9) for n in names),
    }


def stored(steps: Steps) -> int:
    return sum(len(key) + len(page) for key, page in steps.marked().items())


def flood(kind: str, steps: Steps, turn: int) -> None:
    values = list(floods(turn)[kind])
    if kind == "forged":
        values = [c.encode_command(value) for value in values]
    for start in range(0, MANY, 100):
        steps.run(values[start : start + 100])


@pytest.mark.parametrize("kind", list(floods(0)))
def test_what_is_kept_of_a_flood_has_an_end(kind: str) -> None:
    steps = Steps(limits=LIMITS, checked=False)
    steps.run([define()])
    flood(kind, steps, 0)
    flood(kind, steps, 1)
    before = stored(steps)
    for turn in range(2, 6):
        flood(kind, steps, turn)
    assert stored(steps) < before + 10_000  # 1,600 more were said
    (usage,) = replies(steps.run([c.Usage(reply=REPLY)]))
    told = usage.result["vpn"]["refused"]
    if kind in ("garbage", "unknown commands", "forged"):
        assert told["malformed"] == 6 * MANY
    (answer,) = replies(steps.run([c.Events(reply=REPLY)]))
    assert len(answer.result) <= 50
    steps.run([], [("orders", b"{}")])
    assert described(steps)["depth"] == 1


def test_what_does_not_fit_is_refused_with_a_sentence() -> None:
    steps = Steps(limits=LIMITS)
    steps.run([define()])
    for kind, what in {
        "subscriptions": "has 20 subscriptions, at most 20", "queues": "has 20 queues, at most 20",
    }.items():  # fmt: skip
        flood(kind, steps, 0)
        (answer,) = replies(steps.run([c.Events(reply=REPLY)]))
        assert what in answer.result[-1]["why"]
    steps.run([c.Delete(queue="0-5")])
    flood("queues", steps, 1)
    (answer,) = replies(steps.run([c.Queues(reply=REPLY)]))
    assert len(answer.result) == 20


def test_acks_that_were_not_kept_are_counted() -> None:
    steps = Steps(limits=LIMITS)
    steps.run([define()])
    flood("acks of unknown ids", steps, 0)
    assert described(steps)["counters"]["ack_ignored"] == MANY - 20


def test_who_left_leaves_nothing() -> None:
    """Names that are used once and never again."""
    steps = Steps(limits=LIMITS, checked=False)
    steps.run([define()])
    sizes = []
    for turn in range(6):
        for n in range(MANY // 10):
            name = f"{turn}-{n}"
            steps.run([subscribe(name, session=name), c.Bye(session=name)])
        sizes.append(stored(steps))
    assert max(sizes[3:]) < max(sizes[:3]) + 100  # pages of the newest events: full, or not


def test_another_vpn_goes_on_beside_a_flood() -> None:
    """In one step with it: what comes by another topic is taken, whatever the first holds."""
    steps = Steps(limits=LIMITS)
    steps.run([define()])
    own: list[Any] = [
        define(), c.Subscribe(queue="orders", subscription="w", inbox=c.Inbox("west.deliveries"),
                              max_backlog=9),
    ]  # fmt: skip
    west = steps.command_records(own)
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
