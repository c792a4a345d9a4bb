"""X1, X4. See also scenarios/expiry_and_spool.txt and scenarios/engine/leases.txt."""

import datetime as dt
import json

import pytest
from rules.harness import Bench, drain


def sent_earlier(bench: Bench, ms: int, ttl_ms: int) -> None:
    """A message whose record is read only now."""
    header = {"lq": json.dumps({"to": "orders", "ttl_ms": ttl_ms}).encode()}
    at = bench.connection.now_ms() - ms
    bench.plain("default.publish", b"{}", headers=header, timestamp=at)


def test_X1_the_consumer_is_told(bench: Bench) -> None:
    consumer = bench.consumer()
    bench.send(ttl="8s")
    bench.send()
    first, second = drain(consumer)
    assert first.expires_at - bench.connection.now() == dt.timedelta(seconds=8)
    assert second.expires_at is None


@pytest.mark.parametrize("spent_ms", [0, 2000, 7999])
def test_X4_time_spent_before_the_record_is_read_counts(bench: Bench, spent_ms: int) -> None:
    """The TTL starts at publish: of 8 s, after 2 s, 6 s are left."""
    sent_earlier(bench, spent_ms, ttl_ms=8000)
    bench.advance(f"{7999 - spent_ms}ms")
    assert bench.seen()["depth"] == 1
    bench.advance("1ms")
    assert (bench.seen()["depth"], bench.seen()["expired"]) == (0, 1)


def test_X4_a_message_with_a_spent_ttl_is_dead_on_arrival(empty: Bench) -> None:
    empty.define("dead")
    empty.define(dead_message_queue="dead")
    consumer = empty.consumer()
    sent_earlier(empty, 1000, ttl_ms=1000)
    assert drain(consumer) == []
    assert (empty.seen()["expired"], empty.seen("dead")["depth"]) == (1, 1)


def test_X4_the_queues_expiration_counts_from_entering_it(empty: Bench) -> None:
    empty.define(expiration="8s")
    empty.plain("orders", b"{}", timestamp=empty.connection.now_ms() - 7000)
    empty.advance("7999ms")
    assert empty.seen()["depth"] == 1
    empty.advance("1ms")
    assert empty.seen()["depth"] == 0
