"""A broker goes, and a queue of the one that stays lets go at once what comes (M4, S2, S10, L9)."""

from __future__ import annotations

from typing import Any

import pytest
from lakequeue.protocol import commands as c
from lakequeue.protocol.errors import LakequeueError
from mesh.rehomed import RestingEngine
from mesh.test_rehoming import home


def drained(engine: RestingEngine, queue: str) -> list[bytes]:
    found = []
    with engine.connect("a", "reader").consumer(queue, max_backlog=50) as consumer:
        while (message := consumer.receive(timeout=0)) is not None:
            found.append(message.payload)
            message.ack()
    return found


def test_M4_S2_a_content_that_one_queue_lets_go_stays_for_the_others() -> None:
    """It was shared over there, too; the queue that keeps its last message has a later one here."""
    engine = home(
        [
            {"name": "last", "max_spool_usage": 0, "subscriptions": ["t"]},
            {"name": "one", "subscriptions": ["t"]},
            {"name": "two", "subscriptions": ["t"]},
        ]
    )  # fmt: skip
    at = {name: engine.connect(name, name) for name in "ab"}
    at["b"].producer().send("t", b'{"n":1}')
    engine.advance("1s")
    at["a"].producer().send("t", b'{"n":2}')
    engine.change(remove="b")
    engine.check()
    assert drained(engine, "last") == [b'{"n":2}']
    assert sorted(drained(engine, "one")) == [b'{"n":1}', b'{"n":2}']
    assert sorted(drained(engine, "two")) == [b'{"n":1}', b'{"n":2}']
    for broker in engine.brokers:
        state: Any = broker._replica.broker
        assert (state.spool.messages, state.spool.bytes) == (0, 0)


def test_M4_S10_what_waited_for_a_queue_that_keeps_its_last_message_is_one() -> None:
    one = {
        "name": "last",
        "type": "LocalQueue",
        "broker": "a",
        "max_spool_usage": 0,
        "subscriptions": ["t"],
    }
    engine = home([one | {"reject_msg_to_sender_on_discard": "including-when-shutdown"}])
    at = {name: engine.connect(name, name) for name in "ab"}
    engine.cut("a")
    for n in range(3):
        at["b"].producer().send("t", b'{"n":%d}' % n)
    shut = c.Shutdown(queue="last", ingress=True, egress=False)
    at["a"].ask(shut, lambda answer: None)
    engine.mend("a")
    engine.advance("1s")
    assert at["b"].admin().usage()["lanes"][0]["waiting"] == 3
    engine.change(remove="b")
    assert at["a"].admin().usage()["lanes"][0]["waiting"] == 3  # it is still shut down
    at["a"].admin().shutdown("last")
    engine.advance("2s")
    assert at["a"].admin().describe("last")["depth"] == 1
    assert drained(engine, "last") == [b'{"n":2}']


def test_M4_Q9_S10_a_quota_that_a_broker_refused_is_not_forced_on_it_at_rest() -> None:
    """It stores two messages."""
    engine = home([{"name": "q", "max_per_subscription_backlog": 10}])
    at = {name: engine.connect(name, name) for name in "ab"}
    for n in range(2):
        at["b"].producer().send("q", b"%d" % n)
    with pytest.raises(LakequeueError, match=r"broker 'b' refuses.*the last message, but 2 are"):
        at["a"].admin().define({"name": "q", "max_spool_usage": 0})
    engine.change(add="c")
    engine.check()
    at["b"].producer().send("q", b"2")
    assert at["a"].admin().describe("q")["brokers"]["b"]["depth"] == 3
    assert drained(engine, "q") == [b"0", b"1", b"2"]
