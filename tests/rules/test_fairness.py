"""The order of consumers is kept up to date (F1–F5, B2, B3). Walks compare it with the rules,
evaluated for each message over all subscriptions."""

import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from lakequeue.definitions import QueueDefinition, parse_definition
from lakequeue.protocol import commands as c
from lakequeue.protocol.outputs import Deliveries
from lakequeue.state import Batch, Limits
from lakequeue.state.queue.consumers import Consumers
from lakequeue.state.queue.header import Subscription

from . import steps as tools
from .steps import delivered, of, started, subscribe

FILTERS = (None, None, "/a > 1", "/b = 2")
MODELS = ("fast", "round-robin", "proportional")


def define(model: str, **keys: Any) -> QueueDefinition:
    usual = {"name": "q", "message_type": "json", "fairness_model": model}
    return parse_definition(usual | {"max_per_subscription_backlog": 4} | keys)


class Naive:
    """A subscription's messages and room, as messages are given out."""

    def __init__(self, definition: QueueDefinition, one: Subscription) -> None:
        self.one, self.held, self.number = one, one.held, one.number
        own = 1 if one.max_backlog is None else one.max_backlog
        self.backlog = min(own, definition.max_per_subscription_backlog)
        self.free = one.removes_on_send or definition.semantics == "at-most-once"

    def can_take(self) -> bool:
        waits = self.one.ending or self.one.again or not self.backlog
        return not waits and (self.free or self.held < self.backlog)

    def place(self, model: str, served: int) -> tuple[Any, ...]:
        if model == "fast":
            return -self.one.priority, self.number
        if model == "round-robin":
            return self.number <= served, self.number
        return Fraction(self.held, self.backlog), self.number


def in_turn(model: str, able: list[Naive], served: int, messages: int) -> list[int]:
    """The receivers of so many messages, one after the other."""
    found: list[int] = []
    while len(found) < messages:
        one = min((n for n in able if n.can_take()), key=lambda n: n.place(model, served))
        one.held += not one.free
        served = one.number
        found.append(served)
    return found


class Walk:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.definition = define(self.random.choice(MODELS))
        self.listed: list[Subscription] = []
        self.consumers = Consumers(self.listed)
        self.next = 1

    def change(self) -> None:
        """One change between two deliveries, made as the modules of `state` make it."""
        r = self.random
        if not self.listed or r.random() < 0.2:
            return self.subscribe()
        one, what = r.choice(self.listed), r.randrange(9)
        if what < 3:  # a delivery, or an administrator's move past the limit
            one.held += r.randrange(1, 3)
        elif what < 6:
            one.held -= r.randrange(one.held + 1)
        elif what == 6:
            one.max_backlog = r.choice((None, 0, 1, 2, 3, 9))
        elif what == 7:
            one.again = [] if one.again else [[1, 2]]
        elif r.random() < 0.5:
            one.ending = "closed"
        else:
            return self.consumers.remove(one)
        return self.consumers.changed(one)

    def subscribe(self) -> None:
        r = self.random
        self.consumers.add(
            Subscription(
                id=f"s{self.next}", number=self.next, name="", session="", topic="", partition=0,
                framing="", removes_on_send=r.random() < 0.2, filter=r.choice(FILTERS),
                max_backlog=r.choice((None, 0, 1, 2, 3, 9)), priority=r.choice((0, 0, 3)),
            )
        )  # fmt: skip
        self.next += 1

    def redefine(self) -> None:
        model = self.random.choice(MODELS)
        once = model != "proportional" and self.random.random() < 0.5
        semantics = "at-most-once" if once else "at-least-once"
        most = self.random.choice((1, 3, 5))
        self.definition = define(model, semantics=semantics, max_per_subscription_backlog=most)

    def naive(self, fits: Callable[[Naive], bool] = lambda one: True) -> list[Naive]:
        made = [Naive(self.definition, one) for one in self.listed]
        return [one for one in made if one.can_take() and fits(one)]

    def compare(self) -> None:
        model, order = self.definition.fairness_model, self.consumers.order(self.definition)
        kinds = {(one.one.filter, one.free) for one in self.naive()}
        assert set(order.kinds) == kinds
        spare: dict[str | None, int] = {}
        for one in (Naive(self.definition, each) for each in self.listed if not each.ending):
            more = max(one.backlog - one.held, 0)
            spare[one.one.filter] = spare.get(one.one.filter, 0) + more
        assert list(self.consumers.spare(self.definition).items()) == list(spare.items())
        served = self.random.randrange(self.next + 1)
        for key, kind in order.kinds.items():
            able = self.naive(lambda one, key=key: (one.one.filter, one.free) == key)  # type: ignore[misc]
            assert kind.numbers == [one.number for one in able]
            if not kind.free:
                assert kind.room == sum(one.backlog - one.held for one in able)
            messages = min(self.random.randrange(12), kind.room)
            shared = [one.number for one in order.share(kind, messages, served)]
            assert shared == in_turn(model, able, served, messages)

    def give_one_by_one(self) -> None:
        """Messages for any kind, which are not delivered in the end."""
        model, order = self.definition.fairness_model, self.consumers.order(self.definition)
        able, served = self.naive(), self.random.randrange(self.next + 1)
        for _ in range(self.random.randrange(6)):
            if not order.kinds:
                return
            (number,) = in_turn(model, [one for one in able if one.can_take()], served, 1)
            one = order.choose(list(order.kinds.values()), served)
            assert one.number == number
            if not one.free:
                order.place(one, one.backlog, one.held + 1, one.room - 1)
                self.consumers.changed(one.subscription)
            served = number


@pytest.mark.parametrize("seed", range(40))
def test_F1_F2_F3_F5_the_order_follows_every_change(seed: int) -> None:
    walk = Walk(seed)
    for at in range(120):
        walk.change()
        if at % 25 == 24:
            walk.redefine()
        walk.compare()
        walk.give_one_by_one()


def test_C2_unconfirmed_deliveries_are_repeated_in_time() -> None:
    """However often flows are confirmed, sent or settled, and whenever they are checked."""
    r = random.Random(5)
    walk = Walk(5)
    for _ in range(6):
        walk.subscribe()
    for now in range(3_000):
        one = r.choice(walk.listed)
        match r.randrange(5):
            case 0:
                one.held, one.patience = 1, r.choice((5, 9, 40))
                one.unconfirmed.append([1, now, 1, 1])
            case 1:
                one.unconfirmed = one.unconfirmed[1:]
            case 2:
                one.held = 0
            case 3 if one.unconfirmed:
                one.again = [[1, 1]]
            case 4:
                for due in walk.consumers.send_again(now):
                    assert due.again_at() <= now
                    due.again, due.unconfirmed = [], []
                assert all(one.again_at() > now for one in walk.listed)
        walk.consumers.watch(one)
        assert walk.consumers.again_at() == min(one.again_at() for one in walk.listed)


# ---------------------------------------------------------------- changes within a step


def test_L1_a_closing_subscription_gets_no_more_messages() -> None:
    queue, limits = tools.define(**NINE), Limits(bulk_rows=1, command_rows=1, beside=1)
    steps = started(queue, subscribe("a", 9), limits=limits)
    steps.run(publishes=[("orders", b"{}")] * 3)
    ends = [c.Purge(queue="orders", where="/n = 1"), END_OF_A]
    publishes = steps.publish_records([("orders", b"{}")])
    said = steps.step(Batch(steps.command_records(ends), publishes))
    assert steps.broker.find("default", "orders").subscription("a").ending  # type: ignore[union-attr]
    assert not delivered(said)
    steps.run()
    assert delivered(steps.run([subscribe("b", 9)])) == [1, 2, 3, 4]


NINE = {"max_per_subscription_backlog": 9}
END_OF_A = c.Unsubscribe(queue="orders", subscription="a")
FLOWS = [subscribe(name, 9, transport_acks=True, filter=f"/to = '{name}'") for name in "ab"]
TO_A, TO_B = ("orders", b'{"to": "a"}'), ("orders", b'{"to": "b"}')


def test_C2_a_client_that_confirms_sooner_gets_repetitions_sooner() -> None:
    steps = started(tools.define(**NINE), *FLOWS)
    steps.run(publishes=[TO_A])
    assert delivered(steps.tick(2_000)) == [1]  # from here on the wait is 4 s
    for sent in (TO_A, TO_B):  # the time of the second comes before the end of a wait of 4 s
        steps.now += 100
        steps.run(publishes=[sent])
    steps.run([c.TransportAck(queue="orders", subscription="a", received=2)])
    assert not delivered(steps.tick(1_899))
    assert delivered(steps.tick(1)) == [2]


def test_C2_without_budget_a_repetition_comes_in_the_next_step() -> None:
    steps = started(tools.define(**NINE), *FLOWS, limits=Limits(again_rows=2))
    steps.run(publishes=[TO_A, TO_A, TO_B, TO_B])
    steps.now += 2_000
    assert [delivered(steps.step(Batch())) for _ in range(2)] == [[1, 2], [3, 4]]


def test_F5_the_consumer_chosen_for_an_oversized_message_gets_the_next_one() -> None:
    """With filters, messages are given out one by one before they are examined."""
    steps = started(tools.define())
    steps.run(publishes=[("orders", tools.body(x="x" * 2_000)), ("orders", b"{}")])
    steps.limits = Limits(message_bytes=1_000)
    steps.restart()
    out = steps.run([subscribe("f", 1, filter="/a = 1"), subscribe("s", 1)])
    assert [(one.subscription, one.ids) for one in of(Deliveries, out)] == [("s", [2])]
