"""Dead messages reach their dead message queue wherever it is: as on one broker, and while both
queues move, brokers are away or without room, and channels are slow (X5, X6, Q5)."""

from __future__ import annotations

from typing import Any

import pytest
from lakequeue.protocol import commands as c
from lakequeue.protocol.errors import ConfigError

from .harness import drain
from .mortal import Fate
from .slow import SlowEngine
from .spread import Spread, local


def spread(of: str = "a", dead: str = "b", **keys: Any) -> Spread:
    """`q` on one broker, its dead message queue on another."""
    return Spread(local("q", of, dead_message_queue="dmq", **keys), local("dmq", dead))


def counters(spread: Spread, queue: str) -> dict[str, Any]:
    found = spread.admin.describe(queue)
    return {**found["counters"], "depth": found["depth"]}


def reject_all(spread: Spread, queue: str, why: str = "no") -> None:
    consumer = spread.at["c"].consumer(queue, max_backlog=50, ack_mode="individual")
    for message in drain(consumer):
        message.reject(why)
    consumer.close()


def waiting(spread: Spread, broker: str = "a") -> list[bytes]:
    """What is on its way at a broker."""
    return [m.payload for m in spread.at[broker].admin().browse("#out/dmq")]


# ---------------------------------------------------------------- as on one broker


@pytest.mark.parametrize("keys", [{}, {"priority": "/n"}, {"partition_key": "/k"}])
def test_X5_a_dead_message_is_the_same_as_on_one_broker(keys: dict[str, str]) -> None:
    def run(broker: str) -> list[Any]:
        one = Spread(
            local("q", "a", dead_message_queue="dmq", max_deliveries=2),
            local("dmq", broker, expiration="1h", **keys),
        )
        begun = one.engine.now
        for n in range(4):
            one.send("a", "q", b'{"n": %d, "k": %d}' % (n % 3, n % 2), headers={"h": "v"},
                     key="key", priority=n, ttl="10s")  # fmt: skip
        reject_all(one, "q", "bad")
        one.send("b", "q", b'{"n": 9}', ttl="10s")
        one.send("c", "q", b'{"n": 8}', ttl="10s", dmq_eligible=False)
        for _ in range(2):
            one.at["b"].consumer("q", max_backlog=9, ack_mode="individual").close()
        one.engine.advance("11s")
        reader = one.at["c"].consumer("dmq", max_backlog=9, ack_mode="individual")
        found = [*drain(reader), *one.admin.browse("dmq")]
        headers = [m.headers for m in found]
        died = [int(one.pop("lq-dead-time")) - begun for one in headers]
        left = [(m.expires_at - m.entered).total_seconds() for m in one.admin.browse("dmq")]
        read = [(m.id, m.payload, m.key, m.priority) for m in found]
        return [read, headers, died, left, counters(one, "q"), counters(one, "dmq")]

    near, far = run("a"), run("b")
    assert far == near
    assert (near[4]["dead_lettered"], near[4]["discarded"], near[5]["depth"]) == (5, 1, 5)


def test_X5_the_journal_shows_the_way() -> None:
    one = spread()
    sent = one.send("a", "q")
    reject_all(one, "q")
    rows = [r for r in one.engine.journal() if r["message_id"] == sent]
    way = [(r["event"], r["queue"], r["reason"]) for r in rows]
    assert way[3:] == [
        ("spooled", "#out/dmq", "rejected"),
        ("dead_lettered", "q", "dmq"),
        ("granted", "#out/dmq", ""),
        ("spooled", "dmq", "from broker a"),
        ("transferred", "#out/dmq", "to broker b"),
    ]


@pytest.mark.parametrize(("how", "why"), [("full", "queue_quota"), ("shut down", "queue_shutdown")])
def test_M3_X5_what_a_dead_message_queue_elsewhere_does_not_take_now_waits(
    how: str, why: str
) -> None:
    one = spread()
    one.send("a", "q", b"1")
    reject_all(one, "q")
    if how == "full":
        again = local("dmq", "b", max_spool_messages=1)
        one.admin.define({k: v for k, v in again.items() if k != "broker"})
    else:
        one.admin.shutdown("dmq", ingress=True)
        one.admin.define(
            local("dmq", "b", reject_msg_to_sender_on_discard="including-when-shutdown")
        )
    sent = one.send("a", "q", b"22")
    reject_all(one, "q")
    assert (counters(one, "q")["dead_lettered"], len(one.ids("dmq"))) == (2, 1)
    (lane,) = one.at["a"].request(c.Usage(), broker=0)["lanes"]
    assert (lane["queue"], lane["why"], lane["waiting"]) == ("dmq", why, 1)
    if how == "full":
        one.admin.purge("dmq")
    else:
        one.admin.shutdown("dmq")
    one.engine.advance("2s")
    assert one.ids("dmq")[-1] == sent


def test_X5_where_a_dead_message_queue_elsewhere_was_deleted_they_are_discarded() -> None:
    one = spread()
    one.send("a", "q", b"1")
    reject_all(one, "q")
    one.admin.delete("dmq")
    one.send("a", "q", b"22")
    reject_all(one, "q")
    found = counters(one, "q")
    assert (found["consumer_rejected"], found["dead_lettered"], found["discarded"]) == (2, 1, 1)
    (event,) = [e for e in one.admin.events() if e["event"] == "dead_message_queue_unusable"]
    why = "dead message queue missing"
    assert (event["queue"], event["why"], event["messages"]) == ("q", why, 1)
    usage = one.admin.usage()["brokers"]
    assert [usage[name]["broker"]["spool_bytes"] for name in "ab"] == [0, 0]


def test_X5_of_a_group_any_broker_and_of_a_group_local_queue_the_initial_owner() -> None:
    queue = {"message_type": "json", "max_per_subscription_backlog": 9}
    one = Spread(
        local("q", "a", dead_message_queue="g"), local("p", "b", dead_message_queue="l"),
        {**queue, "name": "g", "group": ["b", "c"]},
        {**queue, "name": "l", "type": "GroupLocalQueue", "group": ["a", "c"],
         "initial_owner": "a"},
        {**queue, "name": "all", "dead_message_queue": "dmq"}, local("dmq", "c"),
    )  # fmt: skip
    sent = {name: one.send("a", name) for name in ("q", "p", "all")}
    for name in sent:
        reject_all(one, name)
    assert (one.ids("g"), one.ids("l")) == ([sent["q"]], [sent["p"]])
    assert one.ids("dmq") == [sent["all"]]
    assert one.admin.describe("l")["brokers"]["a"]["depth"] == 1


# ---------------------------------------------------------------- brokers that are away, or full


def test_X5_they_wait_for_a_broker_that_is_away_and_can_be_looked_at() -> None:
    one = spread()
    one.engine.cut("b")
    sent = [one.send("a", "q", b"%d" % n) for n in range(3)]
    reject_all(one, "q")
    assert waiting(one) == [b"0", b"1", b"2"]
    admin = one.at["a"].admin()
    for refused in (
        lambda: one.at["a"].consumer("#out/dmq"),
        lambda: admin.delete("#out/dmq"),
        lambda: admin.move("q", to="#out/dmq"),
        lambda: admin.define({"name": "#out/x", "message_type": "json"}),
    ):
        with pytest.raises(ConfigError, match="#out/"):
            refused()
    one.engine.mend("b")
    one.engine.advance("1s")
    assert one.ids("dmq") == sent
    assert counters(one, "q")["dead_lettered"] == 3
    assert waiting(one) == []


# ---------------------------------------------------------------- channels that are slow


class Slow(Spread):
    """`q` and `p` are on a and take `t`, their dead message queue is on b."""

    ENGINE = SlowEngine

    def __init__(self, fate: Fate | None = None) -> None:
        takes = [local(name, "a", "t", dead_message_queue="dmq") for name in "qp"]
        super().__init__(*takes, local("dmq", "b"))
        self.engine.fated(fate)

    def reject(self, queue: str) -> None:
        consumer = self.at["a"].consumer(queue, max_backlog=50, ack_mode="individual")
        for message in drain(consumer):
            message.reject("no")
        consumer.close()

    def move(self, queue: str, broker: str) -> None:
        command = c.encode_command(c.MoveQueue(queue=queue, broker=broker))
        self.engine.command("default.commands", b"", command)

    def end(self) -> None:
        self.engine.fated(None)
        self.engine.haste()
        for _ in range(30):
            self.engine.advance("1s")
            for connection in self.at.values():
                connection.attend()


def test_X6_what_dies_once_more_on_the_way_is_known_to_have_died_in_both() -> None:
    slow = Slow()
    sent = slow.at["a"].producer().send("t", b"1").message_id
    slow.engine.slow()
    slow.reject("q")
    slow.reject("p")  # q's has been said
    slow.end()
    assert [m.id for m in slow.admin.browse("dmq")] == [sent]
    assert [slow.admin.describe(q)["counters"]["dead_lettered"] for q in "qp"] == [1, 1]
    slow.admin.move_queue("dmq", "a")
    assert slow.admin.redrive("dmq").queues == {"p": 1, "q": 1}


@pytest.mark.parametrize("what", ["delete", "purge", "move"])
def test_X5_the_dead_message_queue_changes_while_they_are_on_their_way(what: str) -> None:
    slow = Slow()
    producer = slow.at["a"].producer()
    producer.send("q", b"0")
    slow.reject("q")
    producer.send("q", b"1")
    slow.engine.slow()
    slow.reject("q")
    if what == "delete":
        slow.engine.command("default.commands", b"", c.encode_command(c.Delete(queue="dmq")))
    elif what == "purge":
        slow.engine.command("default.commands", b"", c.encode_command(c.Purge(queue="dmq")), 1)
    else:
        slow.move("dmq", "c")
    slow.end()
    counters = slow.admin.describe("q")["counters"]
    lettered, discarded = counters["dead_lettered"], counters["discarded"]
    if what == "delete":
        assert lettered + discarded == 2
        assert [q["name"] for q in slow.admin.queues()] == ["p", "q"]
    else:
        assert (lettered, discarded) == (2, 0)
        assert slow.bodies("dmq") == ([b"1"] if what == "purge" else [b"0", b"1"])
    held = sum(one["broker"]["spool_bytes"] for one in slow.admin.usage()["brokers"].values())
    assert held == {"delete": 0, "purge": 1, "move": 2}[what]


def test_X5_they_wait_for_room_on_the_other_broker_in_their_order() -> None:
    one = spread()
    system = c.encode_command(c.Configure(system={"max_spool_usage": 4}))
    one.engine.instruct("default", system, "b")
    for n in range(4):
        one.send("a", "q", b"%d%d" % (n, n))
    reject_all(one, "q")
    assert (one.bodies("dmq"), waiting(one)) == ([b"00", b"11"], [b"22", b"33"])
    reader = one.at["b"].consumer("dmq", max_backlog=1, ack_mode="individual")
    drain(reader)[0].ack()
    one.engine.advance("10s")
    assert (one.bodies("dmq"), waiting(one)) == ([b"11", b"22"], [b"33"])
    assert counters(one, "q")["dead_lettered"] == 4
