"""A queue moves while what brokers say to each other takes its time: whoever looks for it in
between, by name or by topic, finds it, and a producer's messages stay in order (S1, S5, S6, O1,
P1)."""

from __future__ import annotations

import time
from typing import Any

import pytest
from lakequeue.client import following
from lakequeue.definitions import parse_configuration
from lakequeue.protocol import commands as c
from lakequeue.protocol.messages import HEADER

from .slow import SlowEngine
from .spread import BROKERS, local


class Slow:
    """Three brokers; `moving` is on b and goes to c."""

    def __init__(self, *queues: dict[str, Any], **system: Any) -> None:
        config = {
            "brokers": list(BROKERS), "queues": [local("moving", "b"), *queues], "system": system,
        }  # fmt: skip
        self.engine = SlowEngine(parse_configuration(config))
        self.engine.checking = True
        self.at = {name: self.engine.connect(name, f"app-{name}") for name in BROKERS}
        self.admin = self.at["a"].admin()

    def set_out(self, to: str = "c") -> None:
        """The move has begun; the other broker has not heard of it yet."""
        self.engine.slow()
        command = c.encode_command(c.MoveQueue(queue="moving", broker=to))
        self.engine.command("default.commands", b"", command)
        self.engine.let("b", by="a")

    def leave(self) -> None:
        """It has left b, and nobody else knows of that."""
        self.engine.let("c", by="b")
        self.engine.let("b", by="c")
        assert self.engine.journal()[-1]["event"] == "went"

    def publish(self, broker: str, to: str, body: bytes) -> Any:
        future = self.at[broker].producer().send_async(to, body)
        self.engine.let_in()
        return future

    def plain(self, broker: str, to: str, body: bytes) -> None:
        header, partition = [(HEADER, b'{"to":"%s"}' % to.encode())], 8 * BROKERS.index(broker)
        self.engine.publish("default.publish", body, None, header, partition=partition)
        self.engine.let_in()

    def hear(self) -> None:
        """Brokers hear each other; nothing is published, and no client hears anything."""
        for _ in range(20):
            for to in BROKERS:
                for by in BROKERS:
                    self.engine.let(to, by)

    def back(self) -> None:
        """The queue comes to b again."""
        self.hear()
        command = c.encode_command(c.MoveQueue(queue="moving", broker="b"))
        self.engine.command("default.commands", b"", command)
        self.hear()
        assert self.engine.journal()[-1]["event"] == "arrived"

    def bodies(self, queue: str) -> list[bytes]:
        return [m.payload for m in self.admin.browse(queue)]

    def arrives(self) -> None:
        """Everything is heard, and clients ask again."""
        self.engine.haste()
        for _ in range(3):
            for connection in self.at.values():
                connection.attend()


@pytest.mark.parametrize("on_no_match", ["nack", "discard"])
def test_who_looks_where_a_queue_has_just_left_is_sent_after_it(on_no_match: str) -> None:
    slow = Slow(on_no_match=on_no_match)
    slow.set_out()
    slow.leave()
    sent = slow.publish("b", "moving", b"1")
    slow.plain("b", "moving", b"2")
    slow.arrives()
    assert slow.bodies("moving") == [b"2", b"1"]  # who counts asks again, the other is passed on
    assert sent.result(0).message_id


def test_what_other_queues_take_there_too_reaches_it() -> None:
    slow = Slow(local("other", "b", "moving"))
    slow.set_out()
    slow.leave()
    sent = slow.publish("b", "moving", b"1")
    slow.arrives()
    slow.engine.advance("1s")
    assert sent.result(0).message_id
    assert slow.bodies("other") == slow.bodies("moving") == [b"1"]


def test_topics_are_its_all_the_time() -> None:
    """a hears first that b takes nothing any more, and later that c does."""
    slow = Slow(local("other", "a", "t/1", "t/2"))
    slow.admin.subscribe_topic("moving", "t/1")
    slow.set_out()
    slow.admin.subscribe_topic("moving", "t/2")  # b has it, and has announced it with t/1 alone
    slow.engine.let("c", by="b")
    slow.engine.let("b", by="c")
    slow.leave()
    slow.engine.let("a", by="b")
    sent = [slow.publish("a", f"t/{n}", b"%d" % n) for n in (1, 2)]
    slow.arrives()
    slow.engine.advance("1s")
    assert all(future.result(0).message_id for future in sent)
    assert sorted(slow.bodies("moving")) == slow.bodies("other") == [b"1", b"2"]


def test_what_was_sent_before_its_producer_heard_stands_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1 is refused as the queue is away; it is back before 2 is read, and before 1 comes again."""
    monkeypatch.setattr(following, "PAUSE_S", 0)
    slow = Slow()
    slow.set_out()
    slow.leave()
    producer = slow.at["b"].producer()
    first = producer.send_async("moving", b"1")
    slow.engine.let_in()
    second = producer.send_async("moving", b"2")
    slow.back()
    slow.engine.let_in()
    slow.arrives()
    assert slow.bodies("moving") == [b"1", b"2"]
    third = producer.send("moving", b"3").message_id
    browsed = [m.id for m in slow.admin.browse("moving")]
    assert browsed == [first.result(0).message_id, second.result(0).message_id, third]


def test_a_copy_of_what_was_refused_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The producer has sent it again before it heard; it is read when the queue is back (P1)."""
    monkeypatch.setattr(following, "PAUSE_S", 0)
    slow = Slow()
    slow.set_out()
    slow.leave()
    producer = slow.at["b"].producer()
    sent = producer.send_async("moving", b"1")
    slow.engine.let_in()
    producer.retransmit(time.monotonic() + 60)
    slow.back()
    slow.engine.let_in()
    slow.arrives()
    assert [m.id for m in slow.admin.browse("moving")] == [sent.result(0).message_id]


def test_what_was_kept_for_a_broker_that_is_removed_is_given_up() -> None:
    """c offers a message to b, and is gone for good before it decides; b's queue can move then."""
    slow = Slow()
    slow.admin.subscribe_topic("moving", "t/1")
    slow.engine.slow()
    sent = slow.publish("c", "t/1", b"1")
    slow.engine.let("b", by="c")
    slow.engine.broker("c").is_stopped = True
    kept = slow.engine.broker("b").store.pages
    assert [key for key in kept if key.startswith("offered/")] == ["offered/2", "offered/2/1"]
    for name in "ab":
        peers = c.encode_command(c.Peers(brokers={"a": 0, "b": 1}))
        slow.engine.instruct("default", peers, name)
    assert not [key for key in kept if key.startswith("offered/")]
    command = c.encode_command(c.MoveQueue(queue="moving", broker="a"))
    slow.engine.command("default.commands", b"", command)
    slow.hear()
    assert slow.admin.describe("moving")["broker"] == "a"
    assert slow.bodies("moving") == []
    assert not sent.done()


def test_a_queue_does_not_wait_for_what_waits_for_it() -> None:
    """1 is asked again as a queue moves elsewhere, 2 stands behind it in another queue, which is to
    move then: it waits for 2, 2 for 1, and 1 for the queue."""
    slow = Slow(local("other", "c", "t/1"))
    slow.admin.subscribe_topic("moving", "t/1")
    producer = slow.at["c"].producer()
    producer.send("moving", b"0")
    slow.set_out("a")
    slow.engine.let("a", by="b")
    slow.engine.let("b", by="a")  # it leaves, and waits for what it has granted
    sent = [producer.send_async("t/1", b"1")]
    slow.engine.let_in()
    slow.engine.let("b", by="c")
    slow.engine.let("c", by="b")
    sent.append(producer.send_async("other", b"2"))
    slow.engine.let_in()
    command = c.encode_command(c.MoveQueue(queue="other", broker="a"))
    slow.engine.command("default.commands", b"", command)
    for to, by in (("c", "a"), ("a", "c"), ("c", "a")):
        slow.engine.let(to, by)
    slow.arrives()
    for _ in range(3):
        time.sleep(following.PAUSE_S)
        slow.engine.advance("1s")
    assert slow.admin.describe("other")["broker"] == "a"
    assert all(future.done() for future in sent)
    assert slow.bodies("other") == [b"1", b"2"]
    assert slow.bodies("moving") == [b"0", b"1"]


def test_who_looks_at_the_keeper_for_what_left_it_with_plain_records_is_sent_after_it() -> None:
    slow = Slow(local("fed", "a"))
    slow.engine.publish("fed", b"0", None, [])
    slow.engine.slow()
    command = c.encode_command(c.MoveQueue(queue="fed", broker="c"))
    slow.engine.command("default.commands", b"", command)
    for to, by in (("c", "a"), ("a", "c"), ("c", "a"), ("a", "c")):
        if not any(e["event"] == "went" for e in slow.engine.journal()):
            slow.engine.let(to, by)
    assert any(e["event"] == "went" for e in slow.engine.journal())
    slow.plain("a", "fed", b"1")
    slow.arrives()
    assert slow.bodies("fed") == [b"0", b"1"]
