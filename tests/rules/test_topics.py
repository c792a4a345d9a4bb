"""Topic subscriptions of queues: Q2, Q9, S1, S7. See also scenarios/topics.txt and
scenarios/engine/definitions.txt."""

from typing import Any

import lakequeue
import pytest
from lakequeue.protocol import commands as c
from lakequeue.protocol.errors import ConfigError
from lakequeue.protocol.patterns import kind_of, matches
from rules.harness import Bench
from rules.steps import define, started

MATCHES: dict[str, tuple[list[str], list[str]]] = {  # topics that match, and topics that do not
    "a/*/c": (["a/b/c"], ["a/b/b/c"]),
    "a/*": (["a/b"], ["a/b/c"]),
    "*": (["a"], ["a/b"]),
    "*/b": (["a/b"], []),
    "ab*": (["ab", "abc"], ["abc/d"]),
    "ab*/d": (["abc/d"], []),
    "a/re*/>": (["a/red/b/c"], ["a/red"]),
    ">": (["a", "a/b/c"], []),
    "a/>": (["a/b", "a/b/c"], ["a", "ab"]),
    "a.b/*": ([], ["axb/c"]),
    "orders.*": (["orders/eu/1"], []),  # a dot before the star: a regular expression
    "t[0-9]+": (["t42"], ["t42x"]),
    "a.b": (["a.b"], ["axb"]),
    "A/*": ([], ["a/b"]),
}
CASES = [(p, t, not i) for p, lists in MATCHES.items() for i in (0, 1) for t in lists[i]]


@pytest.mark.parametrize(("pattern", "topic", "taken"), CASES)
def test_Q2_what_a_subscription_matches(
    empty: Bench, pattern: str, topic: str, taken: bool
) -> None:
    assert matches(pattern, topic) is taken
    empty.define("taker")
    empty.admin.subscribe_topic("taker", pattern)
    if taken:
        assert empty.send(queue=topic) == "1"
    else:
        assert empty.refused(queue=topic) == "no_matching_destination"
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
def test_Q2_a_bad_pattern_is_refused_with_the_allowed_ones(bench: Bench, bad: Any) -> None:
    with pytest.raises(ConfigError, match="topic: "):
        bench.admin.subscribe_topic("orders", bad)
    assert bench.seen()["subscriptions"] == []


def test_Q2_the_engine_checks_patterns_itself(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="is allowed only alone, as the last level"):
        bench.connection.request(c.SubscribeTopic(queue="orders", topic="a/>/b"))


@pytest.mark.parametrize("bad", ["a/>", [7], ["a//>"], {"a": 1}])
def test_Q7_bad_initial_subscriptions_are_refused(empty: Bench, bad: Any) -> None:
    with pytest.raises(ConfigError, match="subscriptions"):
        empty.define(subscriptions=bad)


def test_S1_a_message_is_stored_once_for_all_queues(empty: Bench) -> None:
    for n in range(20):
        empty.define(f"q{n}", message_type="binary")
        empty.admin.subscribe_topic(f"q{n}", ["t", "*", ">", "t+"][n % 4])
    sent = empty.send(b"x" * 1000, "t")
    pages = empty.engine.store.pages
    assert 1000 <= sum(len(v) for k, v in pages.items() if k.startswith("b/")) < 1100
    assert all(empty.browsed(f"q{n}") == [sent] for n in range(20))


def test_S7_ended_subscriptions_leave_nothing_behind(bench: Bench) -> None:
    def pages() -> set[str]:
        return bench.engine.store.pages.keys() - {"e"}

    before = pages()
    for change in (bench.admin.subscribe_topic, bench.admin.unsubscribe_topic):
        for pattern in ("a", "a/*", "*/b", "a+", ">"):
            change("orders", pattern)
    assert pages() == before


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

    def depths() -> list[int]:
        found = [(west, "all"), (east, "flights"), (east, "more")]
        return [one.admin().describe(queue)["depth"] for one, queue in found]

    west.publish_raw("flights", b"{}")
    assert depths() == [0, 1, 1]
    east.producer().send("flights", b"{}")
    assert depths() == [0, 2, 2]
    west.producer().send("anything/at/all", b"{}")
    assert depths() == [1, 2, 2]


class Looked(list[str]):
    """A queue's topics that count their lookups; an iteration looks at all of them."""

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


def test_Q2_adding_a_topic_costs_no_scan_of_the_others() -> None:
    """Ten thousand in one step took a minute and a half."""
    steps = started(define(), checked=False)
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
