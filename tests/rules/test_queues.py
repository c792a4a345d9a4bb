"""Q1 to Q4, Q6, Q7, Q9 as a user meets them. See also scenarios/expiry_and_spool.txt."""

from typing import Any

import pytest
from lakequeue.protocol.errors import ConfigError, Rejected
from rules.harness import Bench, drain, ids


def test_Q1_topic_is_a_synonym_of_name(empty: Bench) -> None:
    empty.admin.define({"topic": "orders", "message_type": "json"})
    empty.send()
    assert empty.seen()["depth"] == 1


@pytest.mark.parametrize(
    "definition",
    [
        {"message_type": "json"},
        {"name": "orders"},
        {"name": "orders", "message_type": "xml"},
        {"name": "orders", "message_type": "text", "priority": "/p"},
        {"name": "orders", "message_type": "binary", "filter": "/p = 1"},
    ],
)
def test_Q1_what_is_required(empty: Bench, definition: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        empty.admin.define(definition)


def test_Q2_the_queues_name_is_the_default(bench: Bench) -> None:
    bench.send()
    assert bench.seen()["depth"] == 1


@pytest.mark.parametrize(
    ("pattern", "topic", "taken"),
    [
        ("trades", "trades", True),
        ("trades", "trades2", False),
        ("a.b", "a.b", True),
        ("a.b", "axb", False),
        ("trades.*", "trades/eu", True),
        ("trades.*", "my-trades", False),
        ("trades/(eu|us)", "trades/eu", True),
        ("trades/(eu|us)", "trades/asia", False),
        ("trades/(eu|us)", "trades/euro", False),
        ("^trades$", "trades", True),
        ("t[0-9]+", "t42", True),
        ("t[0-9]+", "t42x", False),
        (r"a\.b", "a.b", True),
        (r"a\.b", "axb", False),
        ("a|bc", "bc", True),
        ("a|bc", "abc", False),
    ],
)
def test_Q2_which_topics_are_captured(empty: Bench, pattern: str, topic: str, taken: bool) -> None:
    targets = {"trades.*": "trades", "t[0-9]+": "t1", "trades/(eu|us)": "trades/us"}
    target = {} if pattern in ("trades", "a.b") else {"default_publish_target": topic}
    if not taken and target:
        fallback = {r"a\.b": "a.b", "a|bc": "a"}
        target = {"default_publish_target": (targets | fallback)[pattern]}
    empty.define("q", message_type="binary", underlying_topic=pattern, **target)
    empty.connection.publish_raw(topic, b"x")
    assert empty.seen("q")["depth"] == int(taken)


def test_Q2_one_message_enters_many_queues(empty: Bench) -> None:
    empty.define("one", underlying_topic="topic")
    empty.define("two", underlying_topic="topic")
    empty.define("all", underlying_topic="top.*", default_publish_target="topic")
    sent = empty.send(queue="topic")
    assert [ids(empty.admin.browse(q)) for q in ("one", "two", "all")] == [[sent]] * 3


def test_Q2_one_queue_captures_many_topics_in_order(empty: Bench) -> None:
    empty.define(
        "q", underlying_topic="t[0-9]", default_publish_target="t1", max_per_subscription_backlog=9
    )
    for topic in ("t3", "t1", "t2", "t1"):
        empty.connection.publish_raw(topic, topic.encode())
    payloads = [m.payload for m in drain(empty.consumer("q"))]
    assert payloads == [b"t3", b"t1", b"t2", b"t1"]


def test_Q2_a_plain_record_is_enough(empty: Bench) -> None:
    empty.define("q", underlying_topic="plain", filter="/n > 1")
    for n in (1, 2, 3):
        empty.connection.publish_raw("plain", b'{"n": %d}' % n, key=b"k")
    assert [m.payload for m in drain(empty.consumer("q"))] == [b'{"n": 2}']
    assert empty.seen("q")["depth"] == 2


def test_Q3_a_publish_to_the_queue_goes_to_the_target(empty: Bench) -> None:
    empty.define("q", underlying_topic="t.*", default_publish_target="t1")
    empty.define("other", underlying_topic="t1")
    sent = empty.send(queue="q")
    assert ids(empty.admin.browse("q")) == [sent]
    assert ids(empty.admin.browse("other")) == [sent]


def test_Q3_a_renamed_topic(empty: Bench) -> None:
    empty.define("q", underlying_topic="t")
    empty.send(queue="q")
    empty.send(queue="t")
    assert empty.seen("q")["depth"] == 2


@pytest.mark.parametrize(
    "keys",
    [
        {"underlying_topic": "t.*"},
        {"underlying_topic": "t.*", "default_publish_target": "x"},
        {"underlying_topic": "t", "default_publish_target": "u"},
    ],
)
def test_Q3_the_target_must_be_captured(empty: Bench, keys: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        empty.define("q", **keys)


BODY = b'{"a": {"b": 5}, "n": 2.5, "s": "it%s_", "z": null, "t": "abc"}'


@pytest.mark.parametrize(
    ("expression", "taken"),
    [
        ("/a/b = 5", True),
        ("/a/b > 5", False),
        ("/a/b >= 5 AND /n < 3", True),
        ("/a/b > 5 OR /n = 2.5", True),
        ("NOT (/a/b > 5)", True),
        ("/a/b * 2 = 10", True),
        ("/a/b + /n = 7.5", True),
        ("(/a/b - 1) / 2 = 2", True),
        ("/a/b + 2 * 3 = 11", True),
        ("/t = 'abc'", True),
        ("/t <> 'abc'", False),
        ("/t LIKE 'a%'", True),
        ("/t LIKE '_b_'", True),
        ("/t LIKE 'b%'", False),
        ("/t LIKE 'a'", False),
        ("/t NOT LIKE 'b%'", True),
        ("/a/b IN (1, 5, 9)", True),
        ("/a/b IN (1, 9)", False),
        ("/t IN ('abc', 'x')", True),
        ("/a/b NOT IN (1, 9)", True),
        ("/z IS NULL", True),
        ("/z IS NOT NULL", False),
        ("/missing IS NULL", True),
        ("/a/missing/deep IS NULL", True),
        ("/a/b IS NOT NULL", True),
        ("/missing = 1", False),
        ("/missing <> 1", False),
        ("NOT (/missing = 1)", False),
        ("/missing = 1 OR /a/b = 5", True),
        ("/missing = 1 AND /a/b = 5", False),
        ("NOT (/missing = 1 AND /a/b = 6)", True),
        ("/missing LIKE '%'", False),
        ("/missing IN (1, 2)", False),
        ("/missing + 1 > 0", False),
        ("/a/b = 5 AND /n = 2 OR /t = 'abc'", True),
    ],
)
def test_Q6_what_enters(empty: Bench, expression: str, taken: bool) -> None:
    empty.define("q", underlying_topic="t", filter=expression)
    empty.connection.publish_raw("t", BODY)
    assert empty.seen("q")["depth"] == int(taken)


@pytest.mark.parametrize("payload", [b"", b"not json", b"\xff\x00", b"[1]", b"5", b'"text"'])
def test_Q6_what_is_not_an_object_has_only_nulls(empty: Bench, payload: bytes) -> None:
    empty.define("nulls", underlying_topic="t", filter="/n IS NULL")
    empty.define("values", underlying_topic="t", filter="/n = 1 OR /n <> 1")
    empty.connection.publish_raw("t", payload)
    assert empty.seen("nulls")["depth"] == 1
    assert empty.seen("values")["depth"] == 0


@pytest.mark.parametrize(
    "keys",
    [
        {"lease_perod": "1s"},
        {"lease_period": "1 fortnight"},
        {"lease_period": "soon"},
        {"max_backlog": "many"},
        {"max_deliveries": -1},
        {"filter": "/n >"},
        {"priority": "/a +"},
        {"barrier_expression": "AND"},
        {"priority": "/p", "barrier_expression": "/b = 1"},
        {"target_queue_depth": 999},
        {"target_queue_depth": 5000, "priority": "/p"},
        {"semantics": "exactly-once"},
        {"fairness_model": "unfair"},
        {"leasing": "loose"},
        {"type": "LocalQueue", "initial_owner": "here"},
        {"type": "GroupLocalQueue"},
    ],
)
def test_Q7_is_refused_and_nothing_starts(empty: Bench, keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        empty.define(**keys)
    assert any(key in str(caught.value) for key in [*keys, "initial_owner"])
    with pytest.raises(Rejected):
        empty.send()


def test_Q7_a_refused_redefinition_changes_nothing(bench: Bench) -> None:
    bench.send()
    with pytest.raises(ConfigError):
        bench.define(max_per_subscription_backlog=1, leasing="loose")
    for _ in range(3):
        bench.send()
    assert len(drain(bench.consumer())) == 4


def test_Q9_message_type_and_type_stay(bench: Bench) -> None:
    for change in ({"message_type": "text"}, {"type": "LocalQueue"}):
        with pytest.raises(ConfigError):
            bench.define(**change)
    bench.send()
    assert bench.seen()["depth"] == 1


def test_Q9_a_key_that_is_not_named_stays(empty: Bench) -> None:
    """As with `lakequeue define`; None sets one back, and `replace` all of them."""
    empty.admin.define(
        {"topic": "orders", "message_type": "json", "max_deliveries": 5, "lease_period": "30s"}
    )

    def defined(again: dict[str, Any], **options: Any) -> tuple[Any, ...]:
        empty.admin.define({"name": "orders", **again}, **options)
        keys = ("max_deliveries", "lease_period_ms", "max_backlog")
        return tuple(empty.seen()["definition"][key] for key in keys)

    assert defined({"max_backlog": 7}) == (5, 30_000, 7)
    assert defined({"lease_period": None}) == (5, None, 7)
    assert defined({"message_type": "json", "max_backlog": 8}, replace=True) == (0, None, 8)
    with pytest.raises(ConfigError, match="message_type"):
        defined({}, replace=True)


def test_Q9_a_barrier_expression_applies_to_what_enters_later(bench: Bench) -> None:
    bench.send({"sync": 1})
    bench.define(max_per_subscription_backlog=9, barrier_expression="/sync = 1")
    bench.send({"sync": 1})
    consumer = bench.consumer()
    (first,) = drain(consumer)
    assert not first.is_barrier
    first.ack()
    (second,) = drain(consumer)
    assert second.is_barrier


def test_Q9_counters_and_messages_stay(bench: Bench) -> None:
    consumer = bench.consumer()
    for n in range(4):
        bench.send({"n": n})
    drain(consumer)[0].ack()
    before = bench.seen()
    bench.define(max_per_subscription_backlog=2, leasing="strict", max_deliveries=7)
    after = bench.seen()
    for key in ("depth", "leased", "ready", "spooled", "acknowledged"):
        assert after[key] == before[key]


def test_Q9_a_new_expiration_model_after_a_restart(bench: Bench) -> None:
    """A redefinition is state like any other."""
    bench.define(max_per_subscription_backlog=3)
    bench.engine.restart()
    for n in range(5):
        bench.send({"n": n})
    assert len(drain(bench.consumer())) == 3


@pytest.mark.parametrize("kind", ["binary", "text"])
def test_Q1_F5_a_consumer_filters_any_queue_by_what_the_record_carries(
    empty: Bench, kind: str
) -> None:
    """As a definition may: fields of the payload need json, priority and key do not."""
    empty.define(message_type=kind, max_per_subscription_backlog=10)
    urgent = empty.consumer(filter="/@priority > 4 AND @key LIKE 'a%'")
    empty.send(b"\xff1", priority=9, key="b")
    empty.send(b"\xff2", priority=9, key="ab")
    empty.send(b"\xff3", key="ab")
    assert [m.payload for m in drain(urgent)] == [b"\xff2"]
    with pytest.raises(ConfigError, match=f"needs message_type 'json', not '{kind}'"):
        empty.consumer(filter="/price > 10")
