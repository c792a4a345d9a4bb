"""Q1 to Q4, Q6, Q7, Q9 as a user meets them. See also scenarios/expiry_and_spool.txt."""

from typing import Any

import pytest
from lakequeue.protocol.errors import ConfigError
from rules.harness import Bench, drain, ids


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


def test_Q7_a_refused_redefinition_changes_nothing(bench: Bench) -> None:
    bench.send()
    with pytest.raises(ConfigError):
        bench.define(max_per_subscription_backlog=1, leasing="loose")
    for _ in range(3):
        bench.send()
    assert len(drain(bench.consumer())) == 4


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
