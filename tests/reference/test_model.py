"""The model itself, rule by rule, in its own words; and the scenarios, with the model as engine."""

from typing import Any

import pytest
from reference import twin
from reference.expressions import BadExpressionError, evaluate, fields_of
from reference.model import Model, Refused, Subscription, milliseconds, size_bytes, unsigned
from rules.scenario import Runner, Scenario, load

SCENARIOS = load()


def model(**keys: Any) -> Model:
    made = Model()
    made.define({"name": "q", "message_type": "json", "max_per_subscription_backlog": 9} | keys)
    return made


def send(made: Model, *bodies: str, **options: Any) -> list[int | None]:
    return [made.publish("q", body.encode(), **options) for body in bodies]


def got(subscription: Subscription) -> list[int]:
    ids = [d.id for d in subscription.inbox]
    subscription.inbox.clear()
    return ids


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[s.name for s in SCENARIOS])
def test_scenario_on_the_model(scenario: Scenario) -> None:
    Runner(twin.connect()).run(scenario)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("500ms", 500), ("30s", 30_000), ("15m", 900_000), ("2h", 7_200_000), (1.5, 1500)],
)
def test_Q8_durations(text: str | float, expected: int) -> None:
    assert milliseconds(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("64KB", 64_000), ("1MiB", 1_048_576), (7, 7), ("5GB", 5 * 10**9)]
)
def test_Q8_sizes(text: str | int, expected: int) -> None:
    assert size_bytes(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/a + 2 * 3", 11),
        ("(/a + 2) * 3", 21),
        ("/a = 5 AND /b = 'x'", True),
        ("/none = 1 OR /a = 5", True),
        ("/none = 1 AND /a = 5", None),
        ("/none = 1 AND /a = 4", False),
        ("NOT /none = 1", None),
        ("/b LIKE '_'", True),
        ("/b NOT IN ('y', /none)", None),
        ("/b IN ('x', /none)", True),
        ("/a / 0", None),
        ("-/a", -5),
    ],
)
def test_Q6_values(text: str, expected: Any) -> None:
    assert evaluate(text, fields_of({"a": 5, "b": "x"})) == expected


@pytest.mark.parametrize("text", ["", "/a =", "AND", "/a = 1 2", "(/a", "/a LIKE", "/a NOT 5", "#"])
def test_Q6_mistakes(text: str) -> None:
    with pytest.raises(BadExpressionError):
        evaluate(text, lambda _: 1)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(7.9, 7), (-1, 0), (None, 0), ("7", 0), (True, 0), (2**70, 2**64 - 1), (1e300, 2**64 - 1)],
)
def test_O2_unsigned(value: Any, expected: int) -> None:
    assert unsigned(value) == expected


def test_L4_L5_leases_end_one_by_one() -> None:
    made = model(lease_period="1s", max_deliveries=3)
    flow = made.subscribe("q", "a")
    send(made, "{}")
    made.advance("10s")
    assert [d.count for d in flow.inbox] == [1, 2, 3]
    assert made.describe("q")["expired"] == 1
    made.check()


def test_L7_entries_keep_their_place() -> None:
    made = model()
    flow = made.subscribe("q", "a", backlog=2)
    send(made, "{}", "{}", "{}")
    made.unsubscribe(flow)
    assert got(made.subscribe("q", "b", backlog=3)) == [1, 2, 3]


def test_L8_strict() -> None:
    made = model(leasing="strict")
    made.subscribe("q", "a")
    other = made.subscribe("q", "b")
    send(made, "{}")
    made.acknowledge(other, [1])
    assert made.describe("q")["depth"] == 1


def test_L9_early() -> None:
    made = model()
    flow = made.subscribe("q", "a")
    made.acknowledge(flow, [1, 2])
    send(made, "{}", "{}", "{}")
    assert got(flow) == [3]
    assert made.describe("q")["acknowledged"] == 2


def test_B1_B2() -> None:
    made = model(max_backlog=3)
    flows = [made.subscribe("q", name, backlog=2) for name in "ab"]
    send(made, *["{}"] * 5)
    assert [got(flow) for flow in flows] == [[1, 3], [2]]


@pytest.mark.parametrize(
    ("fairness", "expected"),
    [
        ("fast", [[1, 2, 3, 4], [5]]),
        ("round-robin", [[1, 3, 5], [2, 4]]),
        ("proportional", [[1, 3, 4], [2, 5]]),
    ],
)
def test_F1_F2_F3(fairness: str, expected: list[list[int]]) -> None:
    """Proportional, 4 and 2: 0/4 0/2 a, 1/4 0/2 b, 1/4 1/2 a, 2/4 1/2 a, 3/4 1/2 b."""
    made = model(fairness_model=fairness)
    flows = [made.subscribe("q", "a", backlog=4), made.subscribe("q", "b", backlog=2)]
    send(made, *["{}"] * 5)
    assert [got(flow) for flow in flows] == expected


def test_O3_barrier() -> None:
    made = model(barrier_expression="/b = 1")
    flows = [made.subscribe("q", name) for name in "ab"]
    send(made, "{}", '{"b": 1}', "{}")
    assert [got(flow) for flow in flows] == [[1], []]
    made.acknowledge(flows[1], [1])
    assert [got(flow) for flow in flows] == [[2, 3], [2]]


def test_X5_dead() -> None:
    made = model(dead_message_queue="dead")
    made.define({"name": "dead", "message_type": "json"})
    send(made, "{}", ttl="1s")
    made.advance("1h")
    assert made.browse("dead") == [1]
    assert made.queues["dead"].entries[0].headers["lq-dead-reason"] == "expired"


def test_S5_all_or_none() -> None:
    made = model()
    small = {"name": "small", "message_type": "json", "underlying_topic": "q"}
    made.define(small | {"max_message_size": 1})
    with pytest.raises(Refused) as caught:
        send(made, "{}")
    assert (caught.value.reason, caught.value.queue) == ("message_too_large", "small")
    assert made.describe("q")["spooled"] == 0
    assert made.ids == 0
