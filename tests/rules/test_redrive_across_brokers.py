"""Dead messages go back to the queues in which they died, on whatever broker these are: as on one
broker, while queues move, brokers are away or without room, and channels are slow (X6, X5)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from lakequeue.client.producer import broker_channel
from lakequeue.protocol import commands as c
from lakequeue.state import Limits

from .harness import drain
from .mortal import Fate
from .spread import BROKERS, Spread, local
from .test_dead_across_brokers import Slow, counters, reject_all, spread


def totals(done: Any) -> tuple[int, dict[str, int], dict[str, int]]:
    assert (done.moved, done.stayed) == (sum(done.queues.values()), sum(done.why.values()))
    return done.moved, done.queues, done.why


# ---------------------------------------------------------------- as on one broker


@pytest.mark.parametrize(
    "keys", [{}, {"priority": "/n"}, {"partition_key": "/k"}, {"filter": "/n > 0"}]
)
def test_X6_a_redrive_does_the_same_as_on_one_broker(keys: dict[str, str]) -> None:
    def run(broker: str) -> list[Any]:
        one = Spread(
            local("q", "a", dead_message_queue="dmq", max_deliveries=1, expiration="1h"),
            local("dmq", broker),
        )
        for n in range(4):
            one.send("a", "q", b'{"n": %d, "k": %d}' % (n % 3, n % 2), headers={"h": "v"},
                     key="key", priority=n, ttl="10s")  # fmt: skip
        one.send("c", "dmq", b'{"n": 9}')
        reject_all(one, "q", "bad")
        one.send("c", "q", b'{"n": 7}')
        first = one.admin.browse("dmq")[1].id
        one.admin.edit("dmq", headers={"h": "w", "more": "x"}, ids=[first])
        one.admin.define({**local("q", "a", dead_message_queue="dmq", expiration="1h"), **keys})
        done = [totals(one.admin.redrive("dmq", where="/n <> 2"))]
        done.append(totals(one.admin.redrive("dmq")))
        reader = one.at["c"].consumer("q", max_backlog=9, ack_mode="individual")
        found = [*drain(reader), *one.admin.browse("q", state="ready")]
        read = [
            (m.id if m.key else "new", m.payload, m.key, m.priority, m.delivery_count)
            for m in found
        ]
        headers = [m.headers for m in found]
        left = [(m.expires_at - m.entered).total_seconds() for m in one.admin.browse("q")]
        stayed = [(m.payload, m.headers.get("lq-dead-queue")) for m in one.admin.browse("dmq")]
        here = [counters(one, "q"), counters(one, "dmq")]
        here[1].pop("returned")  # of what was refused elsewhere, as in distributed queues
        events = [(e["queue"], e["moved"], e["stayed"]) for e in one.admin.events()
                  if e["event"] == "redriven"]  # fmt: skip
        return [done, read, headers, left, stayed, here, events]

    near, far = run("a"), run("b")
    assert far == near
    assert near[0][0][1] == {"q": 1 if keys.get("filter") else 3}
    assert near[5][1]["redriven"] == near[0][0][0] + near[0][1][0]


def test_X6_the_journal_shows_the_way_back() -> None:
    one = spread()
    sent = one.send("a", "q")
    reject_all(one, "q")
    before = len([r for r in one.engine.journal() if r["message_id"] == sent])
    assert one.admin.redrive("dmq").moved == 1
    rows = [r for r in one.engine.journal() if r["message_id"] == sent]
    assert [(r["event"], r["queue"], r["reason"]) for r in rows[before:]] == [
        ("redriven", "dmq", ""),
        ("spooled", "#out/q", "redriven from dmq"),
        ("granted", "#out/q", ""),
        ("spooled", "q", "from broker b"),
        ("transferred", "#out/q", "to broker a"),
    ]


@pytest.mark.parametrize(
    ("why", "change"),
    [
        ("no_such_queue", lambda one: one.admin.delete("q")),
        ("message_too_large", lambda one: again(one, max_message_size=1)),
        ("filter", lambda one: again(one, filter="/n = 9")),
        ("leased", lambda one: one.at["b"].consumer("dmq", max_backlog=9)),
    ],
)
def test_X6_what_cannot_go_back_stays_and_is_reported(why: str, change: Any) -> None:
    one = spread()
    sent = [one.send("a", "q", b'{"n": %d}' % n) for n in range(2)]
    reject_all(one, "q", "bad")
    before = [m.headers for m in one.admin.browse("dmq")]
    change(one)
    assert totals(one.admin.redrive("dmq")) == (0, {}, {why: 2})
    found = one.admin.browse("dmq")
    assert [m.id for m in found] == sent
    assert [m.headers for m in found] == before


def again(one: Spread, **keys: Any) -> None:
    one.admin.define(local("q", "a", dead_message_queue="dmq", **keys))


def test_X6_to_distributed_queues_and_from_them() -> None:
    queue = {"message_type": "json", "max_per_subscription_backlog": 9}
    one = Spread(
        {**queue, "name": "g", "group": ["b", "c"], "dead_message_queue": "dmq"},
        {**queue, "name": "l", "type": "GroupLocalQueue", "group": ["b", "c"],
         "initial_owner": "c", "dead_message_queue": "dmq"},
        local("q", "c", dead_message_queue="all"), local("dmq", "a"), {**queue, "name": "all"},
    )  # fmt: skip
    sent = {name: one.send("a", name) for name in ("g", "l", "q")}
    for name in sent:
        reject_all(one, name)
    assert totals(one.admin.redrive("dmq")) == (2, {"g": 1, "l": 1}, {})
    assert totals(one.admin.redrive("all")) == (1, {"q": 1}, {})
    assert {name: one.ids(name) for name in sent} == {name: [at] for name, at in sent.items()}
    assert one.admin.describe("l")["brokers"]["c"]["depth"] == 1


def test_X6_a_message_that_died_on_three_brokers_goes_back_to_each() -> None:
    one = Spread(
        *(local(q, on, "t", dead_message_queue="dmq") for q, on in ("pa", "qc", "rb", "sc")),
        local("dmq", "b"),
    )  # fmt: skip
    sent = one.send("a", "t")
    for queue in "pqrs":
        reject_all(one, queue)
    assert totals(one.admin.redrive("dmq")) == (4, dict.fromkeys("pqrs", 1), {})
    assert [one.ids(queue) for queue in "pqrs"] == [[sent]] * 4
    assert one.ids("dmq") == []
    assert counters(one, "dmq")["redriven"] == 1


def test_X6_a_redrive_of_many_takes_many_steps() -> None:
    one = Spread(
        local("q", "a", dead_message_queue="dmq"), local("dmq", "b"),
        local("p", "b", dead_message_queue="dmq"), limits=Limits(bulk_rows=7),
    )  # fmt: skip
    sent = [one.send("a", "q" if n % 3 else "p", b"%d" % n) for n in range(45)]
    reject_all(one, "q")
    reject_all(one, "p")
    dead = one.ids("dmq")
    assert sorted(dead) == sorted(sent)
    assert totals(one.admin.redrive("dmq")) == (45, {"p": 15, "q": 30}, {})
    assert one.ids("q") == [i for i in dead if sent.index(i) % 3]


# ---------------------------------------------------------------- what happens meanwhile


@pytest.mark.parametrize("full", [False, True])
def test_X6_the_dead_message_queue_moves_meanwhile(full: bool) -> None:
    one = spread()
    sent = [one.send("a", "q", b"%d" % n) for n in range(3)]
    reject_all(one, "q")
    if full:
        again(one, max_spool_messages=1)
    one.engine.cut("a")
    redrive = c.encode_command(c.Redrive(queue="dmq"))
    one.engine.command("default.commands", b"", redrive, "b")
    moving = c.encode_command(c.MoveQueue(queue="dmq", broker="c"))
    one.engine.command("default.commands", b"", moving)
    one.engine.mend("a")
    one.engine.advance("1s")
    assert one.admin.describe("dmq")["broker"] == "c"
    assert one.ids("q") == (sent[:1] if full else sent)
    assert one.ids("dmq") == []
    one.admin.purge("q")
    one.engine.advance("2s")
    assert one.ids("q") == (sent[1:2] if full else [])


def test_S7_the_dead_message_queue_is_deleted_meanwhile() -> None:
    one = spread()
    sent = [one.send("a", "q", b"%d" % n) for n in range(3)]
    reject_all(one, "q")
    again(one, max_spool_messages=1)
    one.engine.cut("a")
    one.engine.command("default.commands", b"", c.encode_command(c.Redrive(queue="dmq")), "b")
    one.engine.command("default.commands", b"", c.encode_command(c.Delete(queue="dmq")))
    one.engine.mend("a")
    one.engine.advance("1s")
    assert one.ids("q") == sent[:1]
    usage = one.admin.usage()["brokers"]
    assert [usage[broker]["broker"]["spool_bytes"] for broker in BROKERS] == [1, 2, 0]


def test_X6_where_the_queue_moves_they_stay_and_go_later() -> None:
    one = spread()
    sent = one.send("a", "q")
    reject_all(one, "q")
    one.send("a", "q")
    one.engine.cut("c")
    moving = c.encode_command(c.MoveQueue(queue="q", broker="c"))
    one.engine.command("default.commands", b"", moving)
    one.engine.cut("a")
    one.engine.mend("c")  # it waits for the queue now
    one.engine.mend("a")
    assert one.admin.redrive("dmq").moved == 1
    assert one.admin.describe("q")["broker"] == "c"
    assert sent in one.ids("q")


def test_X6_what_dies_again_before_its_redrive_is_known_to_be_done_stays_dead() -> None:
    slow = Slow()
    sent = slow.at["a"].producer().send("q", b"1").message_id
    slow.reject("q")
    engine = slow.engine
    engine.slow()
    engine.command("default.commands", b"", c.encode_command(c.Redrive(queue="dmq")), 1)
    engine.let("a", "b")  # it is back; b is yet to hear so
    slow.move("q", "c")
    for _ in range(9):
        engine.let("c", "a")
        engine.let("a", "c")
    consumer = slow.at["c"].consumer("q", ack_mode="individual")
    drain(consumer)[0].reject("again")
    for _ in range(3):
        engine.let("b", "c")  # it is dead again, before b hears that it went back
    slow.end()
    assert [m.id for m in slow.admin.browse("dmq")] == [sent]
    assert slow.bodies("q") == []
    assert slow.admin.redrive("dmq").queues == {"q": 1}
    assert [m.id for m in slow.admin.browse("q")] == [sent]


def test_X6_published_edited_and_dead_in_another() -> None:
    one = Spread(
        local("dmq", "b", "t", expiration_model="queue"),
        local("p", "b", "t", dead_message_queue="dmq"), local("q", "a", "t",
        dead_message_queue="dmq"),
    )  # fmt: skip
    sent = one.send("a", "t")
    one.admin.edit("dmq", headers={"h": "w"})
    reject_all(one, "p")
    reject_all(one, "q")
    (held,) = one.admin.browse("dmq")
    assert (held.headers["h"], held.headers["lq-dead-queue"]) == ("w", "p")
    assert totals(one.admin.redrive("dmq")) == (2, {"p": 1, "q": 1}, {})
    assert one.ids("p") == one.ids("q") == [sent]


# ---------------------------------------------------------------- whoever dies


@pytest.mark.parametrize("seed", range(4))
def test_X6_each_goes_back_once_whoever_dies(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages die in two queues and are redriven; all queues move, and brokers die."""
    monkeypatch.setattr(broker_channel, "PAUSE_S", 0)
    fate = Fate(seed, death=0.1)
    slow = Slow(fate)
    slow.engine.slow()
    producer, sent = slow.at["a"].producer(), []
    redrive = c.encode_command(c.Redrive(queue="dmq"))
    for n in range(150):
        what = fate.random.choice(["q", "t", "move", "wait", "back", *["some"] * 7])
        if what == "move":
            slow.move(fate.random.choice(["q", "p", "dmq"]), fate.random.choice(BROKERS))
        elif what == "wait":
            slow.engine.advance("300ms")
        elif what == "back":
            slow.engine.command("default.commands", b"", redrive, fate.random.randrange(3))
        elif what == "some":
            slow.engine.some(fate)
        else:
            sent.append((what, producer.send_async(what, b"%d" % n, ttl="200ms")))
    slow.end()
    ids = [(what, future.result(0).message_id) for what, future in sent]
    both = {number for what, number in ids if what == "t"}
    where = {q: [m.id for m in slow.admin.browse(q, limit=1_000)] for q in ("q", "p", "dmq")}
    dead = slow.admin.browse("dmq", limit=1_000)
    for queue in ("q", "p"):
        there = [*where[queue], *(m.id for m in dead if queue in died(m))]
        wanted = {n for _, n in ids} if queue == "q" else both
        assert Counter(there) == Counter(dict.fromkeys(wanted, 1)), queue
        seen = slow.admin.describe(queue)
        count = seen["counters"].get
        assert count("dead_lettered", 0) == count("expired", 0) + count("consumer_rejected", 0)
        assert seen["depth"] == count("spooled", 0) - count("dead_lettered", 0)
    redriven = slow.admin.describe("dmq")["counters"]
    assert redriven["spooled"] == redriven.get("redriven", 0) + len(dead)
    went = [r for r in slow.engine.journal() if (r["event"], r["queue"]) == ("redriven", "dmq")]
    assert went
    slow.admin.redrive("dmq")
    assert sorted(m.id for m in slow.admin.browse("q", limit=1_000)) == sorted(n for _, n in ids)
    assert {m.id for m in slow.admin.browse("p", limit=1_000)} == both
    assert slow.bodies("dmq") == []
    assert fate.deaths > 3  # 100 in all seeds together


def died(message: Any) -> list[str]:
    also = message.headers.get("lq-dead-also", "")
    return [message.headers["lq-dead-queue"], *filter(None, also.split(","))]
