"""Definitions of bridges (H1, Q7): changes and deletion; an invalid one is refused with a sentence
and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from lakequeue.definitions import parse_configuration
from lakequeue.definitions.bridge import overlap
from lakequeue.protocol import ConfigError, Rejected
from lakequeue.protocol import commands as c

from .two_homes import ARRIVES, BRIDGE, Two


@pytest.fixture
def two() -> Two:
    return Two()


def test_H1_a_deleted_bridge_drops_its_waiting_messages(two: Two) -> None:
    two.send("a/b", "waits")
    two.cut()
    two.send("a/c", "on its way")
    assert two.west.admin().delete_bridge("out") == 2
    assert two.west.admin().bridges() == []
    two.west.admin().bridge(BRIDGE)
    two.mend()
    two.define("q", "a/>")
    two.advance("1m")
    assert (two.seen()["waiting"], two.seen()["on_its_way"]) == (0, 0)
    assert two.depth("q") == 0


def test_H1_a_bridge_may_be_redefined(two: Two) -> None:
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
        ({"to": "near"}, "to: 'near' – is the broker where it begins"),
        ({"to": "north"}, "to: 'north' – must be a broker of this home, which has 'near'"),
        ({"from": "north"}, "from: 'north' – must be a broker of this home, which has 'near'"),
        ({"lanes": "many"}, "lanes: 'many' – must be one of per-destination, none"),
        ({"colour": 1}, "colour: 1 – "),
        ({"subscriptions": []}, "must be a list of one or more topics"),
        ({"subscriptions": ["a*b/c"]}, "'\\*' is allowed only at the end of a level"),
        ({"name": None}, "name: None – is required"),
        ({"vpn": "other"}, "vpn: 'other' – allowed is 'default', the VPN of this connection"),
        ({"to": "kafka://"}, r"to: 'kafka://' – must be kafka://HOST:PORT\[/VPN\]"),
        ({"to": "kafka://me:pw@h:1"}, "put credentials into a file"),
        ({"to": "http://h:1"}, "must be a broker of this home, kafka://HOST:PORT"),
        ({"to": "kafka://h:1?user=x"}, "without any other option"),
        ({"from": "kafka://h:1"}, "must be a broker of this home, since"),
        ({"credentials": "x"}, "are for a bridge that leads to another Kafka"),
        ({"to": "kafka://h:1", "credentials": "../x"}, "credentials: '../x' – must be at most 64"),
    ],
)
def test_H1_an_invalid_bridge_is_refused_and_changes_nothing(
    two: Two, changes: dict[str, Any], why: str
) -> None:
    admin = two.west.admin()
    before = admin.bridges()
    with pytest.raises(ConfigError, match=why):
        admin.bridge(BRIDGE | {"name": "other"} | changes)
    assert admin.bridges() == before


def test_H1_a_bridge_without_a_far_home_reports_the_reason(two: Two) -> None:
    admin = two.west.admin()
    for name, to in (("home", "west"), ("none", "north"), ("far", "east?broker=nobody")):
        admin.bridge(BRIDGE | {"name": name, "to": f"memory://{to}"})
    shown = {b["name"]: (b["state"], b["why"]) for b in admin.bridges()}
    assert shown["home"] == ("waiting", "memory://west: is this home itself")
    assert shown["none"][1] == "memory://north: no engine of this process has that name"
    assert "broker: 'nobody' – allowed are the engine's brokers: far" in shown["far"][1]


@pytest.mark.parametrize(("home", "key"), [("west", "to"), ("east", "from")])
def test_H1_a_home_that_serves_no_bridges_to_others_refuses_them(home: str, key: str) -> None:
    two = Two(leaves=None, expects=None)
    begin = c.encode_command(c.Begin(epoch=0, joins_homes=False))
    two.engines[home].instruct("default", begin)
    bridge = BRIDGE if home == "west" else ARRIVES | {"subscriptions": [">"]}
    admin = getattr(two, home).admin()
    with pytest.raises(ConfigError) as refused:
        admin.bridge(bridge)
    assert str(refused.value) == (
        f"bridge 'out': {key}: {bridge[key]!r} – must be in this home: the trigger "
        "'micro-batch' serves no bridge to another Kafka"
    )
    assert admin.bridges() == []


def test_H1_clients_cannot_use_the_endpoints_of_bridges(two: Two) -> None:
    admin, own = two.west.admin(), "#bridge/out"
    admin.define({"name": "near", "message_type": "binary", "type": "LocalQueue"})
    dead = {"name": "n", "message_type": "json", "dead_message_queue": own}
    for call, why in (
        (lambda: two.west.consumer(own), "is the endpoint of a bridge"),
        (lambda: admin.delete(own), "is the endpoint of a bridge"),
        (lambda: admin.subscribe_topic(own, "c"), "is the endpoint of a bridge"),
        (lambda: admin.define(dead | {"name": "#bridge/x"}), "must not begin with '#bridge/'"),
        (lambda: admin.define(dead), f"dead_message_queue: '{own}' – must not"),
        (lambda: admin.move("near", to=own), "only the engine puts messages into this queue"),
        (lambda: admin.delete_bridge("no"), "there is no such bridge in VPN 'default', which has"),
    ):
        with pytest.raises(ConfigError, match=why):
            call()
    for to in (own, f"#queue/{own}"):
        with pytest.raises(Rejected, match="no_matching_destination"):
            two.send(to, "x")


def test_Q7_bridges_are_checked_with_the_rest_of_the_configuration() -> None:
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
def test_H1_overlapping_patterns_are_detected(one: str, other: str, together: bool) -> None:
    assert overlap(one, other) is overlap(other, one) is together
