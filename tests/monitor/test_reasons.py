"""Why a queue does not move, in words; see `cases`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import lakequeue
import pytest
from click.testing import CliRunner
from lakequeue.cli import main
from lakequeue.monitor.queue_details import described
from lakequeue.monitor.reasons import LOOKED_AT, Waiting, reasons
from monitor.cases import CASES, Case, prepared, send

URL = "memory://reasons"


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    connection = prepared(URL)
    yield connection
    connection.close()


def seen(connection: Any, queue: str) -> list[Waiting]:
    admin = connection.admin()
    messages = admin.browse(queue, limit=LOOKED_AT)
    return reasons(admin.describe(queue), messages, connection.now())


def said(connection: Any, case: Case) -> str:
    """Its words, with the ids that the messages have."""
    ids = [m.id for m in connection.admin().browse(case.code)]
    return case.text.format(*ids)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.code)
def test_why_it_does_not_move(engine: Any, case: Case) -> None:
    code = "backlog" if case.code == "per_flow" else case.code
    assert seen(engine, case.code) == [Waiting(code, said(engine, case), case.stuck)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.code)
def test_the_command_says_the_same(engine: Any, case: Case) -> None:
    run = CliRunner().invoke(main, ["queues", case.code, "--url", URL], catch_exceptions=False)
    assert said(engine, case) in run.stdout
    run = CliRunner().invoke(main, ["queues", case.code, "--url", URL, "--json"])
    (why,) = json.loads(run.stdout)["why"]
    assert (why["text"], why["stuck"]) == (said(engine, case), case.stuck)


@pytest.fixture
def alone() -> Iterator[Any]:
    """An engine without queues."""
    connection = lakequeue.connect("memory://", config={"queues": []})
    yield connection
    connection.close()


def define(connection: Any, **keys: Any) -> None:
    base = {"name": "orders", "message_type": "json", "max_per_subscription_backlog": 100}
    connection.admin().define(base | keys)


def test_an_empty_queue_has_no_reason(alone: Any) -> None:
    define(alone)
    assert seen(alone, "orders") == []


def test_a_queue_that_moves_has_no_reason(alone: Any) -> None:
    """Between two steps something may be ready and somebody have room."""
    define(alone)
    send(alone, "orders", {"price": 101})
    queue = alone.admin().describe("orders") | {"blocked": None}
    room = {"name": "a", "held": 0, "backlog": 5, "filter": None, "blocked": False, "why": None}
    messages = alone.admin().browse("orders")
    assert reasons(queue | {"consumers": [room]}, messages, alone.now()) == []
    taken = room | {"filter": "/price > 100"}
    assert reasons(queue | {"consumers": [taken]}, messages, alone.now()) == []


def test_the_limit_of_the_broker() -> None:
    config = {
        "system": {"max_delivered_unacked": 2},
        "queues": [{"name": "orders", "message_type": "json"}],
    }
    connection = lakequeue.connect("memory://", config=config)
    one = connection.consumer("orders", max_backlog=10)
    connection.admin().define(
        {"name": "orders", "message_type": "json", "max_per_subscription_backlog": 9}
    )
    send(connection, "orders", {}, {}, {})
    (why,) = seen(connection, "orders")
    assert why.code == "broker_unacked"
    one.close()
    connection.close()


def test_only_the_first_are_active(alone: Any) -> None:
    define(alone, target_queue_depth=1000)
    consumer = alone.consumer("orders", max_backlog=10, filter="/n > 1000")
    producer = alone.producer(window=5000)
    for n in range(1100):
        producer.send_async("orders", json.dumps({"n": n}).encode())
    producer.flush(10)
    (why,) = seen(alone, "orders")
    assert why.code == "target_queue_depth"
    assert why.text.startswith("Only the first 1,000 messages are active")
    consumer.close()


def test_what_keeps_messages_out(alone: Any) -> None:
    define(alone, max_spool_messages=1)
    send(alone, "orders", {})
    alone.admin().shutdown("orders", ingress=True)
    consumer = alone.consumer("orders", max_backlog=1)
    assert [(r.code, r.side) for r in seen(alone, "orders")] == [
        ("held", "out"), ("ingress", "in"), ("full", "in"),
    ]  # fmt: skip
    consumer.close()


def test_deep_queues_are_looked_at_in_part(alone: Any) -> None:
    define(alone)
    consumer = alone.consumer("orders", max_backlog=1, filter="/n > 300")
    send(alone, "orders", *({"n": n} for n in range(LOOKED_AT + 50)))
    (why,) = seen(alone, "orders")
    assert f"takes one of the first {LOOKED_AT} of the ready messages" in why.text
    send(alone, "orders", deliver_at=alone.now() + timedelta(days=3))
    consumer.close()


def test_names_say_nothing_to_a_terminal(alone: Any) -> None:
    define(alone, max_per_subscription_backlog=1)
    name = "bold\x1b[1m[red]\n"
    consumer = alone.consumer("orders", name=name)
    send(alone, "orders", {}, {})
    (why,) = seen(alone, "orders")
    assert "bold [1m[red]  holds 1 of 1" in why.text
    assert why.text.isprintable()
    consumer.close()


def test_of_large_messages_fewer_are_looked_at(alone: Any) -> None:
    define(alone)
    send(alone, "orders", *({"n": "x" * 300_000} for _ in range(9)))
    queue, messages = described(alone, "orders")
    assert (len(messages), queue["why"][0]["code"]) == (3, "no_consumer")


def test_dead_messages_wait_and_nothing_is_stuck(alone: Any) -> None:
    define(alone, dead_message_queue="dead")
    define(alone, name="dead")
    send(alone, "orders", {})
    with alone.consumer("orders", ack_mode="individual") as consumer:
        consumer.receive(0).reject("why")
    (why,) = seen(alone, "dead")
    assert (why.code, why.stuck) == ("dead", False)
    assert "1 message waits until somebody looks (lakequeue browse dead)" in why.text
    send(alone, "dead", {})  # somebody uses it as a queue, too
    (why,) = seen(alone, "dead")
    assert (why.code, why.stuck) == ("no_consumer", True)


def test_a_command_is_safe_to_copy(alone: Any) -> None:
    """What others named is one word to the shell into which it is pasted."""
    name = "x; rm -rf $HOME `id`"
    define(alone, name=name, underlying_topic="t")
    send(alone, name, {})
    alone.admin().shutdown(name, ingress=True, egress=True)
    words = [shlex.split(why.text[why.text.index("(") + 1 :].partition(")")[0])
             for why in seen(alone, name)]  # fmt: skip
    assert words == [["lakequeue", "shutdown", name, f"--open-{side}"]
                     for side in ("egress", "ingress")]  # fmt: skip
