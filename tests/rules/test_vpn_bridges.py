"""Bridges between VPNs of a home (H1–H3): what may cross, under whose rules, and that nothing is
lost or doubled."""

from __future__ import annotations

from typing import Any

import pytest
from lakequeue.definitions import parse_configuration
from lakequeue.memory import MemoryConnection
from lakequeue.protocol import ConfigError
from lakequeue.state import Limits

from .mortal import MortalEngine

LEAVES = {"name": "ab", "to": "vpn://b", "subscriptions": ["a/>"]}
ARRIVES = {"name": "ab", "from": "vpn://a", "subscriptions": ["a/>"]}


class TwoVpns:
    """The VPNs `a` and `b` of a home; far: the broker of `b`'s end."""

    def __init__(
        self, limits: Limits | None = None, far: str = "one", expected: bool = True,
        b: dict[str, Any] | None = None, **bridge: Any,
    ) -> None:  # fmt: skip
        brokers = ["one"] if far == "one" else ["one", far]
        config = parse_configuration({"brokers": brokers, "vpns": {"a": None, "b": b}})
        self.engine = MortalEngine(config, limits)
        self.engine.checking = True
        self.far = far
        self.a = MemoryConnection(self.engine, "a", "publisher", "one")
        self.b = MemoryConnection(self.engine, "b", "consumer", far)
        self.producer = self.a.producer()
        if expected:
            self.b.admin().bridge(ARRIVES | {"to": far})
        to = "vpn://b" if far == "one" else f"vpn://b?broker={far}"
        self.a.admin().bridge(LEAVES | {"to": to} | bridge)

    def define(self, name: str, *topics: str, **keys: Any) -> None:
        own = {"name": name, "message_type": "binary", "type": "LocalQueue", "broker": self.far}
        self.b.admin().define(own | {"subscriptions": list(topics)} | keys)

    def send(self, to: str, *bodies: Any, **options: Any) -> None:
        for body in bodies:
            self.producer.send(to, str(body).encode(), **options)

    def bodies(self, queue: str) -> list[str]:
        found = []
        with self.b.consumer(queue, max_backlog=100, ack_mode="individual") as consumer:
            while (message := consumer.receive(timeout=0)) is not None:
                message.ack()
                found.append(message.payload.decode())
        return found

    def seen(self) -> dict[str, Any]:
        return self.a.admin().describe_bridge("ab")


@pytest.mark.parametrize("far", ["one", "two"])
def test_h1_messages_go_to_another_vpn(far: str) -> None:
    vpns = TwoVpns(far=far)
    vpns.define("q", "a/>")
    vpns.send("a/b", 1, 2, 3)
    assert vpns.bodies("q") == ["1", "2", "3"]
    seen = vpns.seen()
    assert (seen["state"], seen["taken"], seen["waiting"], seen["on_its_way"]) == ("open", 3, 0, 0)
    arrived = vpns.b.admin().describe_bridge("ab")
    assert (arrived["from"], arrived["taken"]) == ("vpn://a", 3)


@pytest.mark.parametrize("far", ["one", "two"])
def test_h1_what_comes_in_is_the_far_vpns_to_allow(far: str) -> None:
    vpns = TwoVpns(far=far, expected=False, subscriptions=[">"])
    vpns.define("q", ">")
    vpns.send("a/b", "waits")
    (blocked,) = vpns.seen()["blocked"]
    assert (blocked["reason"], blocked["waiting"]) == ("permission_denied", 1)
    vpns.b.admin().bridge(ARRIVES | {"from": "vpn://c", "to": far})
    vpns.engine.advance("6s")
    assert vpns.bodies("q") == []
    vpns.b.admin().delete_bridge("ab")
    vpns.b.admin().bridge(ARRIVES | {"to": far})
    vpns.send("b/c", "not allowed")
    vpns.engine.advance("6s")
    assert vpns.bodies("q") == ["waits"]
    (blocked,) = vpns.seen()["blocked"]
    assert blocked["destinations"] == ["b/c"]


@pytest.mark.parametrize("far", ["one", "two"])
def test_s3_the_quota_of_the_far_vpn_holds(far: str) -> None:
    vpns = TwoVpns(far=far, b={"max_spool_usage": "10B"})
    vpns.define("q", "a/>")
    vpns.send("a/b", "1234567", "8")
    vpns.send("a/c", "90123456")
    (blocked,) = vpns.seen()["blocked"]
    assert (blocked["endpoint"], blocked["reason"], blocked["destinations"]) == (
        "q", "vpn_quota", ["a/c"],
    )  # fmt: skip
    assert vpns.bodies("q") == ["1234567", "8"]
    vpns.engine.advance("6s")
    assert vpns.bodies("q") == ["90123456"]


def test_h1_a_circle_of_vpns_is_refused_and_so_is_the_own_one() -> None:
    vpns = TwoVpns()
    back = {"name": "ba", "to": "vpn://a", "subscriptions": ["a/x"]}
    with pytest.raises(ConfigError, match="back to where they began, through 'ab'"):
        vpns.b.admin().bridge(back)
    vpns.b.admin().bridge(back | {"subscriptions": ["b/x"]})
    with pytest.raises(ConfigError, match="to: 'vpn://a' – is the VPN where it begins"):
        vpns.a.admin().bridge(LEAVES | {"name": "own", "to": "vpn://a"})
    with pytest.raises(ConfigError, match="to: 'nobody' – must be a broker of this home"):
        vpns.a.admin().bridge(LEAVES | {"name": "own", "to": "vpn://b?broker=nobody"})
    with pytest.raises(ConfigError, match=r"must be vpn://NAME\[\?broker=NAME\]"):
        vpns.a.admin().bridge(LEAVES | {"name": "own", "to": "vpn://b/c"})


def test_q7_a_configuration_names_the_vpns_of_its_bridges() -> None:
    bridge = {"name": "x", "from": "broker-0", "vpn": "a", "to": "vpn://b", "subscriptions": ["t"]}
    assert sorted(parse_configuration({"bridges": [bridge]}).vpns) == ["a", "b", "default"]
    with pytest.raises(ConfigError, match="vpn: 'b' – must be a VPN that the section vpns names"):
        parse_configuration({"bridges": [bridge], "vpns": {"a": None}})
