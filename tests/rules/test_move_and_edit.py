"""R6: an administrator moves messages to another queue and edits their headers."""

from typing import Any

import pytest
from lakequeue.protocol.errors import ConfigError
from lakequeue.state import Limits
from rules.harness import Bench, drain, ids


@pytest.fixture
def bench() -> Bench:
    """Queues `orders` and `others`."""
    bench = Bench()
    bench.define("others", max_per_subscription_backlog=100)
    bench.define(max_per_subscription_backlog=100)
    return bench


def told(bench: Bench, event: str) -> list[dict[str, Any]]:
    return [r for r in bench.engine.journal() if r["event"] == event and r["message_id"]]


# ---------------------------------------------------------------- move


def test_R6_a_moved_message_keeps_id_payload_key_headers_and_counts_anew(bench: Bench) -> None:
    consumer = bench.consumer(backlog=1)
    sent = bench.send({"n": 1}, headers={"k": "v"}, key=b"key", priority=7)
    bench.send({"n": 2})
    drain(consumer)[0].cancel()
    consumer.close()
    done = bench.admin.move("orders", to="others", where="/n = 1")
    assert (done.count, done.stayed, done.why) == (1, 0, {})
    assert (bench.seen()["depth"], bench.seen("others")["depth"]) == (1, 1)
    (message,) = drain(bench.consumer("others"))
    assert (message.id, message.payload, message.key) == (sent, b'{"n": 1}', b"key")
    assert (message.headers, message.priority, message.delivery_count) == ({"k": "v"}, 7, 1)
    message.ack()
    assert bench.seen("others")["depth"] == bench.seen("others")["spool_bytes"] == 0


def test_R6_moves_are_journaled_with_who_and_why(bench: Bench) -> None:
    first, second = bench.send(), bench.send()
    bench.admin.move("orders", to="others", why="wrong address")
    name = bench.connection.client_name
    rows = told(bench, "moved")
    assert [(r["message_id"], r["queue"]) for r in rows] == [(first, "orders"), (second, "orders")]
    assert {r["reason"] for r in rows} == {f"to others, by {name}, wrong address"}
    entered = [r for r in told(bench, "spooled") if r["queue"] == "others"]
    assert [(r["message_id"], r["reason"]) for r in entered] == [
        (first, "moved from orders"), (second, "moved from orders"),
    ]  # fmt: skip
    (event,) = [e for e in bench.admin.events() if e["event"] == "moved"]
    assert (event["queue"], event["to"], event["moved"], event["who"], event["why"]) == (
        "orders", "others", 2, name, "wrong address",
    )  # fmt: skip
    assert bench.seen()["moved"] == 2


def test_R6_a_dry_run_moves_nothing_and_says_what_would(bench: Bench) -> None:
    for n in range(5):
        bench.send({"n": n})
    before = bench.engine.store.pages["q/1"]
    found = bench.admin.move("orders", to="others", where="/n > 1", dry_run=True)
    assert (found.count, found.stayed) == (3, 0)
    assert bench.admin.purge("orders", where="/n > 0", dry_run=True) == 4
    assert (bench.seen()["depth"], bench.seen("others")["depth"]) == (5, 0)
    assert bench.engine.store.pages["q/1"] == before
    assert told(bench, "moved") == told(bench, "purged") == []
    assert bench.admin.move("orders", to="others", where="/n > 1").count == 3


def test_R6_leased_messages_stay_delayed_ones_stay_delayed(bench: Bench) -> None:
    held = bench.send({"n": 1})
    consumer = bench.consumer(backlog=1)
    assert ids(drain(consumer)) == [held]
    later = bench.send({"n": 2}, delay="10s")
    done = bench.admin.move("orders", to="others")
    assert (done.count, done.stayed, done.why) == (1, 1, {"leased": 1})
    assert bench.seen("others")["delayed"] == 1
    other = bench.consumer("others")
    bench.advance("9s")
    assert drain(other) == []
    bench.advance("1s")
    assert ids(drain(other)) == [later]


def test_R6_the_other_queues_checks_and_expressions_apply(bench: Bench) -> None:
    bench.define(
        "others", filter="/n > 0", priority="/n", max_spool_messages=2,
        max_per_subscription_backlog=10,
    )  # fmt: skip
    sent = [bench.send({"n": n}) for n in (0, 1, 2, 3)]
    done = bench.admin.move("orders", to="others")
    assert (done.count, done.stayed, done.why) == (2, 2, {"filter": 1, "queue_quota": 1})
    assert ids(drain(bench.consumer("others"))) == [sent[2], sent[1]]
    assert ids(drain(bench.consumer())) == [sent[0], sent[3]]


def test_R6_a_message_is_in_a_queue_once(bench: Bench) -> None:
    bench.define(
        "copies", underlying_topic="(orders|copies)", default_publish_target="copies",
        max_per_subscription_backlog=9,
    )  # fmt: skip
    sent = bench.send()
    done = bench.admin.move("orders", to="copies")
    assert (done.count, done.why) == (0, {"already_there": 1})
    assert ids(drain(bench.consumer("copies"))) == [sent]


def test_X4_the_publishers_ttl_counts_on(bench: Bench) -> None:
    bench.send(ttl="8s")
    bench.advance("6s")
    bench.admin.move("orders", to="others")
    bench.advance("1s")
    assert bench.seen("others")["depth"] == 1
    bench.advance("1s")
    assert (bench.seen("others")["depth"], bench.seen("others")["expired"]) == (0, 1)


def test_R6_X5_a_dead_message_stays_dead_and_can_be_redriven_from_there(bench: Bench) -> None:
    bench.define("dmq")
    bench.define(dead_message_queue="dmq", max_per_subscription_backlog=10)
    sent = bench.send(ttl="1s")
    bench.advance("1s")
    assert bench.admin.move("dmq", to="others").count == 1
    (seen,) = bench.admin.browse("others")
    assert (seen.id, seen.headers["lq-dead-reason"]) == (sent, "expired")
    assert bench.admin.redrive("others").queues == {"orders": 1}
    assert ids(drain(bench.consumer())) == [sent]


@pytest.mark.parametrize(("to", "said"), [("orders", "is this queue"), ("no", "no such queue")])
def test_R6_where_to_is_checked(bench: Bench, to: str, said: str) -> None:
    bench.send()
    with pytest.raises(ConfigError, match=said):
        bench.admin.move("orders", to=to)
    with pytest.raises(ConfigError, match="found the end"):
        bench.admin.move("orders", to="others", where="/n >")
    assert bench.seen()["depth"] == 1


def test_R6_many_move_over_many_steps_in_order() -> None:
    bench = Bench()
    bench.engine.limits = Limits(command_rows=7)
    bench.define("others", max_per_subscription_backlog=100)
    bench.define(max_per_subscription_backlog=100)
    sent = [bench.send({"n": n}) for n in range(40)]
    assert bench.admin.move("orders", to="others", ids=f"{sent[3]}-{sent[36]}").count == 34
    assert ids(drain(bench.consumer("others"))) == sent[3:37]


# ---------------------------------------------------------------- edit


def test_R6_edited_headers_are_seen_and_delivered(bench: Bench) -> None:
    bench.send({"n": 1}, headers={"a": "1", "b": "2"})
    bench.send({"n": 2}, headers={"a": "1"})
    new = {"a": None, "c": "drei €"}
    done = bench.admin.edit("orders", headers=new, where="/n = 1", why="typo")
    assert (done.count, done.stayed) == (1, 0)
    assert [m.headers for m in bench.admin.browse("orders")] == [
        {"b": "2", "c": "drei €"}, {"a": "1"},
    ]  # fmt: skip
    assert [m.headers for m in drain(bench.consumer())] == [{"b": "2", "c": "drei €"}, {"a": "1"}]
    (row,) = told(bench, "edited")
    name = bench.connection.client_name
    assert (row["message_id"], row["reason"]) == ("1", f"headers a c, by {name}, typo")


def test_R6_of_a_leased_message_the_next_delivery_has_them(bench: Bench) -> None:
    bench.send(headers={"a": "1"})
    (message,) = drain(consumer := bench.consumer())
    assert bench.admin.edit("orders", headers={"a": "2"}).count == 1
    message.cancel()
    assert [m.headers for m in drain(consumer)] == [{"a": "2"}]


def test_R6_another_queue_has_the_message_as_it_was(bench: Bench) -> None:
    bench.define(
        "copies", underlying_topic="(orders|copies)", default_publish_target="copies",
        max_per_subscription_backlog=9,
    )  # fmt: skip
    bench.send(headers={"a": "1"})
    bench.admin.edit("orders", headers={"a": "2"}, ids="1")
    assert [m.headers for m in bench.admin.browse("copies")] == [{"a": "1"}]


def test_R6_edits_go_with_the_message(bench: Bench) -> None:
    """By a move, as a dead message, and back."""
    bench.define("dmq")
    bench.define(dead_message_queue="dmq", expiration="5s", max_per_subscription_backlog=10)
    bench.send({"n": 1})
    bench.send({"n": 2})
    bench.admin.edit("orders", headers={"seen": "yes"}, ids="1")
    bench.advance("5s")
    dead = {m.id: m.headers.get("seen") for m in bench.admin.browse("dmq")}
    assert dead == {"1": "yes", "2": None}
    assert bench.admin.redrive("dmq").moved == 2
    assert bench.admin.move("orders", to="others").count == 2
    assert [m.headers for m in drain(bench.consumer("others"))] == [{"seen": "yes"}, {}]


def test_R6_a_dry_run_edits_nothing(bench: Bench) -> None:
    bench.send()
    assert bench.admin.edit("orders", headers={"a": "1"}, dry_run=True).count == 1
    assert [m.headers for m in bench.admin.browse("orders")] == [{}]
    assert told(bench, "edited") == []


def test_R6_what_may_be_edited(bench: Bench) -> None:
    bench.send()
    for headers, said in (
        ({}, "name at least one header"), ({"lq-id": "1"}, "do not begin with lq-"),
        ({"lq": "{}"}, "do not begin with lq-"), ({str(n): "x" * 249 for n in range(5)}, "1,000"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=said):
            bench.admin.edit("orders", headers=headers)
    for n in range(3):
        bench.admin.edit("orders", headers={f"h{n}": "x" * 240})
    done = bench.admin.edit("orders", headers={"h3": "x" * 240, "h4": "x" * 240})
    assert (done.count, done.stayed, done.why) == (0, 1, {"edited_too_much": 1})
    assert set(bench.admin.browse("orders")[0].headers) == {"h0", "h1", "h2"}


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ({"a": "x" * 1_001}, "more than 1,000 characters in all"),
        ({"a" * 300: "x"}, r"headers: .*aaa.* length <= 250"),
        ({"a": "x" * 20_000}, r"headers: .*xxx.* length <= 10000"),
    ],
)
def test_R6_an_edit_that_is_too_long_is_named(
    empty: Bench, headers: dict[str, str], says: str
) -> None:
    empty.define()
    with pytest.raises(ConfigError, match=says):
        empty.admin.edit("orders", headers, ids="1")
