"""Bridges between VPNs of a home (H1–H3): which messages may cross, under whose rules, and that
nothing is lost or doubled."""

from __future__ import annotations

import pytest
from lakequeue.definitions import parse_configuration
from lakequeue.protocol import ConfigError

from .two_homes import Vpns

FAR = pytest.mark.parametrize("far", ["one", "two"])  # the broker of the far end


@FAR
def test_H1_messages_go_to_another_vpn(far: str) -> None:
    vpns = Vpns(far=far)
    vpns.define("q", "a/>")
    vpns.send("a/b", 1, 2, 3)
    assert vpns.bodies("q") == ["1", "2", "3"]
    seen = vpns.seen()
    assert (seen["state"], seen["taken"], seen["waiting"], seen["on_its_way"]) == ("open", 3, 0, 0)
    assert (vpns.seen_far()["from"], vpns.seen_far()["taken"]) == ("vpn://a", 3)


@FAR
def test_H1_the_far_vpn_decides_what_may_enter(far: str) -> None:
    vpns = Vpns(far=far, expects=False, subscriptions=[">"])
    vpns.define("q", ">")
    vpns.send("a/b", "waits")
    (blocked,) = vpns.seen()["blocked"]
    assert (blocked["reason"], blocked["waiting"]) == ("permission_denied", 1)
    vpns.expect(**{"from": "vpn://c"})
    vpns.advance("6s")
    assert vpns.bodies("q") == []
    vpns.far.admin().delete_bridge("ab")
    vpns.expect()
    vpns.send("b/c", "not allowed")
    vpns.advance("6s")
    assert vpns.bodies("q") == ["waits"]
    (blocked,) = vpns.seen()["blocked"]
    assert blocked["destinations"] == ["b/c"]


@FAR
def test_S3_the_quota_of_the_far_vpn_holds(far: str) -> None:
    vpns = Vpns(far=far, b={"max_spool_usage": "10B"})
    vpns.define("q", "a/>")
    vpns.send("a/b", "1234567", "8")
    vpns.send("a/c", "90123456")
    (blocked,) = vpns.seen()["blocked"]
    assert (blocked["endpoint"], blocked["reason"], blocked["destinations"]) == (
        "q", "vpn_quota", ["a/c"],
    )  # fmt: skip
    assert vpns.bodies("q") == ["1234567", "8"]
    vpns.advance("6s")
    assert vpns.bodies("q") == ["90123456"]


def test_H1_a_circle_of_vpns_and_a_bridge_to_itself_are_refused() -> None:
    vpns = Vpns()
    back = {"name": "ba", "to": "vpn://a", "subscriptions": ["a/x"]}
    with pytest.raises(ConfigError, match="back to where they began, through 'ab'"):
        vpns.far.admin().bridge(back)
    vpns.far.admin().bridge(back | {"subscriptions": ["b/x"]})
    for to, why in (
        ("a", "to: 'vpn://a' – is the VPN where it begins"),
        ("b?broker=nobody", "to: 'nobody' – must be a broker of this home"),
        ("b/c", r"must be vpn://NAME\[\?broker=NAME\]"),
    ):
        with pytest.raises(ConfigError, match=why):
            vpns.near.admin().bridge(back | {"name": "own", "to": f"vpn://{to}"})


def test_Q7_a_configuration_names_the_vpns_of_its_bridges() -> None:
    bridge = {"name": "x", "from": "broker-0", "vpn": "a", "to": "vpn://b", "subscriptions": ["t"]}
    assert sorted(parse_configuration({"bridges": [bridge]}).vpns) == ["a", "b", "default"]
    with pytest.raises(ConfigError, match="vpn: 'b' – must be a VPN that the section vpns names"):
        parse_configuration({"bridges": [bridge], "vpns": {"a": None}})
