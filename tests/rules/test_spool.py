"""S1, S2, S3, S5, S6, S7 and P1, P4. See also scenarios/expiry_and_spool.txt."""

import pytest
from lakequeue.protocol.errors import Rejected
from lakequeue.state.queue.producers import RUNS_MAX, ProducerHistory
from rules.harness import Bench, drain


def test_S1_a_refused_message_takes_no_id(bench: Bench) -> None:
    bench.define("small", max_message_size=4)
    bench.send()
    for queue, body in (("small", b"12345"), ("nowhere", b"{}")):
        with pytest.raises(Rejected):
            bench.send(body, queue)
    assert bench.send() == "2"


def test_S3_application_headers_count(empty: Bench) -> None:
    """Q8: payload plus application headers."""
    empty.define(message_type="binary", max_message_size=100)
    with pytest.raises(Rejected):
        empty.send(b"x" * 95, headers={"name": "value"})
    empty.send(b"x" * 80, headers={"name": "value"})


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


def test_P1_also_when_it_is_gone(bench: Bench) -> None:
    consumer = bench.consumer()
    bench.connection.producer(producer_id="p", first_sequence=1).send("orders", b"{}")
    consumer.receive(timeout=0).ack()
    bench.connection.producer(producer_id="p", first_sequence=1).send("orders", b"{}")
    assert drain(consumer) == []
    assert bench.seen()["spooled"] == 1


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


def test_P1_X1_a_retransmission_does_not_renew_the_ttl(bench: Bench) -> None:
    bench.connection.producer(producer_id="p", first_sequence=1).send("orders", b"{}", ttl="2s")
    bench.advance("1s")
    bench.connection.producer(producer_id="p", first_sequence=1).send("orders", b"{}", ttl="2s")
    bench.advance("1s")
    assert (bench.seen()["depth"], bench.seen()["expired"]) == (0, 1)
