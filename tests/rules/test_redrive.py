"""X6, X5: dead messages return to their queues. See also scenarios/spool_and_redrive.txt and
scenarios/engine/administration.txt."""

from typing import Any

import lakequeue
import pytest
from lakequeue.protocol.errors import ConfigError
from rules.harness import Bench, drain


def die(bench: Bench, *bodies: Any, **options: Any) -> list[str]:
    """Messages that expire in `orders` at once."""
    sent = [bench.send(body, ttl="1s", **options) for body in bodies]
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


def test_X6_redrives_are_counted_and_journaled(dead: Bench) -> None:
    die(dead, 1, 2)
    dead.admin.redrive("dmq")
    assert (dead.seen("dmq")["redriven"], dead.seen()["spooled"]) == (2, 4)
    assert dead.events("dmq")[-3:] == ["redriven", "redriven", "redriven"]  # two, and the event
    assert [r["message_id"] for r in dead.rows("redriven")] == ["1", "2"]
    back = [r for r in dead.rows("spooled") if r["reason"] == "redriven from dmq"]
    assert [(r["queue"], r["message_id"]) for r in back] == [("orders", "1"), ("orders", "2")]
    (event,) = dead.told("redriven")
    assert (event["queue"], event["moved"], event["stayed"]) == ("dmq", 2, 0)


def test_X5_X6_a_message_that_died_twice_keeps_its_first_reason_and_returns(dead: Bench) -> None:
    dead.define("end")
    dead.define("last", dead_message_queue="end")
    dead.define("dmq", dead_message_queue="last")

    def headers(queue: str) -> list[str]:
        (message,) = dead.admin.browse(queue)
        names = [f"{which}-{name}" for which in ("lq-dead", "lq-first-dead")
                 for name in ("reason", "queue", "detail")]  # fmt: skip
        return [message.headers.get(name, "") for name in names]

    die(dead, 1)
    (first,) = dead.admin.browse("dmq")
    for queue in ("dmq", "last"):
        consumer = dead.consumer(queue)
        consumer.receive(timeout=0).reject(f"nothing to do in {queue}")
        consumer.close()
    dead.engine.restart()
    home = ["expired", "orders", ""]
    assert headers("end") == ["rejected", "last", "nothing to do in last", *home]
    assert dead.admin.redrive("end").queues == {"last": 1}
    assert headers("last") == [*home, "", "", ""]
    (again,) = dead.admin.browse("last")
    assert again.headers["lq-dead-time"] == first.headers["lq-dead-time"]
    assert dead.admin.redrive("last").queues == {"orders": 1}
    (back,) = dead.admin.browse("orders")
    assert not [name for name in back.headers if "dead" in name]


@pytest.mark.parametrize(
    ("queue", "bad", "said"),
    [
        ("dmq", {"where": "/n >"}, "where"),
        ("dmq", {"ids": "x"}, "ids"),
        ("dmq", {"ids": []}, "ids"),
        ("nowhere", {}, "no such queue"),
    ],
)
def test_X6_bad_input_is_refused(dead: Bench, queue: str, bad: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        dead.admin.redrive(queue, **bad)


def test_R6_a_purge_of_no_ids_removes_nothing(dead: Bench) -> None:
    dead.send()
    with pytest.raises(ConfigError, match="ids"):
        dead.admin.purge("orders", ids=[])
    assert dead.seen()["depth"] == 1


def test_X6_a_redrive_stays_within_its_vpn() -> None:
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
    assert (one.admin().describe("q")["depth"], other.admin().describe("q")["depth"]) == (1, 0)


@pytest.mark.parametrize("together", [True, False])
def test_X6_a_message_that_died_in_two_queues_goes_back_to_both(
    empty: Bench, together: bool
) -> None:
    shared = {"underlying_topic": "t", "dead_message_queue": "dmq"}
    empty.define("dmq")
    empty.define("one", **shared, expiration="2s" if together else "1s")
    empty.define("two", **shared, expiration="2s")
    sent = empty.send(queue="t")
    empty.advance("2s")
    (held,) = empty.admin.browse("dmq")
    assert (held.headers["lq-dead-queue"], held.headers["lq-dead-also"]) == ("one", "two")
    empty.engine.restart()
    done = empty.admin.redrive("dmq")
    assert (done.moved, done.stayed, done.queues) == (2, 0, {"one": 1, "two": 1})
    for name in ("one", "two"):
        (message,) = drain(empty.consumer(name))
        assert message.id == sent
        message.ack()
    assert empty.admin.usage()["vpn"]["spool_bytes"] == 0
    assert (empty.seen("dmq")["depth"], empty.seen("dmq")["redriven"]) == (0, 1)
