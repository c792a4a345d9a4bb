"""Bridges of a home with several brokers (H1, H3, X4, L12): a bridge's endpoint is a queue of the
home, so it takes what is published at any broker, and its ends may be at any."""

from __future__ import annotations

from typing import Any

import pytest
from lakequeue.definitions import parse_configuration
from lakequeue.memory import MemoryConnection
from lakequeue.protocol import ConfigError, Rejected
from lakequeue.state.phases.admission import Admission
from mesh.rehomed import RestingEngine
from rules.mortal import Fate, MortalEngine
from rules.two_homes import TINY

BRIDGE = {"name": "ab", "subscriptions": ["a/>"]}


class Several:
    """A home of three brokers with the VPNs `a` and `b`. near, far: the brokers of the ends."""

    def __init__(
        self, near: str, far: str, limits: Any = None, engine: type = MortalEngine, **keys: Any
    ) -> None:  # fmt: skip
        config = parse_configuration(
            {"brokers": ["one", "two", "three"], "vpns": {"a": None, "b": None}}
        )
        self.engine = engine(config, limits)
        self.engine.checking = True
        self.near, self.far = near, far
        self.b("one").admin().bridge(BRIDGE | {"from": "vpn://a", "to": far})
        there = {"from": near, "to": f"vpn://b?broker={far}"}
        self.a("three").admin().bridge(BRIDGE | there | keys)

    def a(self, broker: str, name: str = "publisher") -> MemoryConnection:
        return MemoryConnection(self.engine, "a", name, broker)

    def b(self, broker: str) -> MemoryConnection:
        return MemoryConnection(self.engine, "b", "consumer", broker)

    def define(self, name: str, *topics: str, **keys: Any) -> None:
        own = {"name": name, "message_type": "binary", "type": "LocalQueue", "broker": self.far}
        self.b("one").admin().define(own | {"subscriptions": list(topics)} | keys)

    def bodies(self, queue: str) -> list[str]:
        found = []
        with self.b(self.far).consumer(queue, max_backlog=100, ack_mode="individual") as consumer:
            while (message := consumer.receive(timeout=0)) is not None:
                message.ack()
                found.append(message.payload.decode())
        return found


@pytest.mark.parametrize(("near", "far"), [("one", "two"), ("two", "one"), ("two", "three")])
def test_h1_a_bridge_takes_what_is_published_at_any_broker(near: str, far: str) -> None:
    home = Several(near, far)
    home.define("q", "a/>")
    for broker in ("one", "two", "three"):
        home.a(broker).producer().send("a/b", broker.encode())
        admin = home.a(broker, "admin").admin()
        assert [one["name"] for one in admin.bridges()] == ["ab"]
        assert admin.describe_bridge("ab")["from"] == near
        assert admin.describe("#bridge/ab")["depth"] == 0
        assert home.b(broker).admin().describe_bridge("ab")["to"] == far
        assert admin.queues() == []
    assert home.bodies("q") == ["one", "two", "three"]
    for broker in ("one", "two", "three"):
        with pytest.raises(Rejected, match="no_matching_destination"):
            home.a(broker, "other").producer().send("#queue/#bridge/ab", b"x")
        with pytest.raises(ConfigError, match="is the endpoint of a bridge"):
            admin.delete("#bridge/ab")
        with pytest.raises(ConfigError, match="is the endpoint of a bridge"):
            admin.move_queue("#bridge/ab", "one")


def test_h1_who_deletes_a_bridge_anywhere_hears_how_many_waited() -> None:
    home = Several("two", "one")
    home.a("three").producer().send("a/b", b"1")
    home.a("one").producer().send("a/b", b"2")
    assert home.a("two").admin().describe_bridge("ab")["blocked"][0]["waiting"] == 2
    assert home.a("three").admin().delete_bridge("ab") == 2
    for broker in ("one", "two", "three"):
        assert home.a(broker).admin().bridges() == []
        with pytest.raises(ConfigError, match="no such bridge"):
            home.a(broker).admin().describe_bridge("ab")
        with pytest.raises(Rejected, match="no_matching_destination"):
            home.a(broker, "other").producer().send("a/b", b"x")
    there = {"from": "three", "to": "vpn://b?broker=one"}
    home.a("two").admin().bridge(BRIDGE | there)  # the name is free, for any broker
    home.define("q", "a/>")
    home.a("two", "again").producer().send("a/b", b"3")
    assert home.bodies("q") == ["3"]


def test_h1_a_bridge_begins_at_the_broker_that_is_told() -> None:
    home = Several("one", "two")
    home.a("three").admin().bridge({"name": "x", "to": "vpn://b", "subscriptions": ["x"]})
    seen = home.a("one").admin().describe_bridge("x")
    assert (seen["from"], seen["to"]) == ("three", "vpn://b")
    home.a("one").admin().bridge({"name": "x", "subscriptions": ["y"]})
    assert home.a("two").admin().describe_bridge("x")["subscriptions"] == ["y"]
    for changes, why in (
        ({"from": "four"}, "must be a broker of this home, which has 'one', 'two', 'three'"),
        ({"name": "x", "from": "one"}, "cannot change while the bridge exists; it is 'three'"),
        ({"to": "three"}, "is a broker of this home, whose queues get"),
    ):
        with pytest.raises(ConfigError, match=why):
            home.a("two").admin().bridge(
                {"name": "y", "to": "vpn://b", "subscriptions": ["x"]} | changes
            )


def test_x4_l12_times_count_on_over_brokers_and_a_bridge() -> None:
    home = Several("two", "three")
    home.define("q", "a/>")
    producer = home.a("one").producer()
    producer.send("a/b", b"short", ttl="8s")
    producer.send("a/b", b"later", delay="1m")
    home.engine.advance("9s")
    assert home.bodies("q") == []
    home.engine.advance("51s")
    assert home.bodies("q") == ["later"]


@pytest.mark.parametrize("seed", range(2))
def test_h1_nothing_is_lost_or_doubled_wherever_it_is_published_and_whoever_dies(seed: int) -> None:
    home = Several("two", "three", TINY)
    home.define("small", "a/0", max_spool_messages=2)
    home.define("all", "a/1", "a/2")
    producers = [home.a(name, name).producer() for name in ("one", "two", "three")]
    fate = Fate(seed, death=0.15)
    home.engine.fated(fate)
    sent: dict[tuple[str, int], list[str]] = {}
    for n in range(30):
        to, by = fate.random.choice(["a/0", "a/1", "a/2"]), n % 3
        body = f"{to}:{by}:{n}"
        sent.setdefault((to, by), []).append(body)
        producers[by].send(to, body.encode())
    assert fate.deaths > 3
    home.engine.fated(None)
    got = home.bodies("all")
    for _ in range(20):
        got += home.bodies("small")
        home.engine.advance("6s")
    assert len(got) == 30
    for (to, by), bodies in sent.items():
        assert [b for b in got if b.startswith(f"{to}:{by}:")] == bodies


def test_h1_what_fails_on_the_way_to_another_vpn_holds_its_own_lane_and_fails_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both ends are at one broker: a step hands over, and no record."""
    home = Several("two", "two")
    home.define("q", "a/>")
    failed: list[int] = []
    offer = Admission.offer

    def poisoned(self: Any, vpn: str, messages: Any, sender: Any) -> bool:
        if vpn == "b" and b"poison" in messages.payloads:
            failed.append(len(messages))
            raise ZeroDivisionError("poison")
        return offer(self, vpn, messages, sender)

    monkeypatch.setattr(Admission, "offer", poisoned)
    home.a("one").admin().shutdown("#bridge/ab", egress=True)
    producer = home.a("two").producer()
    for to, body in (("a/1", b"good"), ("a/1", b"poison"), ("a/1", b"behind"), ("a/2", b"other")):
        producer.send(to, body)
    home.a("one").admin().shutdown("#bridge/ab")
    home.engine.advance("1m")
    assert sorted(home.bodies("q")) == ["good", "other"]
    (blocked,) = home.a("one").admin().describe_bridge("ab")["blocked"]
    assert (blocked["destinations"], blocked["reason"], blocked["waiting"]) == (
        ["a/1"], "malformed", 2,
    )  # fmt: skip
    tried = len(failed)
    home.engine.advance("1m")
    assert len(failed) == tried


def test_m4_a_broker_at_either_end_stays_and_others_come_and_go() -> None:
    home = Several("two", "three", engine=RestingEngine)
    home.define("q", "a/>")
    engine = home.engine
    for end in ("two", "three"):
        with pytest.raises(ConfigError, match=f"{end!r} – is an end of bridge 'ab'"):
            engine.change(remove=end)
    engine.change(add="four")
    home.a("four").producer().send("a/b", b"1")
    engine.change(remove="one")  # the directory is another broker's now
    assert [one["name"] for one in home.a("four").admin().bridges()] == ["ab"]
    home.a("four", "again").producer().send("a/b", b"2")
    assert home.bodies("q") == ["1", "2"]
    home.a("four").admin().bridge({"name": "ab", "subscriptions": ["x/>"]})
    with pytest.raises(Rejected):
        home.a("four", "more").producer().send("a/b", b"3")
    assert home.a("four").admin().delete_bridge("ab") == 0
    home.b("four").admin().delete_bridge("ab")
    engine.change(remove="two")


def test_m4_a_broker_that_is_added_beside_one_knows_its_bridges() -> None:
    engine = RestingEngine(
        parse_configuration({"brokers": ["one"], "vpns": {"a": None, "b": None}})
    )
    engine.checking = True
    a = MemoryConnection(engine, "a", "publisher", "one")
    b = MemoryConnection(engine, "b", "consumer", "one")
    b.admin().bridge(BRIDGE | {"from": "vpn://a", "to": "one"})
    a.admin().bridge(BRIDGE | {"from": "one", "to": "vpn://b"})
    b.admin().define({"name": "q", "message_type": "binary", "subscriptions": ["a/>"]})
    engine.change(add="two")
    two = MemoryConnection(engine, "a", "publisher", "two")
    two.producer().send("a/b", b"1")
    assert [one["name"] for one in two.admin().bridges()] == ["ab"]
    assert b.admin().describe("q")["depth"] == 1
    assert two.admin().delete_bridge("ab") == 0
    with pytest.raises(Rejected):
        MemoryConnection(engine, "a", "x", "two").producer().send("a/b", b"3")
