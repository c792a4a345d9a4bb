"""R6: invalid commands of an administrator. See also scenarios/engine/administration.txt."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from lakequeue.protocol.commands import Events
from lakequeue.protocol.errors import ConfigError
from rules.harness import Bench
from rules.steps import define, started

WRONG = "/price >"
CALLS: dict[str, Callable[[Bench], object]] = {
    "purge": lambda bench: bench.admin.purge("orders", where=WRONG),
    "move": lambda bench: bench.admin.move("orders", "others", where=WRONG),
    "browse": lambda bench: bench.admin.browse("orders", where=WRONG),
    "redrive": lambda bench: bench.admin.redrive("orders", where=WRONG),
    "edit": lambda bench: bench.admin.edit("orders", where=WRONG, headers={"x": "y"}),
    "ack": lambda bench: bench.consumer().ack(where=WRONG),
    "consumer": lambda bench: bench.consumer(filter=WRONG),
}


@pytest.mark.parametrize("what", CALLS)
def test_R6_an_invalid_predicate_is_refused_with_its_name_and_text(bench: Bench, what: str) -> None:
    bench.define("others")
    bench.send({"price": 1})
    name = "filter" if what == "consumer" else "where"
    with pytest.raises(ConfigError, match=f"^{name}: '/price >' – must be an expression: at char"):
        CALLS[what](bench)
    assert bench.seen()["depth"] == 1


def test_R6_a_limit_of_no_events_is_kept() -> None:
    steps = started(define())
    assert [len(steps.ask(Events(limit=limit))) for limit in (0, 1, 9)] == [0, 1, 1]
