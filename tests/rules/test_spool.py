"""S3, P1, P4. See also scenarios/expiry_and_spool.txt and scenarios/engine/leases.txt."""

from lakequeue.state.queue.producers import RUNS_MAX, ProducerHistory
from rules.harness import Bench, drain


def again(bench: Bench, *bodies: bytes, **options: str) -> list[str]:
    """The ids of messages that one producer repeats from its first sequence on, as after a
    crash."""
    producer = bench.connection.producer(producer_id="p", first_sequence=1)
    return [producer.send("orders", one, **options).message_id for one in bodies]


def test_S3_application_headers_count(empty: Bench) -> None:
    """Q8: payload plus application headers."""
    empty.define(message_type="binary", max_message_size=100)
    assert empty.refused(b"x" * 95, headers={"name": "value"}) == "message_too_large"
    empty.send(b"x" * 80, headers={"name": "value"})


def test_P1_a_retransmitted_message_is_stored_once(bench: Bench) -> None:
    sent = again(bench, b"1", b"2", b"3")
    assert again(bench, b"1", b"2", b"3", b"4") == [*sent, "4"]
    assert (bench.seen()["depth"], bench.seen()["spooled"]) == (4, 4)


def test_P1_a_retransmission_of_an_acknowledged_message_is_not_stored(bench: Bench) -> None:
    consumer = bench.consumer()
    again(bench, b"{}")
    consumer.receive(timeout=0).ack()
    again(bench, b"{}")
    assert drain(consumer) == []
    assert bench.seen()["spooled"] == 1


def test_P1_a_nacked_message_may_be_sent_again(empty: Bench) -> None:
    """It was not stored, so the second attempt is no duplicate."""
    empty.define(message_type="binary", max_spool_usage=4)
    consumer = empty.consumer()
    empty.send(b"full")
    assert empty.refused(b"more") == "queue_quota"
    consumer.receive(timeout=0).ack()
    again(empty, b"more")
    assert empty.seen()["depth"] == 1


def test_P1_X1_a_retransmission_does_not_renew_the_ttl(bench: Bench) -> None:
    again(bench, b"{}", ttl="2s")
    bench.advance("1s")
    again(bench, b"{}", ttl="2s")
    bench.advance("1s")
    assert (bench.seen()["depth"], bench.seen()["expired"]) == (0, 1)


def test_P4_ack_immediately_confirms_a_message_at_once(bench: Bench) -> None:
    receipt = bench.producer.send("orders", b"{}", ack_immediately=True)
    assert receipt.message_id == "1"
    assert list(bench.producer.unacknowledged()) == []


def stored(*ids: tuple[int, int]) -> ProducerHistory:
    """A producer's history with these sequences and message ids."""
    producer = ProducerHistory("default", 0, "p")
    producer.begin()
    for seq, number in ids:
        assert producer.is_new(seq)
        producer.take(seq)
        producer.stored(seq, number)
    producer.close()
    return producer


def told_again(producer: ProducerHistory, seq: int) -> list[list[int]]:
    producer.begin()
    assert not producer.is_new(seq)
    producer.repeat(seq)
    runs: list[list[int]] = producer.close()[0].runs
    return runs


def test_P1_a_repeated_sequence_is_answered_with_its_id_even_if_it_came_late() -> None:
    """Sequence 1 was lost at first and came after 2 and 3: its range is not the first."""
    producer = stored((2, 10), (3, 11), (1, 12))
    assert sorted(told_again(producer, 1)) == [[1, 1, 12], [2, 2, 10]]


def test_P1_sequences_no_longer_remembered_are_answered_as_a_range() -> None:
    """A producer that repeats everything gets receipts for all stored messages, without the gaps.
    Otherwise each message would wait for a retransmission of its own."""
    numbers = [seq for seq in range(1, 31 + RUNS_MAX) if seq != 11]
    producer = stored(*((seq, 1000 - 2 * seq) for seq in numbers))  # each a range of its own
    for seq, told in ((1, [1, 10, 0]), (20, [20, 11, 0])):
        runs = told_again(producer, seq)
        assert (runs[0], len(runs)) == (told, 1 + RUNS_MAX)
