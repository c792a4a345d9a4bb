"""Commands that change nothing are told of, by partition: who reads lets a flood of them wait."""

from __future__ import annotations

from typing import Any

import pytest
from lakequeue.protocol import commands as c
from lakequeue.protocol.outputs import InVain
from lakequeue.state import Limits
from rules.steps import Steps, define, delivered, subscribe
from rules.test_flood import LIMITS, MANY, floods


def in_vain(outputs: list[Any]) -> int:
    assert all((o.topic, o.partition) == ("default.commands", 0) for o in found(outputs))
    return sum(o.count for o in found(outputs))


def found(outputs: list[Any]) -> list[InVain]:
    return [o for o in outputs if isinstance(o, InVain)]


@pytest.mark.parametrize("kind", list(floods(0)))
def test_each_of_a_flood_is_in_vain_but_for_what_there_is_room_for(kind: str) -> None:
    steps = Steps(limits=LIMITS, checked=False)
    steps.run([define()])
    values: list[Any] = list(floods(0)[kind])
    if kind == "forged":
        values = [c.encode_command(value) for value in values]
    kept = {"subscriptions": 20, "sessions": 20, "queues": 19}.get(kind, 0)
    assert in_vain(steps.run(values)) == MANY - kept


def test_what_clients_say_in_a_messages_life_is_not() -> None:
    steps = Steps(limits=Limits())
    out = steps.run([define(max_per_subscription_backlog=9), subscribe("w", session="s")])
    out += steps.run([c.Heartbeat(session="s")], [("orders", b"%d" % n) for n in range(4)])
    ids = [str(one) for one in delivered(out, "w")]
    assert len(ids) == 4
    mine = {"queue": "orders", "subscription": "w"}
    out += steps.run([c.Ack(ids=ids[0], **mine), c.Renew(ids=ids[1], **mine)])
    out += steps.run([c.Cancel(ids=ids[1], **mine), c.SetBacklog(max_backlog=3, **mine)])
    out += steps.run([c.Reject(ids=ids[2], **mine), c.Returned(ids=ids[3], **mine)])
    out += steps.run([c.Unsubscribe(**mine)])
    assert in_vain(out) == 0


@pytest.mark.parametrize("kind", [c.Ack, c.Cancel, c.Reject, c.Renew, c.Returned])
def test_what_settles_nothing_is(kind: Any) -> None:
    steps = Steps()
    out = steps.run([define(), subscribe("w", session="s")], [("orders", b"1")])
    (one,) = delivered(out, "w")
    steps.run([c.Ack(queue="orders", subscription="w", ids=str(one))])
    assert in_vain(steps.run([kind(queue="orders", subscription="w", ids=str(one))])) == 1


def test_an_ack_that_needs_several_steps_is_not() -> None:
    steps = Steps(limits=Limits(command_rows=10))
    out = steps.run(
        [define(max_per_subscription_backlog=100), subscribe("w", session="s")],
        [("orders", b"1") for _ in range(50)],
    )
    ids = delivered(out, "w")
    assert len(ids) == 50
    ack = c.Ack(queue="orders", subscription="w", ids=f"{ids[0]}-{ids[-1]}")
    assert in_vain(steps.run([ack])) == 0
