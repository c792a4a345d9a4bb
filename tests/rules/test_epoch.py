"""A home's epoch: commands to an earlier home on the same Kafka do not count for this one (S1,
L8)."""

import lakequeue
import msgspec
import pytest
from lakequeue.protocol import commands as c
from lakequeue.protocol import wire
from lakequeue.protocol.errors import LakequeueError
from lakequeue.protocol.outputs import Deliveries, Reply
from lakequeue.state import Home
from rules.steps import REPLY, Steps, asking, define, described, of, subscribe

SUBSCRIBE = asking(subscribe("a", 9))
DEFINE = define(message_type="binary", max_per_subscription_backlog=9)


@pytest.fixture
def steps() -> Steps:
    return Steps(home=Home("broker-0", 0, 7))


def refused(steps: Steps) -> dict[str, int]:
    return steps.ask(c.Usage())["vpn"]["refused"]


def test_S1_records_before_the_homes_beginning_are_ignored(steps: Steps) -> None:
    old = [DEFINE, c.Ack(queue="orders", ids="1-5"), c.Begin(epoch=6), c.Delete(queue="orders")]
    assert not of(Reply, steps.run([*old, SUBSCRIBE]))
    out = steps.run([DEFINE, c.Begin(epoch=7), DEFINE, SUBSCRIBE], [("orders", b"x")])
    (answer,) = of(Reply, out)
    assert answer.result["epoch"] == 7
    assert [(d.ids, d.epoch) for d in of(Deliveries, out)] == [([1], 7)]
    # five commands, and the beginnings of another home on both topics
    assert refused(steps) == {"earlier_home": 7}


@pytest.mark.parametrize("epoch", [6, 8, 2**53])
@pytest.mark.parametrize("command", [
    *[kind(queue="orders", subscription="a", ids="1")
      for kind in (c.Ack, c.Cancel, c.Reject, c.Renew, c.Returned)],
    c.Purge(queue="orders", ids="1"), c.Purge(queue="orders"),
    c.Redrive(queue="orders", ids="1"), c.Redrive(queue="orders"),
], ids=lambda command: type(command).__name__)  # fmt: skip
def test_L8_ids_of_another_home_are_ignored(steps: Steps, command: c.Named, epoch: int) -> None:
    steps.run([c.Begin(epoch=7), DEFINE, SUBSCRIBE], [("orders", b"x")])
    error = steps.error(msgspec.structs.replace(command, epoch=epoch))
    assert f"epoch: {epoch} – " in error
    assert "another home; this one has epoch 7:" in error
    seen = described(steps)
    assert (seen["depth"], seen["leased"], seen["canceled"]) == (1, 1, 0)
    assert refused(steps) == {"other_home": 1}
    steps.ask(msgspec.structs.replace(command, epoch=7))


def test_L8_an_answer_names_its_home(steps: Steps) -> None:
    steps.run([c.Begin(epoch=7), DEFINE], [("orders", b"x")])
    looks = [c.Describe(queue="orders", reply=REPLY), c.Browse(queue="orders", reply=REPLY)]
    wrong = c.Browse(queue="nobody", reply=REPLY)  # an error is about no messages
    answers = of(Reply, steps.run([*looks, wrong]))
    assert [a.epoch for a in answers] == [7, 7, 0]
    told = [msgspec.json.decode(record.value) for record in wire.encode(answers)]
    assert [t.get("epoch") for t in told] == [7, 7, None]


def test_S1_without_an_epoch_there_is_no_other_home() -> None:
    steps = Steps()
    assert of(Reply, steps.run([DEFINE, SUBSCRIBE]))[0].result["epoch"] == 0


class Homes:
    """An engine in memory that reports another home; its messages stay."""

    def __init__(self) -> None:
        self.connection = lakequeue.connect("memory://")
        self.admin = self.connection.admin()
        self.admin.define({"name": "orders", "message_type": "json"})
        for _ in range(3):
            self.connection.producer().send("orders", b"{}")

    def become(self, epoch: int) -> None:
        header = self.connection.engine.brokers[0]._replica.broker.header
        header.epoch, header.begun = epoch, ["default"]


@pytest.mark.parametrize("look", ["browse", "describe", "queues"])
@pytest.mark.parametrize("command", ["purge", "redrive"])
def test_L8_an_administrator_changes_only_messages_of_the_home_browsed(
    look: str, command: str
) -> None:
    homes = Homes()
    admin = homes.admin
    homes.become(7)
    getattr(admin, look)(*([] if look == "queues" else ["orders"]))
    homes.become(8)
    with pytest.raises(LakequeueError, match=r"epoch: 7 – .* another home; this one has epoch 8"):
        getattr(admin, command)("orders", ids="1")
    # the consumer learns of epoch 8, but the administrator has not browsed since
    homes.connection.consumer("orders", max_backlog=1).close()
    with pytest.raises(LakequeueError, match="another home"):
        getattr(admin, command)("orders")
    assert admin.describe("orders")["depth"] == 3
    done = getattr(admin, command)("orders", ids="1")
    assert done == 1 if command == "purge" else done.why == {"not_dead": 1}


def test_L8_commands_without_a_browse_name_no_home() -> None:
    homes = Homes()
    homes.become(7)
    assert homes.admin.purge("orders", ids="1-2") == 2
