"""Filters have a budget (F5): however many messages become ready at once, no step evaluates more,
and no message is skipped."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from lakequeue.expressions import compile_program
from lakequeue.protocol import commands as c
from lakequeue.state import Batch, Limits
from lakequeue.state.rules import filter_matching
from rules.harness import Bench, drain
from rules.steps import WIDE, Steps, body, define, delivered, described, started, subscribe

LOOKS = 7
NO_MATCH = "no consumer's filter matches"
Evaluated = Callable[[], int]


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> Evaluated:
    """The number of messages examined since the last call."""
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


class Budgeted(Steps):
    """No step examines more than its budget; only one message's filter texts may overdraw it."""

    def __init__(self, evaluated: Evaluated, limits: Limits, texts: int) -> None:
        super().__init__(limits=limits)
        self.evaluated, self.texts, self.looked = evaluated, texts, 0

    def step(self, batch: Batch) -> list[Any]:
        self.evaluated()
        said = self.step_alone(batch)
        found = self.evaluated()
        assert found <= self.limits.looks + self.texts - 1, f"{found} examined in one step"
        self.looked += found
        self.check()
        return said


@pytest.mark.parametrize("order", [{}, {"priority": "/p"}], ids=["plain", "priority"])
def test_F5_many_newly_ready_messages_are_searched_over_several_steps(
    evaluated: Evaluated, order: dict[str, str]
) -> None:
    steps = Budgeted(evaluated, Limits(looks=LOOKS), texts=2)
    steps.run([define(**WIDE, **order), subscribe("all", 300)])
    bodies = [{"k": i % 3, "p": i % 4} for i in range(300)]
    held = delivered(steps.run(publishes=[("orders", body(**b)) for b in bodies]), "all")
    assert len(held) == 300
    steps.run([subscribe("f", 500, filter="/k = 1"), subscribe("g", 500, filter="/k = 2")])
    out = steps.run(publishes=[("orders", body(k=k, p=0)) for k in (1, 2)])
    # both have examined all
    assert (delivered(out, "f"), delivered(out, "g")) == ([301], [302])
    steps.looked = 0
    out = steps.run([c.Unsubscribe(queue="orders", subscription="all")])
    for name, k in (("f", 1), ("g", 2)):
        assert delivered(out, name) == [n for n in held if bodies[n - 1]["k"] == k]
    assert 600 - 2 * 100 <= steps.looked <= 600  # once each, except those that the other one took
    assert described(steps)["ready"] == 100


def test_F5_without_room_no_message_is_searched(evaluated: Evaluated) -> None:
    steps = Budgeted(evaluated, Limits(looks=LOOKS), texts=1)
    steps.run([define(**WIDE), subscribe("f", 1, filter="/k = 1")])
    steps.run(publishes=[("orders", body(k=1))])
    steps.looked = 0
    steps.run(publishes=[("orders", body(k=1))] * 50)
    assert steps.looked == 0
    out = steps.run([c.Ack(queue="orders", subscription="f", ids="1")])
    assert (delivered(out), steps.looked <= LOOKS) == ([2], True)


@pytest.mark.parametrize("seed", range(6))
def test_F5_O1_with_any_budget_every_message_finds_its_consumer(
    evaluated: Evaluated, seed: int
) -> None:
    """Leases end, consumers come and go, filters overlap, two queues share the budget."""
    r = random.Random(seed)
    limits = Limits(looks=r.choice((1, 2, 5)), delivery_rows=r.choice((2, 20_000)))
    steps = Budgeted(evaluated, limits, texts=8)
    keys = WIDE | r.choice(({}, {"priority": "/p"}, {"partition_key": "/key"}))
    queues = ("orders", "more")
    steps.run([define(name, **keys, lease_period="1s") for name in queues])
    texts = ("/k = 1", "/k <> 1", "/p > 1", None)
    flows: list[c.Unsubscribe] = []
    for n in range(16):
        queue = r.choice(queues)
        commands = [subscribe(f"c{n}", r.choice((1, 3, 50)), queue, filter=r.choice(texts))]
        flows.append(c.Unsubscribe(queue=queue, subscription=f"c{n}"))
        if len(flows) > 5:
            commands.append(flows.pop(r.randrange(5)))
        bodies = [
            body(k=r.randrange(3), p=r.randrange(4), key=r.choice("ab"))
            for _ in range(r.randrange(6))
        ]
        steps.run(commands, [(r.choice(queues), b) for b in bodies])
        steps.now += r.choice((0, 400, 1_000))
    steps.run([*flows])
    for queue in queues:
        left = described(steps, queue)["depth"]
        taking = [
            subscribe(f"{queue}{i}", 1_000, queue, filter=text, acks="none")
            for i, text in enumerate(("/k = 1", "/k <> 1"))
        ]
        assert len(delivered(steps.run(taking))) == left
        assert described(steps, queue)["depth"] == 0


def test_F5_describe_shows_when_no_filter_matches(bench: Bench) -> None:
    """The engine itself computes this, so every view shows it."""
    for n in range(300):
        bench.send({"n": n})
    two = [bench.consumer(filter=f"/n = {n}") for n in (1_000, 1_001)]
    assert bench.seen()["blocked"] == NO_MATCH
    assert [q["blocked"] for q in bench.admin.queues()] == [NO_MATCH], "in the list as well"
    bench.send({"n": 1_001})
    assert bench.seen()["blocked"] == NO_MATCH, "the only match is delivered already"
    assert len(drain(two[1])) == 1
    everything = bench.consumer()
    assert bench.seen()["blocked"] == "every consumer's backlog is full" or drain(everything)


def test_F5_filters_of_consumers_that_left_are_forgotten() -> None:
    """A consumer that comes and goes all day, each time with its filter, leaves nothing behind in
    the segments that it searched."""
    steps = Steps(limits=Limits(live_rows=8, segment_rows=8))
    steps.run([define(**WIDE)], [("orders", body(k=1))] * 80)
    (queue,) = steps.broker.queues.values()
    sizes = []
    for n in range(12):
        steps.run([subscribe(f"s{n}", filter="/k = 2")])
        assert {len(segment.looked) for segment in queue.cold.segments()} == {1}
        steps.run([c.Unsubscribe(queue="orders", subscription=f"s{n}")])
        sizes.append(len(steps.marked()["q/1"]))
    assert max(sizes) - min(sizes) < 20


def test_F5_each_filter_of_a_queue_is_compiled_once() -> None:
    assert compile_program.cache_parameters()["maxsize"] >= Limits().subscriptions


def test_O1_F5_the_order_holds_wherever_the_budget_ends() -> None:
    """A returned message that matches is live, an earlier one in a segment not searched yet."""
    for looks in range(1, 60):
        steps = Steps(limits=Limits(live_rows=8, segment_rows=8, looks=looks))
        steps.run([define(**WIDE)], [("orders", body(n=n)) for n in range(1, 41)])
        assert delivered(steps.run([subscribe("a", filter="/n = 35")])) == [35]
        steps.run([c.Unsubscribe(queue="orders", subscription="a")])
        out = steps.run([subscribe("b", 3, filter="/n > 33")])
        assert delivered(out) == [34, 35, 36], f"{looks} looks"


def test_F5_a_full_consumer_keeps_no_memory_of_what_others_received() -> None:
    steps = started(define(**WIDE), subscribe("a"), subscribe("full", 0, filter="/n > 0"))
    (queue,) = steps.broker.queues.values()
    for _ in range(20):
        held = delivered(steps.run(publishes=[("orders", body(n=1))] * 50))
        steps.run([c.Ack(queue="orders", subscription="a", ids=f"{held[0]}-{held[-1]}")])
    assert len(queue.view_of("/n > 0").unseen) < 300
