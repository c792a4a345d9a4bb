"""The spool demo's orders and accounts."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner
from lakequeue.cli import main
from lakequeue.conf import load
from lakequeue.examples.demo.full_spool import (
    CONFIGURATION,
    DEAD,
    FILL,
    LATER,
    ORDERS,
    PAYLOAD_BYTES,
    SICK_EVERY,
    Book,
    Worker,
    accounts,
    order,
)

SENT = FILL + LATER
SICK = list(range(0, SENT, SICK_EVERY))


def test_its_queues_load_and_are_too_small_for_its_orders() -> None:
    queues = {queue.name: queue for queue in load(CONFIGURATION).queues}
    assert queues[ORDERS].dead_message_queue == DEAD in queues
    assert FILL * PAYLOAD_BYTES > queues[ORDERS].max_spool_usage > LATER * PAYLOAD_BYTES


@pytest.mark.parametrize("n", [0, 7, SENT - 1])
def test_an_order_is_json_of_one_size(n: int) -> None:
    assert len(order(n)) == PAYLOAD_BYTES
    assert json.loads(order(n))["order"] == n


def books() -> tuple[pd.DataFrame, dict[str, Any], Book, Worker]:
    """All as it should be."""
    rows = [(ORDERS, event, n) for event in ("spooled", "acknowledged") for n in range(SENT)]
    for n in SICK:
        rows += [(ORDERS, "consumer_rejected", n), (DEAD, "spooled", n), (DEAD, "redriven", n)]
    rows += [(ORDERS, "rejected", None)] * 3
    counters = {
        ORDERS: {"acknowledged": SENT, "dead_lettered": len(SICK), "rejected": {"queue_quota": 3}},
        DEAD: {"redriven": len(SICK)},
    }
    book = Book(stored={n: str(n) for n in range(SENT)})
    book.refused["queue_quota"] = 3
    worker = Worker("nowhere")
    worker.done.update(range(SENT))
    worker.rejected.update(SICK)
    looks = {name: {"depth": 0, "counters": found} for name, found in counters.items()}
    return pd.DataFrame(rows, columns=["queue", "event", "message_id"]), looks, book, worker


def wrong(*given: Any) -> list[str]:
    return [what for what, wanted, found in accounts(*given) if set(found.values()) != {wanted}]


def test_accounts_add_up() -> None:
    assert wrong(*books()) == []


def test_an_order_that_is_missing_anywhere_is_seen() -> None:
    journal, looks, book, worker = books()
    worker.done.discard(5)
    assert wrong(journal, looks, book, worker) == ["orders acknowledged"]
    journal, looks, book, worker = books()
    del book.stored[5]
    assert wrong(journal, looks, book, worker) == ["orders stored"]
    journal, looks, book, worker = books()
    lost = journal[~((journal.queue == DEAD) & (journal.message_id == SICK[1]))]
    assert wrong(lost, looks, book, worker) == ["orders dead-lettered", "dead orders redriven"]
    journal, looks, book, worker = books()
    looks[DEAD]["depth"] = 1
    assert wrong(journal, looks, book, worker) == ["orders still there"]
    assert wrong(journal.iloc[:-1], looks, book, worker)[0] == "orders refused, each sent again"


def test_options_of_the_other_story_are_refused() -> None:
    result = CliRunner().invoke(main, ["demo", "spool", "--workers", "2"])
    assert result.exit_code == 2
    assert "--workers belongs to the story 'flights'" in result.output
