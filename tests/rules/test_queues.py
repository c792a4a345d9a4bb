"""Q1 to Q4, Q6, Q7, Q9 as a user meets them. See also scenarios/expiry_and_spool.txt."""

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
