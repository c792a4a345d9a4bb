"""S5, S6, P1 over brokers: a publish that queues on several of them take is stored by all of them,
as one message, or by none."""

from __future__ import annotations

import time
from unittest.mock import patch

import pytest
from lakequeue.client.following import PAUSE_S
from lakequeue.protocol import Rejected
from lakequeue.protocol import commands as c
from lakequeue.protocol.messages import Records
from lakequeue.protocol.offering import TopicRoutes
from lakequeue.protocol.outputs import MeshRecord
from lakequeue.state import Batch, DictStore, Home, Limits
from lakequeue.state.broker import Broker
from lakequeue.state.mesh.bundles import Kept
from lakequeue.state.mesh.topic_routes import hear_routes

from .harness import drain
from .spread import Spread, local


@pytest.fixture
def spread() -> Spread:
    return Spread(
        local("qa", "a", "t/>"), local("qb", "b", "t/x"), local("qc", "c", "t/*", filter="/n > 1")
    )


def test_S5_one_message_enters_queues_of_all_brokers(spread: Spread) -> None:
    one = spread.send("b", "t/x", b'{"n":2}')
    assert spread.ids("qa") == spread.ids("qb") == spread.ids("qc") == [one]
    two = spread.send("a", "t/x", b'{"n":1}')
    assert (spread.ids("qa"), spread.ids("qb"), spread.ids("qc")) == ([one, two], [one, two], [one])
    three = spread.send("b", "t/y", b'{"n":2}')  # where nothing of its own takes it
    assert (spread.ids("qa"), spread.ids("qb")) == ([one, two, three], [one, two])
    assert spread.ids("qc") == [one, three]
    for name in "abc":
        consumer = spread.at[name].consumer(f"q{name}", max_backlog=10)
        drain(consumer)[-1].ack()  # all up to it, by ids that another broker gave
        assert spread.ids(f"q{name}") == []


def test_S5_what_one_broker_refuses_is_stored_by_none(spread: Spread) -> None:
    spread.admin.define(local("full", "c", "t/x", max_spool_messages=1))
    spread.send("a", "t/x", b'{"n":2}')
    with pytest.raises(Rejected) as refused:
        spread.send("a", "t/x", b'{"n":3}')
    assert (refused.value.reason, refused.value.queue) == ("queue_quota", "full")
    assert [len(spread.ids(q)) for q in ("qa", "qb", "qc", "full")] == [1, 1, 1, 1]
    spread.admin.purge("full")
    spread.send("a", "t/x", b'{"n":4}')  # the room that was kept is free again
    assert [len(spread.ids(q)) for q in ("qa", "qb", "qc", "full")] == [2, 2, 2, 1]
    assert spread.admin.describe("full")["counters"]["rejected"] == {"queue_quota": 1}


def test_S4_what_one_broker_discards_the_others_store(spread: Spread) -> None:
    keys = {"max_spool_messages": 1, "reject_msg_to_sender_on_discard": "never"}
    spread.admin.define(local("lossy", "c", "t/x", **keys))
    spread.send("a", "t/x")
    receipt = spread.producer("a").send("t/x", b"{}")
    assert (receipt.discarded, receipt.queue, receipt.reason) == (True, "lossy", "queue_quota")
    assert receipt.message_id == spread.ids("qb")[-1]
    assert [len(spread.ids(q)) for q in ("qa", "qb", "lossy")] == [2, 2, 1]
    spread.admin.define(local("only", "c", "z", **keys))
    spread.send("a", "z")
    receipt = spread.producer("a").send("z", b"{}")
    assert (receipt.discarded, receipt.message_id) == (True, None)
    assert spread.admin.describe("only")["counters"]["discarded"] == 1


def test_S6_what_all_filters_refuse_has_no_match(spread: Spread) -> None:
    spread.admin.unsubscribe_topic("qa", "t/>")
    with pytest.raises(Rejected, match="no_matching_destination"):
        spread.send("a", "t/y", b'{"n":0}')
    assert spread.ids("qc") == []


def test_Q3_a_queue_by_its_name_and_those_that_listen(spread: Spread) -> None:
    spread.admin.define(local("audit", "c", "orders", ">"))
    spread.admin.define(local("orders", "b"))
    spread.send("a", "orders")  # clients go where it is
    spread.plain("orders")  # plain ones go anywhere, here to a
    spread.plain("orders", partition=16)  # and to c, which has a queue that listens
    assert spread.ids("orders") == spread.ids("audit")
    assert len(spread.ids("orders")) == 3


def test_Q2_captured_topics_of_others(spread: Spread) -> None:
    keys = {"underlying_topic": "or*d.*", "default_publish_target": "ord-1"}
    spread.admin.define(local("pattern", "b", **keys))
    spread.admin.define(local("named", "c", underlying_topic="ord-1"))
    spread.send("a", "ord-1")
    spread.send("a", "pattern")  # goes to its target (Q3)
    spread.plain("pattern", partition=16)
    assert spread.ids("pattern") == spread.ids("named")
    assert len(spread.ids("named")) == 3


def test_a_producer_that_does_not_count(spread: Spread) -> None:
    for n in range(5):
        spread.plain("t/x", b'{"n":%d}' % (n + 2), partition=n * 5)
    assert spread.ids("qa") == spread.ids("qb") == spread.ids("qc")
    assert spread.bodies("qb") == [b'{"n":%d}' % (n + 2) for n in range(5)]


def test_a_subscription_that_ends_after_the_vote_still_gets_it(spread: Spread) -> None:
    spread.engine.cut("c")
    sent = spread.start("a", "t/x", b'{"n":2}')
    spread.admin.unsubscribe_topic("qb", "t/x")
    spread.engine.mend("c")
    assert spread.ids("qb") == [sent.result(0).message_id]  # S7


def test_S7_a_queue_that_is_deleted_after_the_vote_gets_nothing(spread: Spread) -> None:
    spread.engine.cut("c")
    sent = spread.start("a", "t/x", b'{"n":2}')
    spread.admin.delete("qb")
    spread.admin.delete("qa")
    spread.engine.mend("c")
    assert spread.ids("qc") == [sent.result(0).message_id]


def test_nothing_that_comes_meanwhile_takes_the_room(spread: Spread) -> None:
    spread.admin.define(local("small", "b", "t/x", max_spool_messages=1))
    spread.engine.cut("c")
    sent = spread.start("a", "t/x", b'{"n":2}')
    with pytest.raises(Rejected, match="queue_quota"):
        spread.send("b", "small")
    spread.engine.mend("c")
    assert spread.ids("small") == [sent.result(0).message_id]


def test_P1_what_is_sent_again_while_it_is_undecided_is_stored_once(spread: Spread) -> None:
    spread.engine.cut("b")
    sent = spread.start("a", "t/x", b'{"n":2}')
    spread.engine.advance("10s")
    assert not sent.done()
    spread.producer("a")._ways[0].unanswered.retransmit(1e9)
    spread.engine.mend("b")
    assert spread.ids("qa") == spread.ids("qb") == [sent.result(0).message_id]


def test_a_producer_keeps_its_order_and_others_do_not_wait(spread: Spread) -> None:
    spread.admin.define(local("la", "a"))
    spread.engine.cut("b")
    held = [spread.start("a", "t/x", b'{"n":1}'), spread.start("a", "t/y/z", b'{"n":2}')]
    spread.send("a", "la")  # meets nothing that is held
    other = spread.at["a"].producer(producer_id="other")
    other.send("t/y/z", b'{"n":3}')
    assert [sent.done() for sent in held] == [False, False]
    peers = spread.admin.usage()["brokers"]["a"]["broker"]["peers"]
    assert [peer["undecided"] for peer in peers] == [1, 0]
    spread.engine.mend("b")
    assert spread.bodies("qa") == [b'{"n":3}', b'{"n":1}', b'{"n":2}']
    assert held[0].result(0).message_id < held[1].result(0).message_id


def test_a_broker_that_is_away_for_long_bounds_what_waits() -> None:
    limits = Limits(offer_rows=3)
    spread = Spread(local("qa", "a", "t/>"), local("qb", "b", "t/x"), limits=limits)
    spread.engine.cut("b")
    held = [spread.start("a", "t/x") for _ in range(3)]
    with pytest.raises(Rejected, match=r"awaiting_brokers.*'b'"):
        spread.send("a", "t/x")
    spread.at["a"].producer(producer_id="other").send("t/y", b"{}")  # what b does not take
    spread.engine.advance("1h")
    spread.engine.mend("b")
    assert spread.ids("qb") == [sent.result(0).message_id for sent in held]
    assert len(spread.ids("qa")) == 4


def test_H1_where_a_bridge_leads_nothing_comes_twice(spread: Spread) -> None:
    spread.admin.bridge({"name": "ab", "from": "a", "to": "b", "subscriptions": ["t/x"]})
    spread.admin.bridge({"name": "bc", "from": "b", "to": "c", "subscriptions": ["t/>"]})
    spread.send("a", "t/x", b'{"n":2}')  # over both bridges
    spread.send("a", "t/y", b'{"n":3}')  # at once
    spread.send("c", "t/x", b'{"n":4}')
    assert spread.bodies("qa") == [b'{"n":2}', b'{"n":3}', b'{"n":4}']
    assert sorted(spread.bodies("qb")) == [b'{"n":2}', b'{"n":4}']
    assert sorted(spread.bodies("qc")) == [b'{"n":2}', b'{"n":3}', b'{"n":4}']
    spread.admin.delete_bridge("ab")
    spread.send("a", "t/x", b'{"n":5}')
    assert spread.bodies("qb")[-1] == b'{"n":5}'
    assert spread.bodies("qc").count(b'{"n":5}') == 1  # b did not take it in


@pytest.mark.parametrize("kind", ["Queue", "GroupLocalQueue"])
def test_Q5_a_distributed_queue_takes_it_once(spread: Spread, kind: str) -> None:
    owner = {"initial_owner": "c"} if kind == "GroupLocalQueue" else {}
    group = {"name": "some", "type": kind, "message_type": "json", "subscriptions": ["t/x"],
             "max_per_subscription_backlog": 100}  # fmt: skip
    spread.admin.define(group | {"group": ["b", "c"]} | owner)
    spread.admin.define(group | {"name": "all", "type": "Queue"})
    sent = spread.send("a", "t/x"), spread.send("b", "t/x")
    for name in ("some", "all"):
        consumer = spread.at["b"].consumer(name, max_backlog=10, ack_mode="individual")
        got = drain(consumer)
        assert sorted(m.id for m in got) == sorted(sent)
        for message in got:
            message.ack()
        assert spread.admin.describe(name)["depth"] == 0


def test_what_one_broker_takes_is_said_to_nobody(spread: Spread) -> None:
    spread.admin.define(local("la", "a", "l/>"))
    before = spread.said()
    spread.send("a", "la")
    spread.send("a", "l/1")
    assert spread.said() == before


def test_a_queue_that_moves_between_offer_and_verdict(spread: Spread) -> None:
    spread.engine.cut("c")
    sent = spread.start("a", "t/x", b'{"n":2}')
    move = c.encode_command(c.MoveQueue(queue="qb", broker="a"))
    spread.engine.command("default.commands", b"", move)
    assert not sent.done()
    late = spread.start("a", "t/x", b'{"n":3}')
    spread.engine.mend("c")
    time.sleep(PAUSE_S * 2)  # the client asks again
    spread.engine.advance("1s")
    assert spread.ids("qb") == [sent.result(0).message_id, late.result(0).message_id]
    assert [q["broker"] for q in spread.admin.queues() if q["name"] == "qb"] == ["a"]


def test_a_broker_that_is_of_the_home_no_more_is_not_waited_for(spread: Spread) -> None:
    spread.engine.cut("b")
    sent = spread.start("a", "t/x", b'{"n":2}')
    left = c.encode_command(c.Peers(brokers={"a": 0, "c": 2}))
    spread.engine.instruct("default", left, "a")
    assert spread.ids("qa") == spread.ids("qc") == [sent.result(0).message_id]


def test_an_offer_that_fails_is_refused_and_says_so(spread: Spread) -> None:
    spread.send("a", "t/x", b'{"n":2}')
    with patch.object(Kept, "add", side_effect=[None, RuntimeError("broken"), None, None]):
        sent = spread.start("a", "t/x", b'{"n":3}')
    with pytest.raises(Rejected, match="malformed"):
        sent.result(0)
    assert {e["event"] for e in spread.events("mesh_refused")} == {"mesh_refused"}
    spread.send("a", "t/x", b'{"n":4}')
    assert spread.bodies("qa") == spread.bodies("qc") == [b'{"n":2}', b'{"n":4}']


@pytest.mark.parametrize(
    ("kind", "pattern", "routes"),
    [
        (2, "(", [-1]),
        (1, "a//*", [-1]),
        (1, "a", [-1]),
        (0, "a", [-2 - (1 << 16)]),
        (0, "a", [(1 << 16) + (1 << 45)]),
    ],
)
def test_what_is_no_route_is_refused(kind: int, pattern: str, routes: list[int]) -> None:
    broker = Broker.load(DictStore(), Home(), 0, Limits())
    good = TopicRoutes("default", [0, kind], ["x", pattern], [[-1], routes])
    with pytest.raises(ValueError, match=r"topic: |routes: |regular"):
        hear_routes(broker, 1, good)
    assert broker.header.away == {}


def test_large_messages_are_offered_one_by_one(spread: Spread) -> None:
    body = b'{"n":2,"x":"%s"}' % (b"x" * 300_000)
    for _ in range(3):
        spread.start("a", "t/x", body)
    spread.producer("a").flush(timeout=1)
    assert spread.ids("qa") == spread.ids("qb") == spread.ids("qc")
    assert len(spread.ids("qa")) == 3
    records = Records(
        ["default.publish"] * 3, [0] * 3, [10, 11, 12], [0] * 3, [None] * 3, [body] * 3,
        [b'{"to":"t/x"}'] * 3, [None] * 3,
    )  # fmt: skip
    outputs = spread.engine.brokers[0].take(Batch(publishes=records), spread.engine.now)
    offers = [o.body for o in outputs if isinstance(o, MeshRecord) and o.to == "b"]
    assert [len(offer.payloads) for offer in offers] == [1, 1, 1]
