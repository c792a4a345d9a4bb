"""The auditor of every message's life (`audit.py`) detects mistakes. It also judges the twins of
`tests/state/test_twins.py`."""

from typing import Any

import pytest
from lakequeue.protocol import commands as c
from lakequeue.protocol.journal import Journal
from lakequeue.protocol.outputs import Deadline, Deliveries
from rules.steps import Steps, define, described, subscribe

from .audit import Auditor, Trouble
from .limits import TINY


def test_L13_a_commands_remaining_work_needs_no_other_command() -> None:
    """Remaining work requests a step at once."""
    steps = Steps(limits=TINY)
    consumers = [subscribe("a", 8), subscribe("b", 8)]
    steps.run([define(max_per_subscription_backlog=100), *consumers], [("orders", b"{}")] * 16)
    steps.run([c.Ack(queue="orders", subscription="a", ids="1-16"), c.Purge(queue="orders")])
    assert described(steps)["depth"] == 0
    steps.run(publishes=[("orders", b"{}")] * 16)
    steps.run([c.Unsubscribe(queue="orders", subscription=s) for s in "ab"])
    seen = described(steps)
    assert (seen["leased"], seen["consumers"]) == (0, [])


def journal_of(steps: Steps, commands: list[Any], publishes: list[Any]) -> list[Any]:
    return [o for o in steps.run(commands, publishes) if not isinstance(o, Deadline)]


def is_journal(output: Any) -> bool:
    return isinstance(output, Journal)


@pytest.mark.parametrize(
    ("kind", "lie"),
    [
        ("a delivery that nobody told of", lambda out: [o for o in out if not is_journal(o)]),
        ("told, and never sent", lambda out: [o for o in out if not isinstance(o, Deliveries)]),
        ("delivered twice", lambda out: out * 2),
    ],
)
def test_the_auditor_detects_a_planted_mistake(kind: str, lie: Any) -> None:
    """A test of the auditor itself."""
    steps, auditor = Steps(), Auditor()
    auditor.see(journal_of(steps, [define()], []))
    out = journal_of(steps, [subscribe("a")], [("orders", b"{}")])
    with pytest.raises(AssertionError):
        auditor.see(lie(out))


def test_the_auditor_detects_a_lost_message() -> None:
    trouble = Trouble(1)
    trouble.go(10, 20)
    trouble.auditor.accepted.add("999999")
    with pytest.raises(AssertionError, match="never seen again"):
        trouble.check_drained()
