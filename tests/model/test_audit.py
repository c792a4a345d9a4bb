"""Budgets so small that all goes on in later steps: every life is whole, and every queue drains.

`LAKEQUEUE_WALKS=10` makes ten times as much trouble.
"""

import os
from typing import Any

import pytest
from lakequeue.protocol import commands as c
from lakequeue.protocol.journal import Journal
from lakequeue.protocol.outputs import Deadline, Deliveries
from lakequeue.state import Limits
from rules.steps import Steps, define, described, subscribe

from .audit import Auditor, Trouble
from .limits import SMALL_BUDGETS, TINY

TIMES = int(os.environ.get("LAKEQUEUE_WALKS", "1"))
SMALL = Limits(
    command_rows=100, bulk_rows=80, due_rows=70, delivery_rows=50, delivery_bytes=4_000, looks=90
)


LIMITS = {"tiny": TINY, "budgets": SMALL_BUDGETS, "small": SMALL, "usual": Limits()}


@pytest.mark.parametrize("name", LIMITS)
def test_L_X_S_every_life_is_whole(name: str) -> None:
    limits = LIMITS[name]
    for seed in range(8 * TIMES):
        trouble = Trouble(seed, limits=limits)
        try:
            trouble.go(25, 20)
            trouble.check_drained()
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.parametrize("seed", range(TIMES))
def test_L_X_S_every_life_of_2000_messages_is_whole(seed: int) -> None:
    trouble = Trouble(90_000 + seed, limits=SMALL)
    while trouble.published < 2_000:
        trouble.go(5, 150)
    trouble.check_drained()


def test_L13_what_a_command_leaves_is_done_without_another() -> None:
    """Work that is left asks for a step at once."""
    steps = Steps(limits=TINY)
    steps.run([define(max_per_subscription_backlog=100), subscribe("a", 8), subscribe("b", 8)],
              [("orders", b"{}")] * 16)  # fmt: skip
    steps.run([c.Ack(queue="orders", subscription="a", ids="1-16"), c.Purge(queue="orders")])
    assert described(steps)["depth"] == 0
    steps.run(publishes=[("orders", b"{}")] * 16)
    steps.run([c.Unsubscribe(queue="orders", subscription=s) for s in "ab"])
    seen = described(steps)
    assert (seen["leased"], seen["consumers"]) == (0, [])


# ---------------------------------------------------------------- the judge


def journal_of(steps: Steps, commands: list[Any], publishes: list[Any]) -> list[Any]:
    return [o for o in steps.run(commands, publishes) if not isinstance(o, Deadline)]


@pytest.mark.parametrize(
    ("kind", "lie"),
    [
        ("a delivery that nobody told of", lambda out: [o for o in out if not is_journal(o)]),
        ("told, and never sent", lambda out: [o for o in out if not isinstance(o, Deliveries)]),
        ("delivered twice", lambda out: out * 2),
    ],
)
def test_a_lie_is_seen(kind: str, lie: Any) -> None:
    """The judge of the judge."""
    steps, auditor = Steps(), Auditor()
    auditor.see(journal_of(steps, [define()], []))
    out = journal_of(steps, [subscribe("a")], [("orders", b"{}")])
    with pytest.raises(AssertionError):
        auditor.see(lie(out))


def test_a_message_that_is_lost_is_seen() -> None:
    trouble = Trouble(1)
    trouble.go(10, 20)
    trouble.auditor.accepted.add("999999")
    with pytest.raises(AssertionError, match="never seen again"):
        trouble.check_drained()


def is_journal(output: Any) -> bool:
    return isinstance(output, Journal)
