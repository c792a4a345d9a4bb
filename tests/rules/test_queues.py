"""Q1 to Q4, Q6, Q7, Q9 from a user's view. See also scenarios/expiry_and_spool.txt."""

import re

import pytest
from lakequeue.protocol.errors import ConfigError
from rules.harness import Bench, drain


@pytest.mark.parametrize(
    ("pattern", "target", "topic", "taken"),
    [
        ("trades", None, "trades", True),
        ("trades", None, "trades2", False),
        ("a.b", None, "a.b", True),
        ("a.b", None, "axb", False),
        ("trades.*", "trades", "trades/eu", True),
        ("trades.*", "trades", "my-trades", False),
        ("trades/(eu|us)", "trades/us", "trades/eu", True),
        ("trades/(eu|us)", "trades/us", "trades/asia", False),
        ("trades/(eu|us)", "trades/us", "trades/euro", False),
        ("^trades$", "trades", "trades", True),
        ("t[0-9]+", "t1", "t42", True),
        ("t[0-9]+", "t1", "t42x", False),
        (r"a\.b", "a.b", "a.b", True),
        (r"a\.b", "a.b", "axb", False),
        ("a|bc", "a", "bc", True),
        ("a|bc", "a", "abc", False),
    ],
)
def test_Q2_which_topics_are_captured(
    empty: Bench, pattern: str, target: str | None, topic: str, taken: bool
) -> None:
    empty.define(message_type="text", underlying_topic=pattern, default_publish_target=target)
    empty.plain(topic, b"x")
    assert empty.seen()["depth"] == int(taken)


def test_Q2_a_plain_record_is_enough(empty: Bench) -> None:
    empty.define("q", underlying_topic="plain", filter="/n > 1")
    empty.plain("plain", b'{"n": 1}', b'{"n": 2}', b'{"n": 3}', key=b"k")
    assert [m.payload for m in drain(empty.consumer("q"))] == [b'{"n": 2}']
    assert empty.seen("q")["depth"] == 2


@pytest.mark.parametrize("kind", ["binary", "text"])
def test_Q1_F5_a_consumer_filters_any_queue_by_record_fields(empty: Bench, kind: str) -> None:
    """As in a definition: fields of the payload need json, priority and key do not."""
    empty.define(message_type=kind, max_per_subscription_backlog=10)
    urgent = empty.consumer(filter="/@priority > 4 AND @key LIKE 'a%'")
    empty.send(b"\xff1", priority=9, key="b")
    empty.send(b"\xff2", priority=9, key="ab")
    empty.send(b"\xff3", key="ab")
    assert [m.payload for m in drain(urgent)] == [b"\xff2"]
    with pytest.raises(ConfigError, match=f"needs message_type 'json', not '{kind}'") as refused:
        empty.consumer(filter="/price > 10")
    for allowed in re.findall(r"/@\w+", str(refused.value)):
        empty.consumer(filter=f"{allowed} = 'a'")
    assert str(refused.value).endswith("allowed are /@priority and /@key")
