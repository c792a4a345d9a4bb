"""X1 to X3, X5 and a part of X4. See also scenarios/expiry_and_spool.txt."""

import datetime as dt

import pytest
from rules.harness import Bench, drain


def test_X1_the_consumer_is_told(bench: Bench) -> None:
    consumer = bench.consumer()
    bench.send(ttl="8s")
    bench.send()
    first, second = drain(consumer)
    assert first.expires_at - bench.connection.now() == dt.timedelta(seconds=8)
    assert second.expires_at is None


def test_X5_each_is_journaled(empty: Bench) -> None:
    empty.define("dead")
    empty.define(dead_message_queue="dead")
    empty.send(ttl="1s")
    empty.advance("1s")
    assert empty.events().count("expired") == 1
    assert empty.events().count("dead_lettered") == 1
    (expired,) = [e for e in empty.engine.journal() if e["event"] == "expired"]
    assert str(expired["message_id"]) == "1"
    assert str(expired["reason"]) == "expired"


@pytest.mark.parametrize("spent_ms", [0, 2000, 7999])
def test_X4_time_spent_before_the_record_is_read_counts(empty: Bench, spent_ms: int) -> None:
    """A TTL of 8 s of which 2 s are over leaves 6 s: it starts at publish."""
    empty.define()
    now = empty.connection.now_ms()
    header = {"lq": b'{"to": "orders", "ttl_ms": 8000}'}
    empty.connection.publish_raw("default.publish", b"{}", headers=header, timestamp=now - spent_ms)
    empty.advance(f"{7999 - spent_ms}ms")
    assert empty.seen()["depth"] == 1
    empty.advance("1ms")
    assert (empty.seen()["depth"], empty.seen()["expired"]) == (0, 1)


def test_X4_a_ttl_that_is_spent_on_arrival_is_dead_at_once(empty: Bench) -> None:
    empty.define("dead")
    empty.define(dead_message_queue="dead")
    consumer = empty.consumer()
    header = {"lq": b'{"to": "orders", "ttl_ms": 1000}'}
    earlier = empty.connection.now_ms() - 1000
    empty.connection.publish_raw("default.publish", b"{}", headers=header, timestamp=earlier)
    assert drain(consumer) == []
    assert (empty.seen()["expired"], empty.seen("dead")["depth"]) == (1, 1)


def test_X4_the_queues_expiration_counts_from_entering_it(empty: Bench) -> None:
    empty.define(expiration="8s")
    earlier = empty.connection.now_ms() - 7000
    empty.connection.publish_raw("orders", b"{}", timestamp=earlier)
    empty.advance("7999ms")
    assert empty.seen()["depth"] == 1
    empty.advance("1ms")
    assert empty.seen()["depth"] == 0
