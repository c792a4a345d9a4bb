"""X1 to X3, X5 and a part of X4. See also scenarios/expiry_and_spool.txt."""

import contextlib
import datetime as dt
from typing import Any

import pytest
from lakequeue.protocol.errors import ConfigError, LeaseLost
from rules.harness import Bench, drain, ids

QUEUE_MS, SHORT_MS, LONG_MS = 5000, 2000, 9000


def lives_ms(bench: Bench, ttl: int | None, **keys: Any) -> int | None:
    """How long a message stays; None where it does not expire."""
    bench.define(**keys)
    bench.send(ttl=None if ttl is None else f"{ttl}ms")
    passed = 0
    for moment in (SHORT_MS, QUEUE_MS, LONG_MS):
        bench.advance(f"{moment - 1 - passed}ms")
        assert bench.seen()["depth"] == 1, f"it was gone before {moment} ms"
        bench.advance("1ms")
        passed = moment
        if bench.seen()["depth"] == 0:
            assert bench.seen()["expired"] == 1
            return moment
    bench.advance("1h")
    return None if bench.seen()["depth"] == 1 else -1


@pytest.mark.parametrize(
    ("model", "queue", "ttl", "expected"),
    [
        ("queue", QUEUE_MS, None, QUEUE_MS),
        ("queue", QUEUE_MS, SHORT_MS, QUEUE_MS),
        ("queue", QUEUE_MS, LONG_MS, QUEUE_MS),
        ("queue", None, SHORT_MS, None),
        ("queue", None, None, None),
        ("latest", QUEUE_MS, None, None),
        ("latest", QUEUE_MS, SHORT_MS, QUEUE_MS),
        ("latest", QUEUE_MS, LONG_MS, LONG_MS),
        ("latest", None, SHORT_MS, None),
        ("latest", None, None, None),
        ("earliest", QUEUE_MS, None, QUEUE_MS),
        ("earliest", QUEUE_MS, SHORT_MS, SHORT_MS),
        ("earliest", QUEUE_MS, LONG_MS, QUEUE_MS),
        ("earliest", None, SHORT_MS, SHORT_MS),
        ("earliest", None, None, None),
        ("default", QUEUE_MS, None, QUEUE_MS),
        ("default", QUEUE_MS, SHORT_MS, SHORT_MS),
        ("default", QUEUE_MS, LONG_MS, LONG_MS),
        ("default", None, SHORT_MS, SHORT_MS),
        ("default", None, None, None),
        (None, QUEUE_MS, LONG_MS, LONG_MS),
    ],
)
def test_X2_to_the_millisecond(
    empty: Bench, model: str | None, queue: int | None, ttl: int | None, expected: int | None
) -> None:
    keys: dict[str, Any] = {} if model is None else {"expiration_model": model}
    if queue is not None:
        keys["expiration"] = f"{queue}ms"
    assert lives_ms(empty, ttl, **keys) == expected


def test_X1_a_producers_default_ttl(bench: Bench) -> None:
    producer = bench.connection.producer(ttl="1s")
    producer.send("orders", b"{}")
    kept = producer.send("orders", b"{}", ttl="1h").message_id
    bench.advance("1s")
    assert ids(bench.admin.browse("orders")) == [kept]


def test_X1_the_consumer_is_told(bench: Bench) -> None:
    consumer = bench.consumer()
    bench.send(ttl="8s")
    bench.send()
    first, second = drain(consumer)
    if not hasattr(first, "expires_at"):
        pytest.skip("the naive model does not say it")
    assert first.expires_at - bench.connection.now() == dt.timedelta(seconds=8)
    assert second.expires_at is None


def test_X1_an_unknown_model_is_refused(empty: Bench) -> None:
    with pytest.raises(ConfigError):
        empty.define(expiration_model="soonest")


def test_X1_the_front_expires_and_the_next_is_delivered(bench: Bench) -> None:
    """Nobody is connected while the first expires; who comes later gets the second."""
    bench.send({"n": 1}, ttl="1s")
    kept = bench.send({"n": 2})
    bench.advance("1s")
    assert ids(drain(bench.consumer())) == [kept]


def test_X1_many_deadlines_out_of_order(bench: Bench) -> None:
    lives = [(n * 37) % 50 + 1 for n in range(50)]
    sent = [bench.send({"n": n}, ttl=f"{life}s") for n, life in enumerate(lives)]
    for moment in range(1, 52):
        left = [i for i, life in zip(sent, lives, strict=True) if life >= moment]
        assert ids(bench.admin.browse("orders")) == left
        bench.advance("1s")
    assert bench.seen()["expired"] == 50


def test_X3_the_holder_gets_no_notice(bench: Bench) -> None:
    consumer = bench.consumer()
    bench.send(ttl="1s")
    message = consumer.receive(timeout=0)
    bench.advance("1s")
    assert drain(consumer) == []
    with contextlib.suppress(LeaseLost):
        message.ack()
    with contextlib.suppress(LeaseLost):
        consumer.ack(ids=[message.id])
    seen = bench.seen()
    assert (seen["expired"], seen["acknowledged"], seen["depth"]) == (1, 0, 0)


def test_X3_a_late_ack_is_no_deferred_ack(bench: Bench) -> None:
    consumer = bench.consumer()
    message_id = bench.send(ttl="1s")
    bench.advance("1s")
    with contextlib.suppress(LeaseLost):
        consumer.ack(ids=[message_id])
    assert "deferred_ack" not in bench.events()


def test_X3_a_late_cancel_has_no_effect(bench: Bench) -> None:
    consumer = bench.consumer()
    bench.send(ttl="1s")
    message = consumer.receive(timeout=0)
    bench.advance("1s")
    with contextlib.suppress(LeaseLost):
        message.cancel()
    seen = bench.seen()
    assert (seen["depth"], seen["canceled"], seen["expired"]) == (0, 0, 1)


def test_X5_id_payload_and_headers_are_kept(empty: Bench) -> None:
    empty.define("dead", max_per_subscription_backlog=9)
    empty.define(dead_message_queue="dead")
    sent = empty.send(b'{"n": 1}', headers={"k": "v"}, ttl="1s")
    empty.advance("1s")
    (message,) = drain(empty.consumer("dead"))
    assert message.id == sent
    assert message.payload == b'{"n": 1}'
    assert message.headers["k"] in ("v", b"v")
    assert {k for k in message.headers if k.startswith("lq-dead-")} >= {
        "lq-dead-reason",
        "lq-dead-queue",
        "lq-dead-deliveries",
    }


def test_X5_the_dead_are_acknowledged_like_any_other(empty: Bench) -> None:
    empty.define("dead")
    empty.define(dead_message_queue="dead")
    consumer = empty.consumer("dead")
    empty.send(ttl="1s")
    empty.advance("1s")
    consumer.receive(timeout=0).ack()
    seen = empty.seen("dead")
    assert (seen["depth"], seen["acknowledged"], seen["spooled"]) == (0, 1, 1)


def test_X5_order_of_arrival_in_the_dead_message_queue(empty: Bench) -> None:
    empty.define("dead", max_per_subscription_backlog=9)
    empty.define(dead_message_queue="dead")
    lives = {empty.send(ttl=f"{life}s"): life for life in (3, 1, 2)}
    empty.advance("5s")
    assert ids(drain(empty.consumer("dead"))) == sorted(lives, key=lives.__getitem__)


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


def test_X5_a_deleted_dead_message_queue_discards(empty: Bench) -> None:
    empty.define("dead")
    empty.define(dead_message_queue="dead")
    empty.send(ttl="1s")
    empty.admin.delete("dead")
    empty.advance("1s")
    seen = empty.seen()
    assert (seen["expired"], seen["dead_lettered"], seen["discarded"]) == (1, 0, 1)


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
