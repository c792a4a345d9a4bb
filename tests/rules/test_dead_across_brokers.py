"""Dead messages reach their dead message queue on any broker, as on a single one: also while queues
move, brokers are away or full, and channels are slow (X5, X6, Q5)."""

from __future__ import annotations

from typing import Any

import pytest
from lakequeue.protocol import commands as c
from lakequeue.protocol.errors import ConfigError
from lakequeue.state import Limits

from .harness import drain
from .mesh import LATE, Mesh, Network, ids, local, numbers, shared


class Dying(Mesh):
    """By default `q` on broker a, and its dead message queue on b."""

    def __init__(self, *queues: dict[str, Any], **more: Any) -> None:
        one = local("q", "a", dead_message_queue="dmq"), local("dmq", "b")
        super().__init__(*(queues or one), **more)

    def counters(self, queue: str) -> dict[str, Any]:
        found = self.whole(queue)
        return {**found["counters"], "depth": found["depth"]}

    def reject_all(self, queue: str, why: str = "no") -> None:
        with self.consumer("c", 50, queue) as consumer:
            for message in drain(consumer):
                message.reject(why)

    def waiting(self) -> list[bytes]:
        """The messages in transit from a."""
        return self.bodies("#out/dmq")

    def stored(self) -> list[int]:
        """The stored bytes of each broker."""
        usage = self.admin.usage()["brokers"]
        return [usage[broker]["broker"]["spool_bytes"] for broker in self.brokers]


# ---------------------------------------------------------------- as on one broker


@pytest.mark.parametrize("keys", [{}, {"priority": "/n"}, {"partition_key": "/k"}])
def test_X5_a_dead_message_is_alike_with_one_and_several_brokers(keys: dict[str, str]) -> None:
    def run(broker: str) -> list[Any]:
        one = Dying(
            local("q", "a", dead_message_queue="dmq", max_deliveries=2),
            local("dmq", broker, expiration="1h", **keys),
        )
        begun = one.engine.now
        for n in range(4):
            one.send("a", "q", {"n": n % 3, "k": n % 2}, headers={"h": "v"}, key="key",
                     priority=n, ttl="10s")  # fmt: skip
        one.reject_all("q", "bad")
        one.send("b", "q", {"n": 9}, ttl="10s")
        one.send("c", "q", {"n": 8}, ttl="10s", dmq_eligible=False)
        for _ in range(2):
            one.consumer("b", 9, "q").close()
        one.advance("11s")
        found = [*drain(one.consumer("c", 9, "dmq")), *one.admin.browse("dmq")]
        headers = [m.headers for m in found]
        died = [int(one.pop("lq-dead-time")) - begun for one in headers]
        left = [(m.expires_at - m.entered).total_seconds() for m in one.admin.browse("dmq")]
        read = [(m.id, m.payload, m.key, m.priority) for m in found]
        return [read, headers, died, left, one.counters("q"), one.counters("dmq")]

    near, far = run("a"), run("b")
    assert far == near
    assert (near[4]["dead_lettered"], near[4]["discarded"], near[5]["depth"]) == (5, 1, 5)


def test_X5_X6_the_journal_shows_a_dead_message_leave_and_return() -> None:
    one = Dying()
    sent = one.send("a", "q")
    one.reject_all("q")
    assert one.admin.redrive("dmq").moved == 1
    rows = [r for r in one.engine.journal() if r["message_id"] == sent]
    assert [(r["event"], r["queue"], r["reason"]) for r in rows[3:]] == [
        ("spooled", "#out/dmq", "rejected"),
        ("dead_lettered", "q", "dmq"),
        ("granted", "#out/dmq", ""),
        ("spooled", "dmq", "from broker a, dead of rejected"),
        ("transferred", "#out/dmq", "to broker b"),
        ("redriven", "dmq", ""),
        ("spooled", "#out/q", "redriven from dmq"),
        ("granted", "#out/q", ""),
        ("spooled", "q", "from broker b"),
        ("transferred", "#out/q", "to broker a"),
    ]


@pytest.mark.parametrize(("how", "why"), [("full", "queue_quota"), ("shut down", "queue_shutdown")])
def test_M3_X5_dead_messages_refused_by_a_remote_dead_message_queue_wait(
    how: str, why: str
) -> None:
    one = Dying()
    one.send("a", "q", b"1")
    one.reject_all("q")
    if how == "full":
        one.admin.define({"name": "dmq", "max_spool_messages": 1})
    else:
        one.admin.shutdown("dmq", ingress=True)
        keys = {"reject_msg_to_sender_on_discard": "including-when-shutdown"}
        one.admin.define({"name": "dmq", **keys})
    sent = one.send("a", "q", b"22")
    one.reject_all("q")
    assert (one.counters("q")["dead_lettered"], len(one.ids("dmq"))) == (2, 1)
    (lane,) = one.at["a"].request(c.Usage(), broker=0)["lanes"]
    assert (lane["queue"], lane["why"], lane["waiting"]) == ("dmq", why, 1)
    if how == "full":
        one.admin.purge("dmq")
    else:
        one.admin.shutdown("dmq")
    one.advance("2s")
    assert one.ids("dmq")[-1] == sent


def test_X5_dead_messages_for_a_deleted_remote_queue_are_discarded() -> None:
    one = Dying()
    one.send("a", "q", b"1")
    one.reject_all("q")
    one.admin.delete("dmq")
    one.send("a", "q", b"22")
    one.reject_all("q")
    found = one.counters("q")
    assert (found["consumer_rejected"], found["dead_lettered"], found["discarded"]) == (2, 1, 1)
    (event,) = [e for e in one.admin.events() if e["event"] == "dead_message_queue_unusable"]
    why = "dead message queue missing"
    assert (event["queue"], event["why"], event["messages"]) == ("q", why, 1)
    assert one.stored() == [0, 0, 0]


def test_X5_dead_messages_go_to_any_host_of_a_group_and_to_an_initial_owner() -> None:
    one = Dying(
        local("q", "a", dead_message_queue="g"), local("p", "b", dead_message_queue="l"),
        shared("g", group=["b", "c"]), shared("all", dead_message_queue="dmq"), local("dmq", "c"),
        shared("l", type="GroupLocalQueue", group=["a", "c"], initial_owner="a"),
    )  # fmt: skip
    sent = {name: one.send("a", name) for name in ("q", "p", "all")}
    for name in sent:
        one.reject_all(name)
    assert [one.ids(name) for name in ("g", "l", "dmq")] == [[number] for number in sent.values()]
    assert one.seen("a", "l")["depth"] == 1


# ---------------------------------------------------------------- brokers that are away, or full


def test_X5_dead_messages_for_an_unreachable_broker_wait_and_can_be_browsed() -> None:
    one = Dying()
    one.engine.cut("b")
    sent = [one.send("a", "q", b"%d" % n) for n in range(3)]
    one.reject_all("q")
    assert one.waiting() == [b"0", b"1", b"2"]
    for refused in (
        lambda: one.consumer("a", queue="#out/dmq"),
        lambda: one.admin.delete("#out/dmq"),
        lambda: one.admin.move("q", to="#out/dmq"),
        lambda: one.admin.define(shared("#out/x")),
    ):
        with pytest.raises(ConfigError, match="#out/"):
            refused()
    one.engine.mend("b")
    one.advance("1s")
    assert (one.ids("dmq"), one.waiting()) == (sent, [])
    assert one.counters("q")["dead_lettered"] == 3


def test_X5_dead_messages_wait_in_order_for_room_on_the_other_broker() -> None:
    one = Dying()
    system = c.encode_command(c.Configure(system={"max_spool_usage": 4}))
    one.engine.instruct("default", system, "b")
    for n in range(4):
        one.send("a", "q", b"%d%d" % (n, n))
    one.reject_all("q")
    assert (one.bodies("dmq"), one.waiting()) == ([b"00", b"11"], [b"22", b"33"])
    drain(one.consumer("b", 1, "dmq"))[0].ack()
    one.advance("10s")
    assert (one.bodies("dmq"), one.waiting()) == ([b"11", b"22"], [b"33"])
    assert one.counters("q")["dead_lettered"] == 4


# ---------------------------------------------------------------- channels that are slow


def catch_up(mesh: Mesh, network: Network) -> None:
    """Everything arrives, and from now on without delay."""
    network.heal()
    for _ in range(10):
        mesh.advance("1s")


BOTH = [local(name, "a", "t", dead_message_queue="dmq") for name in "qp"]


def test_X6_a_message_that_dies_again_in_transit_lists_both_queues(network: Network) -> None:
    one = Dying(*BOTH, local("dmq", "b"))
    sent = one.send("a", "t")
    network.fault = lambda word: LATE
    one.reject_all("q")
    one.reject_all("p")  # q's dead message is in transit
    catch_up(one, network)
    assert one.ids("dmq") == [sent]
    assert [one.counters(q)["dead_lettered"] for q in "qp"] == [1, 1]
    one.admin.move_queue("dmq", "a")
    assert one.admin.redrive("dmq").queues == {"p": 1, "q": 1}


@pytest.mark.parametrize("what", ["delete", "purge", "move"])
def test_X5_the_dead_message_queue_changes_while_messages_are_in_transit(
    what: str, network: Network
) -> None:
    one = Dying()
    one.send("a", "q", b"0")
    one.reject_all("q")
    one.send("a", "q", b"1")
    network.fault = lambda word: LATE
    one.reject_all("q")
    if what == "delete":
        one.tell(c.Delete(queue="dmq"))
    elif what == "purge":
        one.engine.command("default.commands", b"", c.encode_command(c.Purge(queue="dmq")), 1)
    else:
        one.move("dmq", "c")
    catch_up(one, network)
    counters = one.counters("q")
    lettered, discarded = counters["dead_lettered"], counters["discarded"]
    if what == "delete":
        assert lettered + discarded == 2
        assert list(one.where()) == ["q"]
    else:
        assert (lettered, discarded) == (2, 0)
        assert one.bodies("dmq") == ([b"1"] if what == "purge" else [b"0", b"1"])
    assert sum(one.stored()) == {"delete": 0, "purge": 1, "move": 2}[what]


def test_X6_a_message_that_dies_before_its_redrive_is_confirmed_stays_dead(
    network: Network,
) -> None:
    one = Dying()
    sent = one.send("a", "q", 1)
    one.reject_all("q")
    network.fault = lambda word: LATE
    one.engine.command("default.commands", b"", c.encode_command(c.Redrive(queue="dmq")), 1)
    network.let(one, "a", "b")  # it is back, which b does not know yet
    one.move("q", "c")
    for _ in range(9):
        network.let(one, "c", "a")
        network.let(one, "a", "c")
    drain(one.consumer("c", 1, "q"))[0].reject("again")
    for _ in range(3):
        network.let(one, "b", "c")  # it is dead again, before b learns that it returned
    catch_up(one, network)
    assert (one.ids("dmq"), one.ids("q")) == ([sent], [])
    assert one.admin.redrive("dmq").queues == {"q": 1}
    assert (one.ids("q"), numbers(one.admin.browse("q"))) == ([sent], [1])


# ---------------------------------------------------------------- redrive


def totals(done: Any) -> tuple[int, dict[str, int], dict[str, int]]:
    assert (done.moved, done.stayed) == (sum(done.queues.values()), sum(done.why.values()))
    return done.moved, done.queues, done.why


def again(one: Mesh, **keys: Any) -> None:
    one.admin.define({"name": "q", **keys})


@pytest.mark.parametrize(
    "keys", [{}, {"priority": "/n"}, {"partition_key": "/k"}, {"filter": "/n > 0"}]
)
def test_X6_a_redrive_works_alike_with_one_and_several_brokers(keys: dict[str, str]) -> None:
    def run(broker: str) -> list[Any]:
        one = Dying(
            local("q", "a", dead_message_queue="dmq", max_deliveries=1, expiration="1h"),
            local("dmq", broker),
        )
        for n in range(4):
            one.send("a", "q", {"n": n % 3, "k": n % 2}, headers={"h": "v"}, key="key",
                     priority=n, ttl="10s")  # fmt: skip
        one.send("c", "dmq", {"n": 9})
        one.reject_all("q", "bad")
        one.send("c", "q", {"n": 7})
        first = one.ids("dmq")[1]
        one.admin.edit("dmq", headers={"h": "w", "more": "x"}, ids=[first])
        again(one, max_deliveries=None, **keys)
        done = [totals(one.admin.redrive("dmq", where="/n <> 2"))]
        done.append(totals(one.admin.redrive("dmq")))
        found = [*drain(one.consumer("c", 9, "q")), *one.admin.browse("q", state="ready")]
        read = [
            (m.id if m.key else "new", m.payload, m.key, m.priority, m.delivery_count)
            for m in found
        ]
        headers = [m.headers for m in found]
        left = [(m.expires_at - m.entered).total_seconds() for m in one.admin.browse("q")]
        stayed = [(m.payload, m.headers.get("lq-dead-queue")) for m in one.admin.browse("dmq")]
        here = [one.counters("q"), one.counters("dmq")]
        here[1].pop("returned")  # counts refusals by another broker, as in distributed queues
        events = [(e["queue"], e["moved"], e["stayed"]) for e in one.admin.events()
                  if e["event"] == "redriven"]  # fmt: skip
        return [done, read, headers, left, stayed, here, events]

    near, far = run("a"), run("b")
    assert far == near
    assert near[0][0][1] == {"q": 1 if keys.get("filter") else 3}
    assert near[5][1]["redriven"] == near[0][0][0] + near[0][1][0]


@pytest.mark.parametrize(
    ("why", "change"),
    [
        ("no_such_queue", lambda one: one.admin.delete("q")),
        ("message_too_large", lambda one: again(one, max_message_size=1)),
        ("filter", lambda one: again(one, filter="/n = 9")),
        ("leased", lambda one: one.consumer("b", 9, "dmq")),
    ],
)
def test_X6_messages_that_cannot_return_stay_and_are_reported(why: str, change: Any) -> None:
    one = Dying()
    sent = [one.send("a", "q", {"n": n}) for n in range(2)]
    one.reject_all("q", "bad")
    before = [m.headers for m in one.admin.browse("dmq")]
    change(one)
    assert totals(one.admin.redrive("dmq")) == (0, {}, {why: 2})
    found = one.admin.browse("dmq")
    assert (ids(found), [m.headers for m in found]) == (sent, before)


def test_X6_to_distributed_queues_and_from_them() -> None:
    dead, group = {"dead_message_queue": "dmq"}, {"group": ["b", "c"]}
    one = Dying(
        shared("g", **dead, **group), local("q", "c", dead_message_queue="all"),
        shared("l", type="GroupLocalQueue", initial_owner="c", **dead, **group),
        local("dmq", "a"), shared("all"),
    )  # fmt: skip
    sent = {name: one.send("a", name) for name in ("g", "l", "q")}
    for name in sent:
        one.reject_all(name)
    assert totals(one.admin.redrive("dmq")) == (2, {"g": 1, "l": 1}, {})
    assert totals(one.admin.redrive("all")) == (1, {"q": 1}, {})
    assert {name: one.ids(name) for name in sent} == {name: [at] for name, at in sent.items()}
    assert one.seen("c", "l")["depth"] == 1


@pytest.mark.parametrize("dead_at", ["a", "b", "c"])
@pytest.mark.parametrize("first", ["pqrs", "srqp"])
@pytest.mark.parametrize("sender", ["a", "b", "c"])
def test_X6_a_message_that_died_on_three_brokers_goes_back_to_each(
    dead_at: str, first: str, sender: str
) -> None:
    queues = (local(q, at, "t", dead_message_queue="dmq") for q, at in ("pa", "qc", "rb", "sc"))
    one = Dying(*queues, local("dmq", dead_at))
    sent = one.send(sender, "t")
    for queue in first:
        one.reject_all(queue)
    assert one.ids("dmq") == [sent], "more than once"
    assert totals(one.admin.redrive("dmq")) == (4, dict.fromkeys("pqrs", 1), {})
    assert [one.ids(queue) for queue in "pqrs"] == [[sent]] * 4
    assert (one.ids("dmq"), one.counters("dmq")["redriven"]) == ([], 1)


def test_X6_a_redrive_of_many_takes_many_steps() -> None:
    queues = [local(name, at, dead_message_queue="dmq") for name, at in ("qa", "pb")]
    one = Dying(*queues, local("dmq", "b"), limits=Limits(bulk_rows=7))
    sent = [one.send("a", "q" if n % 3 else "p") for n in range(45)]
    one.reject_all("q")
    one.reject_all("p")
    dead = one.ids("dmq")
    assert sorted(dead) == sorted(sent)
    assert totals(one.admin.redrive("dmq")) == (45, {"p": 15, "q": 30}, {})
    assert one.ids("q") == [i for i in dead if sent.index(i) % 3]


@pytest.mark.parametrize("full", [False, True])
def test_X6_the_dead_message_queue_moves_during_a_redrive(full: bool) -> None:
    one = Dying()
    sent = [one.send("a", "q") for _ in range(3)]
    one.reject_all("q")
    if full:
        again(one, max_spool_messages=1)
    one.engine.cut("a")
    redrive = c.encode_command(c.Redrive(queue="dmq"))
    one.engine.command("default.commands", b"", redrive, "b")
    moving = c.encode_command(c.MoveQueue(queue="dmq", broker="c"))
    one.engine.command("default.commands", b"", moving)
    one.engine.mend("a")
    one.advance("1s")
    assert (one.where()["dmq"], one.ids("dmq")) == ("c", [])
    assert one.ids("q") == (sent[:1] if full else sent)
    one.admin.purge("q")
    one.advance("2s")
    assert one.ids("q") == (sent[1:2] if full else [])


def test_S7_the_dead_message_queue_is_deleted_during_a_redrive() -> None:
    one = Dying()
    sent = [one.send("a", "q", b"%d" % n) for n in range(3)]
    one.reject_all("q")
    again(one, max_spool_messages=1)
    one.engine.cut("a")
    one.engine.command("default.commands", b"", c.encode_command(c.Redrive(queue="dmq")), "b")
    one.engine.command("default.commands", b"", c.encode_command(c.Delete(queue="dmq")))
    one.engine.mend("a")
    one.advance("1s")
    assert (one.ids("q"), one.stored()) == (sent[:1], [1, 2, 0])


def test_X6_messages_for_a_moving_queue_stay_and_are_redriven_later() -> None:
    one = Dying()
    sent = one.send("a", "q")
    one.reject_all("q")
    one.send("a", "q")
    one.engine.cut("c")
    moving = c.encode_command(c.MoveQueue(queue="q", broker="c"))
    one.engine.command("default.commands", b"", moving)
    one.engine.cut("a")
    one.engine.mend("c")  # it waits for the queue now
    one.engine.mend("a")
    assert one.admin.redrive("dmq").moved == 1
    assert one.where()["q"] == "c"
    assert sent in one.ids("q")


def test_X6_an_edited_message_dies_in_another_queue() -> None:
    one = Dying(
        local("dmq", "b", "t", expiration_model="queue"),
        *(local(q, at, "t", dead_message_queue="dmq") for q, at in ("pb", "qa")),
    )
    sent = one.send("a", "t")
    one.admin.edit("dmq", headers={"h": "w"})
    one.reject_all("p")
    one.reject_all("q")
    (held,) = one.admin.browse("dmq")
    assert (held.headers["h"], held.headers["lq-dead-queue"]) == ("w", "p")
    assert totals(one.admin.redrive("dmq")) == (2, {"p": 1, "q": 1}, {})
    assert one.ids("p") == one.ids("q") == [sent]
