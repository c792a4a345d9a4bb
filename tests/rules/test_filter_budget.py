"""Filters have a budget (F5): whatever becomes ready at once, no step evaluates more, and nothing
is passed over."""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from lakequeue.protocol import commands as c
from lakequeue.protocol.outputs import Deadline
from lakequeue.state import Batch, Limits
from lakequeue.state.rules import filter_matching
from rules.harness import Bench, drain
from rules.steps import Steps, define, delivered, described, subscribe

LOOKS = 7
WIDE = {"max_per_subscription_backlog": 1_000}
Evaluated = Callable[[], int]


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> Evaluated:
    """How many messages were looked at since the last call."""
    seen = [0]
    is_true = filter_matching.is_true

    def counting(value: Any) -> bool:
        seen[0] += 1
        return is_true(value)

    def since() -> int:
        found, seen[0] = seen[0], 0
        return found

    monkeypatch.setattr(filter_matching, "is_true", counting)
    return since


def body(**values: Any) -> bytes:
    return json.dumps(values).encode()


def drive(
    steps: Steps, evaluated: Evaluated, texts: int, commands: Any = (), publishes: Any = ()
) -> tuple[list[Any], int]:
    """Steps until the engine wants no more; what it said, and how many were looked at. What one
    message needs of each filter text may overdraw the budget."""
    batch = Batch(steps.command_records(commands), steps.publish_records(publishes))
    out, looked = [], 0
    for _ in range(5_000):
        evaluated()
        said = steps.step_alone(batch)
        found = evaluated()
        assert found <= steps.limits.looks + texts - 1, f"{found} looked at in one step"
        steps.check()
        out += said
        looked += found
        at = [o.at for o in said if isinstance(o, Deadline)][-1]
        if not 0 < at <= steps.now:
            return out, looked
        batch = Batch()
    raise AssertionError("the engine does not end")


@pytest.mark.parametrize("priority", [None, "/p"])
def test_F5_what_becomes_ready_at_once_is_looked_at_over_steps(
    evaluated: Evaluated, priority: str | None
) -> None:
    steps = Steps(limits=Limits(looks=LOOKS))
    order = {"priority": priority} if priority else {}
    drive(steps, evaluated, 0, [define(**WIDE, **order), subscribe("all", 300)])
    bodies = [{"k": i % 3, "p": i % 4} for i in range(300)]
    out, _ = drive(steps, evaluated, 0, publishes=[("orders", body(**b)) for b in bodies])
    held = delivered(out, "all")
    assert len(held) == 300
    named = [subscribe("f", 500, filter="/k = 1"), subscribe("g", 500, filter="/k = 2")]
    drive(steps, evaluated, 2, named)
    last = [("orders", body(k=k, p=0)) for k in (1, 2)]
    out, _ = drive(steps, evaluated, 2, publishes=last)  # now both have looked beyond all
    assert (delivered(out, "f"), delivered(out, "g")) == ([301], [302])
    out, looked = drive(steps, evaluated, 2, [c.Unsubscribe(queue="orders", subscription="all")])
    for name, k in (("f", 1), ("g", 2)):
        assert delivered(out, name) == [n for n in held if bodies[n - 1]["k"] == k]
    assert 600 - 2 * 100 <= looked <= 600  # once each, but for what the other had taken
    assert described(steps)["ready"] == 100


def test_F5_without_room_nothing_is_looked_at(evaluated: Evaluated) -> None:
    steps = Steps(limits=Limits(looks=LOOKS))
    drive(steps, evaluated, 1, [define(**WIDE), subscribe("f", 1, filter="/k = 1")])
    drive(steps, evaluated, 1, publishes=[("orders", body(k=1))])
    _, looked = drive(steps, evaluated, 1, publishes=[("orders", body(k=1))] * 50)
    assert looked == 0
    out, looked = drive(steps, evaluated, 1, [c.Ack(queue="orders", subscription="f", ids="1")])
    assert (delivered(out), looked <= LOOKS) == ([2], True)


@pytest.mark.parametrize("seed", range(6))
def test_F5_O1_with_any_budget_every_message_finds_its_consumer(
    evaluated: Evaluated, seed: int
) -> None:
    """Leases end, consumers come and go, several filters overlap, two queues share the budget."""
    r = random.Random(seed)
    limits = Limits(looks=r.choice((1, 2, 5)), delivery_rows=r.choice((2, 20_000)))
    steps = Steps(limits=limits)
    order = r.choice(({}, {"priority": "/p"}, {"partition_key": "/key"}))
    lease = {"lease_period": "1s"}
    drive(steps, evaluated, 0, [define(n, **WIDE, **order, **lease) for n in ("orders", "more")])
    texts = ("/k = 1", "/k <> 1", "/p > 1", None)
    flows: list[tuple[str, str]] = []
    for n in range(16):
        queue = r.choice(("orders", "more"))
        flows.append((queue, f"c{n}"))
        commands: list[Any] = [
            subscribe(f"c{n}", r.choice((1, 3, 50)), queue, filter=r.choice(texts))
        ]
        if len(flows) > 5:
            gone = flows.pop(r.randrange(5))
            commands.append(c.Unsubscribe(queue=gone[0], subscription=gone[1]))
        bodies = [
            body(k=r.randrange(3), p=r.randrange(4), key=r.choice("ab"))
            for _ in range(r.randrange(6))
        ]
        drive(steps, evaluated, 8, commands, [(r.choice(("orders", "more")), b) for b in bodies])
        steps.now += r.choice((0, 400, 1_000))
    ends = [c.Unsubscribe(queue=queue, subscription=name) for queue, name in flows]
    drive(steps, evaluated, 8, ends)
    for queue in ("orders", "more"):
        left = described(steps, queue)["depth"]
        taking = [
            subscribe(f"{queue}{i}", 1_000, queue, filter=text, acks="none")
            for i, text in enumerate(("/k = 1", "/k <> 1"))
        ]
        out, _ = drive(steps, evaluated, 2, taking)
        assert len(delivered(out)) == left
        assert described(steps, queue)["depth"] == 0


def test_F5_it_is_said_when_no_filter_matches(bench: Bench) -> None:
    """By the engine itself, so by all that show what it says."""
    bench.define(max_per_subscription_backlog=100)
    for n in range(300):
        bench.send({"n": n})
    two = [bench.consumer(filter=f"/n = {n}") for n in (1_000, 1_001)]
    assert bench.seen()["blocked"] == "no consumer's filter matches"
    assert {q["name"]: q["blocked"] for q in bench.admin.queues()}["orders"] == (
        "no consumer's filter matches"
    ), "in the list as well"
    bench.send({"n": 1_001})
    assert bench.seen()["blocked"] == "no consumer's filter matches", "the one is out"
    assert len(drain(two[1])) == 1
    everything = bench.consumer()
    assert bench.seen()["blocked"] == "every consumer's backlog is full" or drain(everything)
