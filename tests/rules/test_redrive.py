"""X6, X5: dead messages go back to where they came from."""

from typing import Any

import lakequeue
import pytest
from lakequeue.protocol.errors import ConfigError
from rules.harness import Bench, drain


def die(bench: Bench, *bodies: Any, queue: str = "orders", **options: Any) -> list[str]:
    """Messages that expire in a queue at once."""
    sent = [bench.send(body, queue, **{"ttl": "1s"} | options) for body in bodies]
    bench.advance("1s")
    return sent


@pytest.fixture
def dead() -> Bench:
    """Queues `orders` and its dead message queue `dmq`."""
    bench = Bench()
    bench.define("dmq", max_per_subscription_backlog=100)
    bench.define(dead_message_queue="dmq", max_per_subscription_backlog=100)
    return bench


def test_X6_a_redriven_message_keeps_id_payload_key_and_headers(dead: Bench) -> None:
    (sent,) = die(dead, {"n": 1}, headers={"k": "v"}, key=b"key", priority=7)
    assert dead.seen("dmq")["depth"] == 1
    done = dead.admin.redrive("dmq")
    assert (done.moved, done.stayed, done.queues, done.why) == (1, 0, {"orders": 1}, {})
    (message,) = drain(dead.consumer())
    assert (message.id, message.payload, message.key) == (sent, b'{"n": 1}', b"key")
    assert (message.headers, message.priority) == ({"k": "v"}, 7)
    assert (message.delivery_count, message.redelivered) == (1, False)
    assert dead.seen("dmq")["depth"] == 0
    message.ack()
    assert dead.seen()["depth"] == dead.seen()["spool_bytes"] == 0


def test_X6_counted_and_journaled(dead: Bench) -> None:
    die(dead, 1, 2)
    dead.admin.redrive("dmq")
    assert dead.seen("dmq")["redriven"] == 2
    assert dead.seen()["spooled"] == 4
    assert dead.events("dmq")[-3:] == ["redriven", "redriven", "redriven"]  # two, and the event
    rows = [r for r in dead.engine.journal() if r["event"] == "redriven" and r["message_id"]]
    assert [r["message_id"] for r in rows] == ["1", "2"]
    back = [r for r in dead.engine.journal() if r["reason"] == "redriven from dmq"]
    assert [(r["event"], r["queue"], r["message_id"]) for r in back] == [
        ("spooled", "orders", "1"), ("spooled", "orders", "2"),
    ]  # fmt: skip
    (event,) = [e for e in dead.admin.events() if e["event"] == "redriven"]
    assert (event["queue"], event["moved"], event["stayed"]) == ("dmq", 2, 0)


def test_X6_by_predicate_and_by_ids(dead: Bench) -> None:
    sent = die(dead, *({"n": n} for n in range(6)))
    assert dead.admin.redrive("dmq", where="/n > 3").moved == 2
    assert dead.admin.redrive("dmq", ids=[sent[0]]).moved == 1
    assert dead.admin.redrive("dmq", ids="2-3", where="/n = 2").moved == 1
    assert [m.id for m in dead.admin.browse("dmq")] == [sent[1], sent[3]]
    assert [m.id for m in dead.admin.browse("orders")] == [sent[i] for i in (4, 5, 0, 2)]


def test_X5_X6_a_message_that_died_twice_says_of_what_first_and_gets_home(dead: Bench) -> None:
    dead.define("end")
    dead.define("last", dead_message_queue="end")
    dead.define("dmq", dead_message_queue="last")

    def headers(queue: str) -> list[str]:
        (message,) = dead.admin.browse(queue)
        names = ("reason", "queue", "detail")
        texts = [message.headers.get(f"lq-dead-{name}", "") for name in names]
        return texts + [message.headers.get(f"lq-first-dead-{name}", "") for name in names]

    die(dead, 1)
    (first,) = dead.admin.browse("dmq")
    for queue in ("dmq", "last"):
        consumer = dead.consumer(queue)
        consumer.receive(timeout=0).reject(f"nothing to do in {queue}")
        consumer.close()
    dead.engine.restart()
    home = [first.headers[f"lq-dead-{name}"] for name in ("reason", "queue")] + [""]
    assert headers("end") == ["rejected", "last", "nothing to do in last", *home]
    assert dead.admin.redrive("end").queues == {"last": 1}
    assert headers("last") == [*home, "", "", ""]
    (again,) = dead.admin.browse("last")
    assert again.headers["lq-dead-time"] == first.headers["lq-dead-time"]
    assert dead.admin.redrive("last").queues == {"orders": 1}
    (back,) = dead.admin.browse("orders")
    assert not [name for name in back.headers if "dead" in name]


@pytest.mark.parametrize(
    ("why", "change"),
    [
        ("no_such_queue", lambda b: b.admin.delete("orders")),
        ("queue_shutdown", lambda b: b.admin.shutdown("orders", ingress=True)),
        ("queue_quota", lambda b: b.define(max_spool_usage=1)),
        ("message_too_large", lambda b: b.define(max_message_size=1)),
        ("filter", lambda b: b.define(filter="/n = 9")),
        ("leased", lambda b: b.consumer("dmq")),
    ],
)
def test_X6_what_cannot_go_back_stays_and_is_reported(dead: Bench, why: str, change: Any) -> None:
    sent = die(dead, {"n": 1}, {"n": 2})
    change(dead)
    done = dead.admin.redrive("dmq")
    assert (done.moved, done.stayed, done.why) == (0, 2, {why: 2})
    assert [m.id for m in dead.admin.browse("dmq")] == sent
    reasons = {m.headers["lq-dead-reason"] for m in dead.admin.browse("dmq")}
    assert reasons == {"expired"}


def test_X6_another_match_of_the_message_is_left_alone(dead: Bench) -> None:
    dead.define("copies", underlying_topic="orders")
    consumer = dead.consumer("copies")
    (sent,) = die(dead, 1, ttl="1s")
    assert dead.seen("copies")["expired"] == 1  # it had no dead message queue
    assert dead.admin.redrive("dmq").queues == {"orders": 1}
    assert [m.id for m in dead.admin.browse("orders")] == [sent]
    assert drain(consumer) == []  # its life is over there (C6)


def test_X6_bad_input_is_refused(dead: Bench) -> None:
    for bad in ({"where": "/n >"}, {"ids": "x"}, {"ids": []}):
        with pytest.raises(ConfigError):
            dead.admin.redrive("dmq", **bad)
    with pytest.raises(ConfigError, match="no such queue"):
        dead.admin.redrive("nowhere")


def test_R6_a_purge_of_no_ids_removes_nothing(dead: Bench) -> None:
    dead.send()
    with pytest.raises(ConfigError, match="ids"):
        dead.admin.purge("orders", ids=[])
    assert dead.seen()["depth"] == 1


def test_X6_within_its_vpn() -> None:
    def queues(vpn: str) -> list[dict[str, Any]]:
        keys = {"message_type": "json", "vpn": vpn}
        return [{"name": "dmq", **keys}, {"name": "q", "dead_message_queue": "dmq", **keys}]

    config = {"vpns": {"a": {}, "b": {}}, "queues": [*queues("a"), *queues("b")]}
    one = lakequeue.connect("memory://redrive-of-vpns", vpn="a", config=config)
    other = lakequeue.connect("memory://redrive-of-vpns", vpn="b")
    one.engine.checking = True
    one.producer().send("q", b"1", ttl="1s")
    one.advance("1s")
    assert one.admin().redrive("dmq").moved == 1
    assert one.admin().describe("q")["depth"] == 1
    assert other.admin().describe("q")["depth"] == 0


def shared(**first: Any) -> Bench:
    """Queues `one` and `two` take the same topic and have the same dead message queue."""
    bench = Bench()
    bench.define("dmq")
    bench.define("one", underlying_topic="t", dead_message_queue="dmq", **first)
    bench.define("two", underlying_topic="t", dead_message_queue="dmq", expiration="2s")
    return bench


@pytest.mark.parametrize("together", [True, False])
def test_X6_a_message_that_died_in_two_queues_goes_back_to_both(together: bool) -> None:
    bench = shared(expiration="2s" if together else "1s")
    sent = bench.send(queue="t")
    bench.advance("2s")
    (held,) = bench.admin.browse("dmq")
    assert held.headers["lq-dead-queue"] == "one"
    assert held.headers["lq-dead-also"] == "two"
    bench.engine.restart()
    done = bench.admin.redrive("dmq")
    assert (done.moved, done.stayed, done.queues) == (2, 0, {"one": 1, "two": 1})
    for name in ("one", "two"):
        (message,) = drain(bench.consumer(name))
        assert message.id == sent
        message.ack()
    assert bench.admin.usage()["vpn"]["spool_bytes"] == 0
    assert (bench.seen("dmq")["depth"], bench.seen("dmq")["redriven"]) == (0, 1)


def test_X6_it_stays_for_the_queue_that_does_not_take_it(empty: Bench) -> None:
    bench = shared()
    bench.send(queue="t", ttl="1s")
    bench.advance("1s")
    bench.admin.shutdown("one", ingress=True)
    done = bench.admin.redrive("dmq")
    assert (done.queues, done.why) == ({"two": 1}, {"queue_shutdown": 1})
    (held,) = bench.admin.browse("dmq")
    assert held.headers["lq-dead-queue"] == "one"
    assert "lq-dead-also" not in held.headers
    bench.admin.shutdown("one")
    assert bench.admin.redrive("dmq").queues == {"one": 1}
    assert [bench.seen(name)["depth"] for name in ("dmq", "one", "two")] == [0, 1, 1]


def test_X6_published_to_the_dead_message_queue_and_dead_in_another() -> None:
    bench = Bench()
    bench.define("dmq", underlying_topic="t", expiration_model="queue")
    bench.define("one", underlying_topic="t", dead_message_queue="dmq")
    bench.send(queue="t", ttl="1s")
    bench.advance("1s")
    (held,) = bench.admin.browse("dmq")
    assert held.headers["lq-dead-queue"] == "one"
    assert bench.admin.redrive("dmq").queues == {"one": 1}
