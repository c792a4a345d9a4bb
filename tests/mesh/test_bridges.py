"""Bridges of a home with several brokers, and of homes whose brokers change. A bridge's endpoint is
a queue of the home: it takes messages published at any broker, and its ends may be at any (H1, H3,
X4, L12, M4)."""

from __future__ import annotations

import re
from typing import Any

import pytest
from lakequeue.mesh.bridges import bridge_commands
from lakequeue.protocol import ConfigError, Rejected
from lakequeue.protocol import commands as c
from lakequeue.state import Limits
from lakequeue.state.phases.admission import Admission
from mesh.rehomed import RestingEngine
from rules.mesh import Network
from rules.mortal import Fate
from rules.two_homes import BRIDGE, TINY, Two, Vpns

BROKERS = ("one", "two", "three")


@pytest.mark.parametrize(("near", "far"), [("one", "two"), ("two", "one"), ("two", "three")])
def test_H1_a_bridge_takes_messages_published_at_any_broker(near: str, far: str) -> None:
    home = Vpns(near, far)
    home.define("q", "a/>")
    for broker in BROKERS:
        home.a(broker).producer().send("a/b", broker.encode())
        admin = home.a(broker, "admin").admin()
        assert [one["name"] for one in admin.bridges()] == ["ab"]
        assert admin.describe_bridge("ab")["from"] == near
        assert admin.describe("#bridge/ab")["depth"] == 0
        assert home.b(broker).admin().describe_bridge("ab")["to"] == far
        assert admin.queues() == []
    assert home.bodies("q") == list(BROKERS)
    for broker in BROKERS:
        with pytest.raises(Rejected, match="no_matching_destination"):
            home.a(broker, "other").producer().send("#queue/#bridge/ab", b"x")
        admin = home.a(broker, "admin").admin()
        for refused in (admin.delete, lambda name, admin=admin: admin.move_queue(name, "one")):
            with pytest.raises(ConfigError, match="is the endpoint of a bridge"):
                refused("#bridge/ab")


def test_H1_deleting_a_bridge_at_any_broker_returns_the_waiting_messages() -> None:
    home = Vpns("two", "one")
    for n, broker in enumerate(("three", "one")):
        home.a(broker).producer().send("a/b", b"%d" % n)
    assert home.a("two").admin().describe_bridge("ab")["blocked"][0]["waiting"] == 2
    assert home.a("three").admin().delete_bridge("ab") == 2
    for broker in BROKERS:
        assert home.a(broker).admin().bridges() == []
        with pytest.raises(ConfigError, match="no such bridge"):
            home.a(broker).admin().describe_bridge("ab")
        with pytest.raises(Rejected, match="no_matching_destination"):
            home.a(broker, "other").producer().send("a/b", b"x")
    there = {"name": "ab", "from": "three", "to": "vpn://b?broker=one", "subscriptions": ["a/>"]}
    home.a("two").admin().bridge(there)  # the name is free, for any broker
    home.define("q", "a/>")
    home.a("two", "again").producer().send("a/b", b"3")
    assert home.bodies("q") == ["3"]


def test_H1_a_bridge_is_hosted_by_the_broker_that_defines_it() -> None:
    home = Vpns("one", "two")
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
        one = {"name": "y", "to": "vpn://b", "subscriptions": ["x"]}
        with pytest.raises(ConfigError, match=why):
            home.a("two").admin().bridge(one | changes)


def test_X4_L12_times_continue_over_brokers_and_a_bridge() -> None:
    home = Vpns("two", "three")
    home.define("q", "a/>")
    producer = home.a("one").producer()
    producer.send("a/b", b"short", ttl="8s")
    producer.send("a/b", b"later", delay="1m")
    home.advance("9s")
    assert home.bodies("q") == []
    home.advance("51s")
    assert home.bodies("q") == ["later"]


@pytest.mark.parametrize("seed", range(2))
def test_H1_nothing_is_lost_or_doubled_whichever_broker_dies(seed: int) -> None:
    home = Vpns("two", "three", TINY)
    home.define("small", "a/0", max_spool_messages=2)
    home.define("all", "a/1", "a/2")
    producers = [home.a(name, name).producer() for name in BROKERS]
    fate = Fate(seed, death=0.15)
    home.engine.fated(fate)
    sent: dict[str, list[str]] = {}
    for n in range(30):
        to, by = fate.random.choice(["a/0", "a/1", "a/2"]), n % 3
        sent.setdefault(f"{to}:{by}:", []).append(f"{to}:{by}:{n}")
        producers[by].send(to, f"{to}:{by}:{n}".encode())
    assert fate.deaths > 3
    home.engine.fated(None)
    got = home.bodies("all")
    for _ in range(20):
        got += home.bodies("small")
        home.advance("6s")
    assert len(got) == 30
    assert {begin: [b for b in got if b.startswith(begin)] for begin in sent} == sent


@pytest.mark.parametrize("lanes", ["per-destination", "none"])
def test_H1_cold_messages_cross_in_order(lanes: str) -> None:
    homes = Two(Limits(live_rows=8, segment_rows=4, bridge_rows=7, delivery_rows=5), lanes=lanes)
    homes.define("small", "a/0", max_spool_messages=20)
    homes.define("all", "a/1", "a/2", "a/3")
    homes.cut()
    for n in range(120):
        homes.send(f"a/{n % 4}", n)
    for engine in homes.engines.values():
        engine.restart()
    assert homes.seen()["on_its_way"] == {"none": 1, "per-destination": 4}[lanes]
    homes.mend()
    if lanes == "per-destination":
        (blocked,) = homes.seen()["blocked"]
        assert (blocked["endpoint"], blocked["waiting"]) == ("small", 10)
        assert homes.seen()["waiting"] == 10
    got: list[int] = []
    for _ in range(12):
        got += map(int, [*homes.bodies("small"), *homes.bodies("all")])
        homes.advance("6s")
    assert sorted(got) == list(range(120))
    for rest in range(4):
        assert [n for n in got if n % 4 == rest] == list(range(rest, 120, 4))


def test_H1_a_single_broker_passes_messages_to_its_other_vpn_at_once() -> None:
    """It sends them to itself: a step that reads them must follow without any traffic."""
    home = Vpns(brokers=("one",))
    home.define("q", "a/>")
    home.send("a/b", 0, 1, 2)
    broker: Any = home.engine.broker("one")
    (link,) = broker._replica.broker.mesh.bridges.links.values()
    assert (link.taken, link.flights) == (3, {}), "before anybody asks"
    assert home.bodies("q") == ["0", "1", "2"]


@pytest.mark.parametrize("to", ["a home", "a VPN of this home"])
def test_H1_a_failure_at_the_far_end_blocks_only_its_lane_and_happens_once(
    to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between VPNs both ends are at one broker: a step passes the message on, without a record."""
    ends: Any = Two() if to == "a home" else Vpns("two", "two")
    ends.define("q", "a/>")
    failed: list[int] = []
    offer = Admission.offer

    def poisoned(self: Any, messages: Any) -> bool:
        if messages.vpn == ends.far.vpn and b"poison" in messages.payloads:
            failed.append(len(messages.payloads))
            raise ZeroDivisionError("poison")
        return offer(self, messages)

    monkeypatch.setattr(Admission, "offer", poisoned)
    endpoint = f"#bridge/{ends.bridge}"
    ends.near.admin().shutdown(endpoint, egress=True)
    ends.send("a/1", "good", "poison", "behind")
    ends.send("a/2", "other")
    ends.near.admin().shutdown(endpoint)
    ends.advance("1m")
    assert sorted(ends.bodies("q")) == ["good", "other"]
    (blocked,) = ends.seen()["blocked"]
    assert (blocked["destinations"], blocked["reason"], blocked["waiting"]) == (
        ["a/1"], "malformed", 2,
    )  # fmt: skip
    assert ends.near.admin().describe(endpoint)["blocked"] == "held by malformed"
    tried = len(failed)
    ends.advance("1m")
    assert len(failed) == tried  # each one costs a replay
    ends.near.admin().purge(endpoint)
    assert ends.seen()["blocked"] == []


def test_H2_the_next_blocking_queue_is_shown() -> None:
    home = Vpns("two", "three")
    for queue in ("first", "then"):
        home.define(queue, "a/b", max_spool_messages=1)
    home.send("a/b", "1", "2")
    assert home.seen()["blocked"][0]["endpoint"] == "first"
    home.far.admin().define({"name": "first", "max_spool_messages": 9})
    home.advance("6s")
    assert [one["endpoint"] for one in home.seen()["blocked"]] == ["then"]
    told = [
        (e["event"], e["queue"]) for e in home.near.admin().events()
        if e["event"] in ("bridge_blocked", "bridge_cleared")
    ]  # fmt: skip
    assert told == [
        ("bridge_blocked", "first"), ("bridge_cleared", "first"), ("bridge_blocked", "then"),
    ]  # fmt: skip


def test_H5_an_endpoint_is_shut_down_by_any_broker() -> None:
    home = Vpns("two", "three")
    home.define("q", "a/>")
    home.a("one", "admin").admin().shutdown("#bridge/ab", egress=True)
    home.send("a/b", "1")
    assert (home.seen()["egress"], home.seen()["waiting"], home.bodies("q")) == (False, 1, [])
    home.a("three", "admin").admin().shutdown("#bridge/ab")
    assert home.bodies("q") == ["1"]


def test_H1_messages_sent_over_a_bridge_are_not_called_back() -> None:
    home = Vpns("two", "three")
    home.define("q", "a/>")
    home.engine.cut("three")
    home.send("a/b", "1")
    admin = home.a("two", "admin").admin()
    assert (home.seen()["on_its_way"], admin.purge("#bridge/ab")) == (1, 0)
    home.engine.mend("three")
    assert home.bodies("q") == ["1"]


def test_H1_a_receipt_for_a_deleted_bridge_changes_nothing() -> None:
    home = Vpns("two", "three")
    home.define("q", "a/>")
    home.engine.cut("three")
    home.send("a/b", "1")
    home.near.ask(c.DeleteBridge(name="ab"), lambda answer: None)
    home.engine.mend("three")
    assert home.a("one", "admin").admin().bridges() == []
    assert home.bodies("q") == ["1"]
    assert not [e for e in home.engine.journal() if e["event"] == "mesh_refused"]


def test_H1_large_messages_of_several_lanes_cross_in_several_records(network: Network) -> None:
    home = Vpns("two", "three")
    home.define("q", "a/>")
    home.near.admin().shutdown("#bridge/ab", egress=True)
    for n in range(3):
        home.send(f"a/{n}", str(n) * 300_000)
    home.near.admin().shutdown("#bridge/ab")
    assert [len(one.payloads) for one in network.of("two", "three", "bridge_send")] == [1, 1, 1]
    assert sorted(body[0] for body in home.bodies("q")) == ["0", "1", "2"]


@pytest.mark.parametrize("when", ["before it is sent", "before it is sent again"])
def test_H1_S1_only_messages_without_content_are_lost(when: str, network: Network) -> None:
    home = Vpns("two", "three")
    home.define("q", "a/>")
    spool = home.engine.broker("two")._replica.broker.spool  # type: ignore[attr-defined]
    contents = spool.contents

    def without(rows: Any) -> Any:
        gone = (b"1", b"4")
        return [None if one is not None and one[0] in gone else one for one in contents(rows)]

    def send() -> None:
        home.near.admin().shutdown("#bridge/ab", egress=True)
        for n in range(3):
            home.send("a/1", n)
        home.send("a/2", 3)
        home.send("a/3", 4)
        home.near.admin().shutdown("#bridge/ab")

    if when == "before it is sent":
        spool.contents = without
        send()
    else:
        network.lose("bridge_send", "two", "three")
        send()
        spool.contents = without
    home.advance("20s")
    assert sorted(home.bodies("q")) == ["0", "2", "3"]
    seen = home.seen()
    assert (seen["on_its_way"], seen["waiting"], seen["taken"]) == (0, 0, 3)
    lost = [e for e in home.engine.journal() if e["event"] == "lost"]
    assert len(lost) == 2


def test_H1_a_failed_endpoint_continues_once_its_bridge_is_redefined() -> None:
    home = Vpns("two", "three")
    home.send("a/b", "1")  # blocked, since it has no queue yet
    near: Any = home.engine.broker("two")
    near._replica.broker.find("a", "#bridge/ab").header.faulted = "RuntimeError: planted"
    home.define("q", "a/>")
    home.advance("6s")
    assert home.bodies("q") == []
    home.a("one", "admin").admin().bridge({"name": "ab"})
    home.advance("6s")
    assert home.bodies("q") == ["1"]


def test_a_vpn_has_a_limit_of_bridges(monkeypatch: pytest.MonkeyPatch) -> None:
    home = Vpns("two", "three")
    monkeypatch.setattr(bridge_commands, "BRIDGES_MAX", 1)
    new = {"name": "more", "to": "vpn://b", "subscriptions": ["x"]}
    with pytest.raises(ConfigError, match="a VPN has at most 1 bridges"):
        home.near.admin().bridge(new)
    home.near.admin().bridge({"name": "ab", "subscriptions": ["x"]})


# ---------------------------------------------------------------- brokers are added and removed


def test_M4_a_bridge_continues_beside_an_added_broker_and_keeps_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Two, "ENGINE", RestingEngine)
    homes = Two()
    homes.define("q", "a/>")
    west = homes.engines["west"]
    assert isinstance(west, RestingEngine)
    homes.cut()
    homes.send("a/1", 1, 2, 3)
    before = homes.seen()
    assert (before["on_its_way"], before["waiting"]) == (1, 2)
    west.change(add="another")
    assert homes.seen() == before
    for changes, why in (
        ({"to": "another"}, "to: 'another' – is a broker of this home, whose queues"),
        ({"to": "nobody"}, "which has 'near', 'another'"),
    ):
        with pytest.raises(ConfigError, match=re.escape(why)):
            homes.west.admin().bridge(BRIDGE | {"name": "two"} | changes)
    homes.copier.is_cut = False
    homes.send("a/1", 4)
    homes.advance("1s")
    assert homes.bodies("q") == ["1", "2", "3", "4"]
    with pytest.raises(ConfigError, match="'near' – is an end of bridge 'out' of VPN 'default'"):
        west.change(remove="near")
    homes.west.admin().delete_bridge("out")
    homes.advance("1s")
    west.change(remove="near")


def test_M4_brokers_without_a_bridge_end_come_and_go() -> None:
    home = Vpns("two", "three", engine=RestingEngine)
    home.define("q", "a/>")
    engine: Any = home.engine
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


def test_M4_an_added_broker_knows_the_bridges() -> None:
    home = Vpns(engine=RestingEngine, brokers=["one"])
    home.define("q", "a/>")
    engine: Any = home.engine
    engine.change(add="two")
    two = home.a("two")
    two.producer().send("a/b", b"1")
    assert [one["name"] for one in two.admin().bridges()] == ["ab"]
    assert home.bodies("q") == ["1"]
    assert two.admin().delete_bridge("ab") == 0
    with pytest.raises(Rejected):
        home.a("two", "x").producer().send("a/b", b"3")
