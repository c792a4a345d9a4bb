"""A home's epoch: commands of an earlier home on the same Kafka are not for this one (S1, L8)."""

from typing import Any

import pytest
from lakequeue.protocol import commands as c
from lakequeue.protocol.outputs import Deliveries, Reply
from lakequeue.state import Home
from rules.steps import Steps

REPLY = c.ReplyTo("default.deliveries", request="r")
SUBSCRIBE = c.Subscribe(
    queue="orders", subscription="a", inbox=c.Inbox("default.deliveries"), max_backlog=9,
    reply=REPLY,
)  # fmt: skip
DEFINE = c.Define(
    definition={
        "name": "orders", "message_type": "binary", "max_per_subscription_backlog": 9,
    }
)  # fmt: skip


@pytest.fixture
def steps() -> Steps:
    return Steps(home=Home("broker-0", 0, 7))


def of(kind: type, outputs: list[Any]) -> list[Any]:
    return [o for o in outputs if isinstance(o, kind)]


def refused(steps: Steps) -> dict[str, int]:
    return of(Reply, steps.run([c.Usage(reply=REPLY)]))[0].result["vpn"]["refused"]


def test_S1_what_stands_before_the_beginning_was_for_another_home(steps: Steps) -> None:
    old = [DEFINE, c.Ack(queue="orders", ids="1-5"), c.Begin(epoch=6), c.Delete(queue="orders")]
    assert not of(Reply, steps.run([*old, SUBSCRIBE]))
    out = steps.run([DEFINE, c.Begin(epoch=7), DEFINE, SUBSCRIBE], [("orders", b"x")])
    (answer,) = of(Reply, out)
    assert answer.result["epoch"] == 7
    assert [(d.ids, d.epoch) for d in of(Deliveries, out)] == [([1], 7)]
    assert refused(steps) == {"earlier_home": 6}


@pytest.mark.parametrize("epoch", [6, 8, 2**53])
@pytest.mark.parametrize(
    "command",
    [
        c.Ack(queue="orders", subscription="a", ids="1"),
        c.Cancel(queue="orders", subscription="a", ids="1"),
        c.Reject(queue="orders", subscription="a", ids="1"),
        c.Renew(queue="orders", subscription="a", ids="1"),
        c.Returned(queue="orders", subscription="a", ids="1"),
        c.Purge(queue="orders", ids="1"),
    ],
    ids=lambda command: type(command).__name__,
)
def test_L8_ids_of_another_home_mean_nothing_here(
    steps: Steps, command: c.Named, epoch: int
) -> None:
    steps.run([c.Begin(epoch=7), DEFINE, SUBSCRIBE], [("orders", b"x")])
    values = {f: getattr(command, f) for f in command.__struct_fields__}
    foreign = type(command)(**{**values, "epoch": epoch, "reply": REPLY})
    (answer,) = of(Reply, steps.run([foreign]))
    assert "another home" in answer.error
    look = of(Reply, steps.run([c.Describe(queue="orders", reply=REPLY)]))[0].result
    assert (look["depth"], look["leased"], look["canceled"]) == (1, 1, 0)
    assert refused(steps) == {"other_home": 1}
    own = type(command)(**{**values, "epoch": 7, "reply": REPLY})
    assert of(Reply, steps.run([own]))[0].error is None


def test_S1_without_an_epoch_there_is_no_other_home() -> None:
    steps = Steps()
    assert of(Reply, steps.run([DEFINE, SUBSCRIBE]))[0].result["epoch"] == 0
