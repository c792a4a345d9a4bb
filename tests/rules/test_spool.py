"""S1, S2, S3, S5, S6, S7 and P1, P4. See also scenarios/expiry_and_spool.txt."""

import itertools

import pytest
from lakequeue.protocol.errors import Rejected
from lakequeue.state.queue.producers import RUNS_MAX, ProducerHistory
from rules.harness import Bench, drain, ids


def test_S1_ids_count_up_from_one(bench: Bench) -> None:
    assert [bench.send() for _ in range(3)] == ["1", "2", "3"]


def test_S1_a_refused_message_takes_no_id(bench: Bench) -> None:
    bench.define("small", max_message_size=4)
    bench.send()
    for queue, body in (("small", b"12345"), ("nowhere", b"{}")):
        with pytest.raises(Rejected):
            bench.send(body, queue)
    assert bench.send() == "2"


def test_S1_survives_a_restart(bench: Bench) -> None:
    sent = [bench.send({"n": n}) for n in range(5)]
    bench.engine.restart()
    assert ids(drain(bench.consumer())) == sent
    assert bench.send() == "6"


def test_S1_leases_and_counts_survive_a_restart(empty: Bench) -> None:
    empty.define(lease_period="10s", max_per_subscription_backlog=9)
    consumer = empty.consumer(backlog=2)
    for n in range(3):
        empty.send({"n": n})
    empty.advance("1s")
    before = empty.seen()
    empty.engine.restart()
    after = empty.seen()
    assert {k: after[k] for k in ("leased", "ready", "spooled", "delivered")} == {
        k: before[k] for k in ("leased", "ready", "spooled", "delivered")
    }
    assert ids(drain(consumer)) == ["1", "2"]
    empty.advance("9s")
    assert [m.delivery_count for m in drain(consumer)] == [2, 2]


def test_S2_each_queue_has_its_own_match(empty: Bench) -> None:
    empty.define("one", underlying_topic="topic")
    empty.define("two", underlying_topic="topic")
    first, second = empty.consumer("one"), empty.consumer("two")
    message_id = empty.send(queue="topic")
    (one,), (two,) = drain(first), drain(second)
    assert one.id == two.id == message_id
    one.ack()
    assert empty.seen("one")["depth"] == 0
    assert empty.seen("two")["depth"] == 1
    two.ack()
    assert empty.seen("two")["spool_bytes"] == 0


def test_S2_order_of_acks_does_not_matter(empty: Bench) -> None:
    for names in itertools.permutations("abc"):
        topic = "".join(names)
        for name in names:
            empty.define(topic + name, underlying_topic=topic)
        empty.send(queue=topic)
        for number, name in enumerate(names):
            with empty.consumer(topic + name) as consumer:
                consumer.receive(timeout=0).ack()
            depths = [empty.seen(topic + n)["depth"] for n in names]
            assert depths == [0] * (number + 1) + [1] * (2 - number)


@pytest.mark.parametrize(("size", "taken"), [(99, True), (100, True), (101, False)])
def test_S3_the_quota_itself_is_allowed(empty: Bench, size: int, taken: bool) -> None:
    empty.define(message_type="binary", max_spool_usage=100)
    if taken:
        empty.send(b"x" * size)
    else:
        with pytest.raises(Rejected) as caught:
            empty.send(b"x" * size)
        assert str(caught.value.reason) == "queue_quota"
        assert caught.value.queue == "orders"
    assert empty.seen()["spool_bytes"] == size * taken


@pytest.mark.parametrize(("size", "taken"), [(100, True), (101, False)])
def test_S3_the_message_size_itself_is_allowed(empty: Bench, size: int, taken: bool) -> None:
    empty.define(message_type="binary", max_message_size=100)
    if taken:
        empty.send(b"x" * size)
    else:
        with pytest.raises(Rejected) as caught:
            empty.send(b"x" * size)
        assert str(caught.value.reason) == "message_too_large"
    assert empty.seen()["depth"] == int(taken)


def test_S3_application_headers_count(empty: Bench) -> None:
    """Q8: payload plus application headers."""
    empty.define(message_type="binary", max_message_size=100)
    with pytest.raises(Rejected):
        empty.send(b"x" * 95, headers={"name": "value"})
    empty.send(b"x" * 80, headers={"name": "value"})


@pytest.mark.parametrize("way", ["ack", "expiry", "cancel"])
def test_S3_what_leaves_makes_room(empty: Bench, way: str) -> None:
    empty.define(message_type="binary", max_spool_usage=10, max_cancels=1, expiration="1m")
    consumer = empty.consumer()
    for _ in range(5):
        empty.send(b"x" * 10)
        with pytest.raises(Rejected):
            empty.send(b"x")
        (message,) = drain(consumer)
        if way == "expiry":
            empty.advance("1m")
        else:
            getattr(message, way)()
        assert empty.seen()["spool_bytes"] == 0


def test_S3_leased_and_delayed_messages_take_room(empty: Bench) -> None:
    empty.define(message_type="binary", max_spool_usage=10)
    consumer = empty.consumer()
    empty.send(b"x" * 10)
    consumer.receive(timeout=0).cancel(delay="1m")
    with pytest.raises(Rejected):
        empty.send(b"x")


def test_S3_units(empty: Bench) -> None:
    """Q8: KB is a power of ten, KiB of two."""
    empty.define("ten", message_type="binary", max_message_size="1KB")
    empty.define("two", message_type="binary", max_message_size="1KiB")
    empty.send(b"x" * 1024, "two")
    empty.send(b"x" * 1000, "ten")
    with pytest.raises(Rejected):
        empty.send(b"x" * 1001, "ten")


def test_S5_one_that_refuses_refuses_for_all(empty: Bench) -> None:
    empty.define("large", underlying_topic="topic", message_type="binary")
    empty.define("small", underlying_topic="topic", message_type="binary", max_message_size=4)
    consumer = empty.consumer("large")
    with pytest.raises(Rejected) as caught:
        empty.send(b"12345", "topic")
    assert caught.value.queue == "small"
    assert drain(consumer) == []
    assert empty.seen("large")["depth"] == 0
    assert empty.seen("large")["spooled"] == 0
    empty.send(b"1234", "topic")
    assert empty.seen("large")["depth"] == empty.seen("small")["depth"] == 1


def test_S6_nacked_by_default(bench: Bench) -> None:
    with pytest.raises(Rejected) as caught:
        bench.send(queue="nowhere")
    assert str(caught.value.reason) == "no_matching_destination"


def test_S7_a_deleted_queue(bench: Bench) -> None:
    bench.send()
    bench.admin.delete("orders")
    assert "orders" not in [q if isinstance(q, str) else q["name"] for q in bench.admin.queues()]
    with pytest.raises(Rejected):
        bench.send()


def test_S7_the_other_matches_stay(empty: Bench) -> None:
    empty.define("one", underlying_topic="topic")
    empty.define("two", underlying_topic="topic")
    sent = empty.send(queue="topic")
    empty.admin.delete("one")
    assert ids(drain(empty.consumer("two"))) == [sent]


def test_S7_a_queue_defined_anew_begins_anew(bench: Bench) -> None:
    bench.send()
    bench.admin.delete("orders")
    bench.define()
    seen = bench.seen()
    assert (seen["depth"], seen["spooled"]) == (0, 0)


def test_P1_a_retransmitted_message_is_stored_once(bench: Bench) -> None:
    first = bench.connection.producer(producer_id="p", first_sequence=1)
    sent = [first.send("orders", b'{"n": %d}' % n).message_id for n in range(3)]
    again = bench.connection.producer(producer_id="p", first_sequence=1)
    receipts = [again.send("orders", b'{"n": %d}' % n).message_id for n in range(3)]
    assert receipts == sent
    assert bench.seen()["depth"] == 3
    assert bench.seen()["spooled"] == 3
    again.send("orders", b'{"n": 3}')
    assert bench.seen()["depth"] == 4


def test_P1_also_after_a_restart(bench: Bench) -> None:
    bench.connection.producer(producer_id="p", first_sequence=1).send("orders", b"{}")
    bench.engine.restart()
    bench.connection.producer(producer_id="p", first_sequence=1).send("orders", b"{}")
    assert bench.seen()["spooled"] == 1


def test_P1_also_when_it_is_gone(bench: Bench) -> None:
    consumer = bench.consumer()
    bench.connection.producer(producer_id="p", first_sequence=1).send("orders", b"{}")
    consumer.receive(timeout=0).ack()
    bench.connection.producer(producer_id="p", first_sequence=1).send("orders", b"{}")
    assert drain(consumer) == []
    assert bench.seen()["spooled"] == 1


def test_P1_other_producers_are_other_messages(bench: Bench) -> None:
    for name in ("p", "q"):
        bench.connection.producer(producer_id=name, first_sequence=1).send("orders", b"{}")
    for _ in range(2):
        bench.connection.producer().send("orders", b"{}")
    assert bench.seen()["depth"] == 4


def test_P1_a_nacked_message_may_be_sent_again(empty: Bench) -> None:
    """It was not stored, so the second try is no duplicate."""
    empty.define(message_type="binary", max_spool_usage=4)
    consumer = empty.consumer()
    empty.send(b"full")
    with pytest.raises(Rejected):
        empty.connection.producer(producer_id="p", first_sequence=1).send("orders", b"more")
    consumer.receive(timeout=0).ack()
    empty.connection.producer(producer_id="p", first_sequence=1).send("orders", b"more")
    assert empty.seen()["depth"] == 1


def test_P4_at_once(bench: Bench) -> None:
    receipt = bench.producer.send("orders", b"{}", ack_immediately=True)
    assert receipt.message_id == "1"
    assert list(bench.producer.unacknowledged()) == []


def test_P1_a_repeated_sequence_is_answered_with_its_id_also_if_it_came_late() -> None:
    """Sequence 1 was lost at first and came after 2 and 3: its run is not the first."""
    producer = ProducerHistory("default", 0, "p")
    producer.begin()
    for seq, number in ((2, 10), (3, 11), (1, 12)):
        assert producer.is_new(seq)
        producer.take(seq)
        producer.stored(seq, number)
    producer.close()
    producer.begin()
    assert not producer.is_new(1)
    producer.repeat(1)
    assert sorted(producer.close()[0].runs) == [[1, 1, 12], [2, 2, 10]]


def test_P1_what_is_no_longer_remembered_is_answered_as_a_whole() -> None:
    """Who sends all of it again is told of all that is stored, but for what is missing between, or
    each of its messages would wait for a retransmission of its own."""
    producer = ProducerHistory("default", 0, "p")
    producer.begin()
    missing = 11
    for seq in range(1, 31 + RUNS_MAX):
        if seq != missing:
            assert producer.is_new(seq)
            producer.take(seq)
            producer.stored(seq, 1000 - 2 * seq)  # each a run of its own
    producer.close()
    for seq, told in ((1, [1, 10, 0]), (20, [20, 11, 0])):
        producer.begin()
        assert not producer.is_new(seq)
        producer.repeat(seq)
        runs = producer.close()[0].runs
        assert runs[0] == told
        assert len(runs) == 1 + RUNS_MAX
