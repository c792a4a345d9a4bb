"""R6: an administrator moves messages to another queue and edits their headers. See also
scenarios/engine/administration.txt."""

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


def test_R6_a_moved_message_keeps_its_fields_and_restarts_its_counts(bench: Bench) -> None:
    consumer = bench.consumer(backlog=1)
    sent = bench.send({"n": 1}, headers={"k": "v"}, key=b"key", priority=7)
    bench.send({"n": 2})
    drain(consumer)[0].cancel()
    consumer.close()
    done = bench.admin.move("orders", to="others", where="/n = 1")
    assert (done.count, done.stayed, done.why) == (1, 0, {})
    assert bench.depths("orders", "others") == [1, 1]
    (message,) = drain(bench.consumer("others"))
    assert (message.id, message.payload, message.key) == (sent, b'{"n": 1}', b"key")
    assert (message.headers, message.priority, message.delivery_count) == ({"k": "v"}, 7, 1)
    message.ack()
    assert bench.seen("others")["depth"] == bench.seen("others")["spool_bytes"] == 0


def test_R6_moves_are_journaled_with_user_and_reason(bench: Bench) -> None:
    sent = [bench.send(), bench.send()]
    bench.admin.move("orders", to="others", why="wrong address")
    name = bench.connection.client_name
    moved = {(r["message_id"], r["queue"], r["reason"]) for r in bench.rows("moved")}
    assert moved == {(n, "orders", f"to others, by {name}, wrong address") for n in sent}
    entered = [r for r in bench.rows("spooled") if r["queue"] == "others"]
    assert [(r["message_id"], r["reason"]) for r in entered] == [
        (n, "moved from orders") for n in sent
    ]
    (event,) = bench.told("moved")
    expected = {"queue": "orders", "to": "others", "moved": 2, "who": name, "why": "wrong address"}
    assert expected.items() <= event.items()
    assert bench.seen()["moved"] == 2


def test_R6_a_dry_run_reports_and_changes_nothing(bench: Bench) -> None:
    for n in range(5):
        bench.send({"n": n})
    before = bench.engine.store.pages["q/1"]
    found = bench.admin.move("orders", to="others", where="/n > 1", dry_run=True)
    assert (found.count, found.stayed) == (3, 0)
    assert bench.admin.purge("orders", where="/n > 0", dry_run=True) == 4
    assert bench.admin.edit("orders", headers={"a": "1"}, dry_run=True).count == 5
    assert bench.depths("orders", "others") == [5, 0]
    assert [m.headers for m in bench.admin.browse("orders")] == [{}] * 5
    assert bench.engine.store.pages["q/1"] == before
    assert bench.rows("moved") == bench.rows("purged") == bench.rows("edited") == []
    assert bench.admin.move("orders", to="others", where="/n > 1").count == 3


def test_R6_an_edit_that_reads_a_segment_twice_in_a_step_keeps_all_it_edited(bench: Bench) -> None:
    limits = Limits(live_rows=4, segment_rows=16, bulk_bytes=350, beside=1, alone=1)
    bench.engine.brokers[0]._limits = limits
    bench.engine.restart()
    for n in range(64):
        bench.send({"n": n})
    assert bench.admin.edit("orders", headers={"a": "1"}, where="/n >= 0").count == 64
    assert [m.headers for m in bench.admin.browse("orders")] == [{"a": "1"}] * 64


@pytest.mark.parametrize(("to", "said"), [("orders", "is this queue"), ("no", "no such queue")])
def test_R6_the_target_queue_is_checked(bench: Bench, to: str, said: str) -> None:
    bench.send()
    with pytest.raises(ConfigError, match=said):
        bench.admin.move("orders", to=to)
    assert bench.seen()["depth"] == 1


def test_R6_many_move_over_many_steps_in_order(bench: Bench) -> None:
    bench.engine.brokers[0]._limits = Limits(command_rows=7)
    bench.engine.restart()
    sent = [bench.send({"n": n}) for n in range(40)]
    assert bench.admin.move("orders", to="others", ids=f"{sent[3]}-{sent[36]}").count == 34
    assert ids(drain(bench.consumer("others"))) == sent[3:37]


def test_R6_edited_headers_are_seen_delivered_and_journaled(bench: Bench) -> None:
    bench.send({"n": 1}, headers={"a": "1", "b": "2"})
    bench.send({"n": 2}, headers={"a": "1"})
    new = {"a": None, "c": "drei €"}
    done = bench.admin.edit("orders", headers=new, where="/n = 1", why="typo")
    assert (done.count, done.stayed) == (1, 0)
    expected = [{"b": "2", "c": "drei €"}, {"a": "1"}]
    assert [m.headers for m in bench.admin.browse("orders")] == expected
    assert [m.headers for m in drain(bench.consumer())] == expected
    (row,) = bench.rows("edited")
    by = bench.connection.client_name
    assert (row["message_id"], row["reason"]) == ("1", f"headers a c, by {by}, typo")


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({}, "name at least one header"),
        ({"lq-id": "1"}, "do not begin with lq-"),
        ({"lq": "{}"}, "do not begin with lq-"),
        ({str(n): "x" * 249 for n in range(5)}, "1,000"),
        ({"a": "x" * 1_001}, "more than 1,000 characters in all"),
        ({"a" * 300: "x"}, r"headers: .*aaa.* length <= 250"),
        ({"a": "x" * 20_000}, r"headers: .*xxx.* length <= 10000"),
    ],
    ids=["none", "lq-id", "lq", "together", "value", "long name", "very long value"],
)
def test_R6_headers_that_cannot_be_edited_are_refused_with_the_reason(
    bench: Bench, headers: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        bench.admin.edit("orders", headers, ids="1")


def test_R6_all_edits_of_a_message_have_a_limit(bench: Bench) -> None:
    bench.send()
    for n in range(3):
        bench.admin.edit("orders", headers={f"h{n}": "x" * 240})
    done = bench.admin.edit("orders", headers={"h3": "x" * 240, "h4": "x" * 240})
    assert (done.count, done.stayed, done.why) == (0, 1, {"edited_too_much": 1})
    assert set(bench.admin.browse("orders")[0].headers) == {"h0", "h1", "h2"}
