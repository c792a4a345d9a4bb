"""Definitions of bridges (H1, Q7): changes, deletion; what is wrong is a sentence and
changes nothing."""

from typing import Any

import pytest
from lakequeue.definitions import parse_configuration
from lakequeue.definitions.bridge import overlap
from lakequeue.protocol import ConfigError, Rejected

from .two_homes import BRIDGE, Two


@pytest.fixture
def two() -> Two:
    return Two()


def test_h1_a_deleted_bridge_is_gone_with_what_waits(two: Two) -> None:
    two.send("a/b", "waits")
    two.cut()
    two.send("a/c", "on its way")
    assert two.east is not None
    assert two.west.admin().delete_bridge("west-east") == 2
    assert two.west.admin().bridges() == []
    two.west.admin().bridge(BRIDGE)
    two.mend()
    two.define("q", "a/>")
    two.advance("1m")
    assert (two.seen()["waiting"], two.seen()["on_its_way"]) == (0, 0)
    assert two.depth("q") == 0


def test_h1_a_bridge_may_be_defined_again(two: Two) -> None:
    two.define("q", ">")
    two.west.admin().bridge(BRIDGE)
    two.west.admin().bridge(BRIDGE | {"subscriptions": ["b/>"], "lanes": "none"})
    two.send("b/1", "x")
    assert two.bodies("q") == ["x"]
    with pytest.raises(Rejected, match="no_matching_destination"):
        two.send("a/1", "y")
    assert (two.seen()["lanes"], two.seen()["taken"]) == ("none", 1)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"to": "west"}, "to: 'west' – is the broker where it begins"),
        ({"to": "north"}, "to: 'north' – must be a broker of this home, which has 'west'"),
        ({"from": "north"}, "from: 'north' – must be a broker of this home"),
        ({"lanes": "many"}, "lanes: 'many' – must be one of per-destination, none"),
        ({"colour": 1}, "colour: 1 – "),
        ({"subscriptions": []}, "must be a list of one or more topics"),
        ({"subscriptions": ["a*b/c"]}, "'\\*' is allowed only at the end of a level"),
        ({"name": None}, "name: None – is required"),
        ({"vpn": "other"}, "vpn: 'other' – allowed is 'default', the VPN of this connection"),
    ],
)
def test_h1_a_wrong_bridge_is_a_sentence_and_changes_nothing(
    changes: dict[str, Any], why: str
) -> None:
    admin = Two().west.admin()
    before = admin.bridges()
    with pytest.raises(ConfigError, match=why):
        admin.bridge(BRIDGE | {"name": "other"} | changes)
    assert admin.bridges() == before


def test_h1_endpoints_of_bridges_are_the_engines_own(two: Two) -> None:
    admin = two.west.admin()
    for call in (
        lambda: two.west.consumer("#bridge/west-east"),
        lambda: admin.delete("#bridge/west-east"),
        lambda: admin.subscribe_topic("#bridge/west-east", "c"),
    ):
        with pytest.raises(ConfigError, match="is the endpoint of a bridge"):
            call()
    with pytest.raises(ConfigError, match="must not begin with '#bridge/'"):
        admin.define({"name": "#bridge/x", "message_type": "json"})
    for to in ("#bridge/west-east", "#queue/#bridge/west-east"):
        with pytest.raises(Rejected, match="no_matching_destination"):
            two.send(to, "x")
    admin.define({"name": "near", "message_type": "binary", "type": "LocalQueue"})
    with pytest.raises(ConfigError, match="only the engine puts messages into this queue"):
        admin.move("near", to="#bridge/west-east")
    with pytest.raises(ConfigError, match="dead_message_queue: '#bridge/west-east' – must not"):
        admin.define({"name": "n", "message_type": "json",
                      "dead_message_queue": "#bridge/west-east"})  # fmt: skip
    with pytest.raises(ConfigError, match="there is no such bridge in VPN 'default', which has"):
        admin.delete_bridge("east-west")


def test_q7_bridges_of_a_configuration_are_checked_with_all_else() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_configuration({
            "brokers": ["a", "b"],
            "bridges": [
                {"name": "x", "from": "a", "to": "b", "subscriptions": ["t/>"]},
                {"name": "x", "from": "a", "to": "c", "subscriptions": ["t"], "vpn": "v"},
                {"name": "y", "from": "b", "to": "a", "subscriptions": ["t/u"]},
                {"name": "z", "from": "b", "to": "a", "subscriptions": ["u/t"]},
                "no",
            ],
            "vpns": {"w": None},
        })  # fmt: skip
    assert [(p.where, p.key) for p in caught.value.problems] == [
        ("bridges[1] 'x'", "to"),
        ("bridges[2] 'y'", "subscriptions"),
        ("bridges[4]", "bridge"),
        ("bridges[1] 'x'", "vpn"),
    ]


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ("a/b", "a/b", True), ("a/b", "a/c", False), ("a/b", "a/*", True), ("a/*", "*/b", True),
        ("a/x*", "a/xy", True), ("a/x*", "a/y*", False), ("a/>", "a", False), ("a/>", "b/>", False),
        ("a/>", "*/b/c", True), ("a/*", "a/b/c", False), ("a/x*", "a/xy*", True),
        ("a|b", "b", True), ("a|b", "c", False), ("a|b", "x/*", True), (">", "a/b", True),
    ],
)  # fmt: skip
def test_h1_patterns_that_share_a_topic(one: str, other: str, together: bool) -> None:
    assert overlap(one, other) is overlap(other, one) is together
