"""S5, S6, M2 over brokers: a message for queues of several brokers is one message in all of them; a
far queue that refuses it after the receipt makes it wait, or discards it (M3, S4)."""

from __future__ import annotations

import pytest
from lakequeue.protocol import Rejected

from .harness import drain
from .mesh import Mesh, local, shared


@pytest.fixture
def spread() -> Mesh:
    return Mesh(
        local("qa", "a", "t/>"), local("qb", "b", "t/x"), local("qc", "c", "t/*", filter="/n > 1")
    )


def test_S5_one_message_enters_queues_of_all_brokers(spread: Mesh) -> None:
    one = spread.send("b", "t/x", b'{"n":2}')
    assert spread.ids("qa") == spread.ids("qb") == spread.ids("qc") == [one]
    two = spread.send("a", "t/x", b'{"n":1}')
    assert (spread.ids("qa"), spread.ids("qb"), spread.ids("qc")) == ([one, two], [one, two], [one])
    three = spread.send("b", "t/y", b'{"n":2}')  # where none of its own queues takes it
    assert (spread.ids("qa"), spread.ids("qb")) == ([one, two, three], [one, two])
    assert spread.ids("qc") == [one, three]
    for name in "abc":
        consumer = spread.at[name].consumer(f"q{name}", max_backlog=10)
        drain(consumer)[-1].ack()  # all up to it, by ids that another broker assigned
        assert spread.ids(f"q{name}") == []


def test_M3_S4_a_discard_by_a_remote_queue_does_not_affect_others(spread: Mesh) -> None:
    keys = {"max_spool_messages": 1, "reject_msg_to_sender_on_discard": "never"}
    spread.admin.define(local("full", "c", "t/x", **keys))
    sent = [spread.send("a", "t/x", b'{"n":%d}' % n) for n in (2, 3)]
    assert (spread.ids("qa"), spread.ids("qb"), spread.ids("qc")) == (sent, sent, sent)
    assert spread.ids("full") == sent[:1]
    counters = spread.whole("full")["counters"]
    assert (counters["discarded"], counters["discarded_on_entry"]) == (1, {"queue_quota": 1})
    (row,) = spread.events("discarded")
    assert (row["queue"], row["message_id"], row["reason"]) == ("full", sent[1], "queue_quota")


def test_M2_S5_a_message_refused_by_a_local_queue_is_stored_nowhere(spread: Mesh) -> None:
    spread.admin.define(local("full", "a", "t/x", max_spool_messages=1))
    spread.send("a", "t/x", b'{"n":2}')
    with pytest.raises(Rejected) as refused:
        spread.send("a", "t/x", b'{"n":3}')
    assert (refused.value.reason, refused.value.queue) == ("queue_quota", "full")
    assert [len(spread.ids(q)) for q in ("qa", "qb", "qc", "full")] == [1, 1, 1, 1]


def test_S6_a_message_refused_by_all_filters_has_no_match(spread: Mesh) -> None:
    spread.admin.unsubscribe_topic("qa", "t/>")
    with pytest.raises(Rejected, match="no_matching_destination"):
        spread.send("a", "t/y", b'{"n":0}')
    assert spread.ids("qc") == []


def test_Q3_a_queue_by_name_and_its_topic_subscribers(spread: Mesh) -> None:
    spread.admin.define(local("audit", "c", "orders", ">"))
    spread.admin.define(local("orders", "b"))
    spread.send("a", "orders")  # clients publish to the queue's broker
    spread.plain("orders")  # plain records go to any broker, here to a
    spread.plain("orders", partition=16)  # and to c, which has a subscribed queue
    assert spread.ids("orders") == spread.ids("audit")
    assert len(spread.ids("orders")) == 3


def test_Q2_captured_topics_of_others(spread: Mesh) -> None:
    keys = {"underlying_topic": "or*d.*", "default_publish_target": "ord-1"}
    spread.admin.define(local("pattern", "b", **keys))
    spread.admin.define(local("named", "c", underlying_topic="ord-1"))
    spread.send("a", "ord-1")
    spread.send("a", "pattern")  # goes to its target (Q3)
    spread.plain("pattern", partition=16)
    assert spread.ids("pattern") == spread.ids("named")
    assert len(spread.ids("named")) == 3


@pytest.mark.parametrize("kind", ["Queue", "GroupLocalQueue"])
def test_Q5_a_distributed_queue_takes_it_once(spread: Mesh, kind: str) -> None:
    owner = {"initial_owner": "c"} if kind == "GroupLocalQueue" else {}
    some = shared("some", "t/x", type=kind, group=["b", "c"], **owner)
    for one in (some, shared("all", "t/x")):
        spread.admin.define(one)
    sent = sorted(spread.send(broker, "t/x") for broker in "ab")
    for name in ("some", "all"):
        assert sorted(m.id for m in spread.take(name, "b")) == sent
        assert spread.whole(name)["depth"] == 0
