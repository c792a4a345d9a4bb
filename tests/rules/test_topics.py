"""Topic subscriptions of queues: Q2, Q9, S1, S7. See also scenarios/topics.txt."""

from typing import Any

import lakequeue
import pytest
from lakequeue.protocol import commands as c
from lakequeue.protocol.errors import ConfigError, Rejected
from lakequeue.protocol.patterns import kind_of, matches
from rules.harness import Bench, ids
from rules.steps import Steps, define


@pytest.mark.parametrize(
    ("pattern", "topic", "taken"),
    [
        ("a/*/c", "a/b/c", True),
        ("a/*/c", "a/b/b/c", False),
        ("a/*", "a/b", True),
        ("a/*", "a/b/c", False),
        ("*", "a", True),
        ("*", "a/b", False),
        ("*/b", "a/b", True),
        ("ab*", "ab", True),
        ("ab*", "abc", True),
        ("ab*", "abc/d", False),
        ("ab*/d", "abc/d", True),
        ("a/re*/>", "a/red/b/c", True),
        ("a/re*/>", "a/red", False),
        (">", "a", True),
        (">", "a/b/c", True),
        ("a/>", "a/b", True),
        ("a/>", "a/b/c", True),
        ("a/>", "a", False),
        ("a/>", "ab", False),
        ("a.b/*", "axb/c", False),
        ("orders.*", "orders/eu/1", True),  # a dot before the star: a regular expression
        ("t[0-9]+", "t42", True),
        ("t[0-9]+", "t42x", False),
        ("a.b", "a.b", True),
        ("a.b", "axb", False),
        ("A/*", "a/b", False),
    ],
)
def test_Q2_what_a_subscription_matches(
    empty: Bench, pattern: str, topic: str, taken: bool
) -> None:
    assert matches(pattern, topic) is taken
    empty.define("taker")
    empty.admin.subscribe_topic("taker", pattern)
    if taken:
        assert empty.send(queue=topic) == "1"
    else:
        with pytest.raises(Rejected):
            empty.send(queue=topic)
    assert empty.seen("taker")["depth"] == int(taken)


@pytest.mark.parametrize(
    ("pattern", "kind"),
    [
        ("a/b", "topic"), ("a.b", "topic"), ("a/*", "wildcard"), ("x*/y*", "wildcard"),
        (">", "wildcard"), ("a/.*", "regex"), ("a.*", "regex"), ("^a$", "regex"),
        ("a/*/[bc]", "regex"), ("(?P<x>a)>", "regex"),
    ],
)  # fmt: skip
def test_Q2_which_kind_a_pattern_is(pattern: str, kind: str) -> None:
    assert kind_of(pattern) == kind


@pytest.mark.parametrize(
    "bad",
    ["", " ", "a*b/c", "*a", "a/**", "a/>/c", "a>", "a/b>", "a//*", "/*", "(a", "[z-a]",
     "x" * 1001, "a\nb", "/".join("a" * 128) + "/>", None, 7],
)  # fmt: skip
def test_Q2_a_bad_pattern_is_refused_and_the_allowed_ones_are_named(empty: Bench, bad: Any) -> None:
    empty.define()
    with pytest.raises(ConfigError, match="topic: "):
        empty.admin.subscribe_topic("orders", bad)
    assert empty.seen()["subscriptions"] == []


def test_Q2_the_engine_refuses_what_no_client_checked(empty: Bench) -> None:
    from lakequeue.protocol import commands

    empty.define()
    with pytest.raises(ConfigError, match="is allowed only alone, as the last level"):
        empty.connection.request(commands.SubscribeTopic(queue="orders", topic="a/>/b"))
    with pytest.raises(ConfigError, match="no such queue"):
        empty.admin.subscribe_topic("nowhere", "a/>")


def test_Q2_describe_shows_them_and_events_tell_of_them(empty: Bench) -> None:
    empty.define()
    assert empty.admin.subscribe_topic("orders", "b/>") is True
    assert empty.admin.subscribe_topic("orders", "a/*") is True
    assert empty.admin.subscribe_topic("orders", "b/>") is False
    assert empty.seen()["subscriptions"] == ["a/*", "b/>"]
    empty.admin.unsubscribe_topic("orders", "b/>")
    assert empty.seen()["subscriptions"] == ["a/*"]
    told = [(e["event"], e.get("topic")) for e in empty.admin.events()]
    assert told[1:] == [
        ("topic_subscribed", "b/>"), ("topic_subscribed", "a/*"), ("topic_unsubscribed", "b/>"),
    ]  # fmt: skip


def test_Q2_ending_what_is_not_there_is_an_error_that_names_what_is(empty: Bench) -> None:
    empty.define()
    empty.admin.subscribe_topic("orders", "a/*")
    with pytest.raises(ConfigError, match=r"'a/>' – queue 'orders' does not .* it has: 'a/\*'"):
        empty.admin.unsubscribe_topic("orders", "a/>")


@pytest.mark.parametrize("bad", ["a/>", [7], ["a//>"], {"a": 1}])
def test_Q7_bad_initial_ones_are_refused(empty: Bench, bad: Any) -> None:
    with pytest.raises(ConfigError, match="subscriptions"):
        empty.define(subscriptions=bad)


def test_Q9_a_redefinition_changes_its_own_ones_only(empty: Bench) -> None:
    empty.define(subscriptions=["a", "b"])
    empty.admin.subscribe_topic("orders", "runtime")
    empty.admin.unsubscribe_topic("orders", "a")
    empty.define(subscriptions=["a", "b"])  # the same again changes nothing
    assert empty.seen()["subscriptions"] == ["b", "runtime"]
    empty.define(subscriptions=["a", "c"])
    assert empty.seen()["subscriptions"] == ["c", "runtime"]


def test_Q9_another_key_changed_leaves_them_alone(empty: Bench) -> None:
    empty.define(subscriptions=["a"])
    empty.admin.unsubscribe_topic("orders", "a")
    empty.define(subscriptions=["a"], max_backlog=7)
    assert empty.seen()["subscriptions"] == []


def test_S1_the_message_is_stored_once_for_all(empty: Bench) -> None:
    for n in range(20):
        empty.define(f"q{n}", message_type="binary")
        empty.admin.subscribe_topic(f"q{n}", ["t", "*", ">", "t+"][n % 4])
    sent = empty.send(b"x" * 1000, "t")
    pages = empty.engine.store.pages
    assert 1000 <= sum(len(v) for k, v in pages.items() if k.startswith("b/")) < 1100
    assert all(ids(empty.admin.browse(f"q{n}")) == [sent] for n in range(20))


def test_S7_subscriptions_that_end_leave_nothing_behind(empty: Bench) -> None:
    empty.define()
    before = {k for k in empty.engine.store.pages if k != "e"}
    for pattern in ("a", "a/*", "*/b", "a+", ">"):
        empty.admin.subscribe_topic("orders", pattern)
    for pattern in ("a", "a/*", "*/b", "a+", ">"):
        empty.admin.unsubscribe_topic("orders", pattern)
    assert {k for k in empty.engine.store.pages if k != "e"} == before


def test_Q2_a_wildcard_takes_no_plain_records_of_another_vpn() -> None:
    queues = [
        {"name": "flights", "message_type": "json", "vpn": "east"},
        {"name": "all", "message_type": "json", "vpn": "west", "subscriptions": [">"]},
        {"name": "more", "message_type": "json", "vpn": "east", "subscriptions": ["fl*"]},
    ]
    config = {"vpns": {"east": {}, "west": {}}, "queues": queues}
    west = lakequeue.connect("memory://topics-of-vpns", vpn="west", config=config)
    east = lakequeue.connect("memory://topics-of-vpns", vpn="east")
    west.engine.checking = True
    west.publish_raw("flights", b"{}")
    assert west.admin().describe("all")["depth"] == 0
    assert east.admin().describe("flights")["depth"] == 1
    assert east.admin().describe("more")["depth"] == 1
    east.producer().send("flights", b"{}")
    assert west.admin().describe("all")["depth"] == 0
    west.producer().send("anything/at/all", b"{}")
    assert west.admin().describe("all")["depth"] == 1


class Looked(list[str]):
    """Topics of a queue, and how many were looked at; who goes through them looks at all."""

    looks = 0

    def __getitem__(self, at: Any) -> Any:
        self.looks += 1
        return super().__getitem__(at)

    def __iter__(self) -> Any:
        self.looks += len(self)
        return super().__iter__()

    def __contains__(self, topic: object) -> bool:
        self.looks += len(self)
        return super().__contains__(topic)


def test_Q2_a_topic_more_costs_no_look_at_the_others() -> None:
    """Ten thousand in one step took a minute and a half."""
    steps = Steps(checked=False)
    steps.run([define()])
    queue = steps.broker.find("default", "orders")
    assert queue is not None
    queue.header.topics = topics = Looked(f"t/{n:04}" for n in range(0, 8_000, 2))
    some = [f"t/{n:04}" for n in range(1, 200, 2)]
    steps.run([c.SubscribeTopic(queue="orders", topic=topic) for topic in some])
    assert (len(topics), list.__contains__(topics, "t/0199")) == (4_100, True)
    steps.run([c.UnsubscribeTopic(queue="orders", topic=topic) for topic in some])
    assert queue.header.topics is topics
    assert len(topics) == 4_000
    assert topics.looks < 200 * 50
