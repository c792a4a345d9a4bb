"""Why a queue does not move, in words; see `cases`, and `tests/cli/transcripts/reasons.txt`."""

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


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.code)
def test_the_reasons_why_a_queue_does_not_move(engine: Any, case: Case) -> None:
    """The command explains it to people and to programs."""
    ids = [m.id for m in engine.admin().browse(case.code)]
    text = case.text.format(*ids)
    words = ["queues", case.code, "--url", URL]
    assert text in CliRunner().invoke(main, words, catch_exceptions=False).stdout
    (why,) = json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)["why"]
    code = "backlog" if case.code == "per_flow" else case.code
    assert Waiting(**why) == Waiting(code, text, case.stuck)


@pytest.fixture
def alone() -> Iterator[Any]:
    """An engine without queues."""
    connection = lakequeue.connect("memory://", config={"queues": []})
    yield connection
    connection.close()


def define(connection: Any, **keys: Any) -> None:
    base = {"name": "orders", "message_type": "json", "max_per_subscription_backlog": 100}
    connection.admin().define(base | keys)


def test_a_queue_that_moves_has_no_reason(alone: Any) -> None:
    """Between two steps a message may be ready while a consumer has room."""
    define(alone)
    send(alone, "orders", {"price": 101})
    queue = alone.admin().describe("orders") | {"blocked": None}
    room = {"name": "a", "held": 0, "backlog": 5, "filter": None, "blocked": False, "why": None}
    messages = alone.admin().browse("orders")
    assert reasons(queue | {"consumers": [room]}, messages, alone.now()) == []
    taken = room | {"filter": "/price > 100"}
    assert reasons(queue | {"consumers": [taken]}, messages, alone.now()) == []


def test_only_the_first_messages_of_a_deep_queue_are_active(alone: Any) -> None:
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


def test_deep_queues_are_inspected_in_part(alone: Any) -> None:
    define(alone)
    consumer = alone.consumer("orders", max_backlog=1, filter="/n > 300")
    send(alone, "orders", *({"n": n} for n in range(LOOKED_AT + 50)))
    (why,) = seen(alone, "orders")
    assert f"matches one of the first {LOOKED_AT} of the ready messages" in why.text
    send(alone, "orders", deliver_at=alone.now() + timedelta(days=3))
    consumer.close()


def test_names_are_escaped_for_a_terminal(alone: Any) -> None:
    define(alone, max_per_subscription_backlog=1)
    name = "bold\x1b[1m[red]\n"
    consumer = alone.consumer("orders", name=name)
    send(alone, "orders", {}, {})
    (why,) = seen(alone, "orders")
    assert "bold [1m[red]  holds 1 of 1" in why.text
    assert why.text.isprintable()
    consumer.close()


def test_fewer_large_messages_are_inspected(alone: Any) -> None:
    define(alone)
    send(alone, "orders", *({"n": "x" * 300_000} for _ in range(9)))
    queue, messages = described(alone, "orders")
    assert (len(messages), queue["why"][0]["code"]) == (3, "no_consumer")


def test_a_command_is_safe_to_copy(alone: Any) -> None:
    """Names chosen by others are one word for the shell."""
    name = "x; rm -rf $HOME `id`"
    define(alone, name=name, underlying_topic="t")
    send(alone, name, {})
    alone.admin().shutdown(name, ingress=True, egress=True)
    words = [shlex.split(why.text[why.text.index("(") + 1 :].partition(")")[0])
             for why in seen(alone, name)]  # fmt: skip
    assert words == [["lakequeue", "shutdown", name, f"--open-{side}"]
                     for side in ("egress", "ingress")]  # fmt: skip
