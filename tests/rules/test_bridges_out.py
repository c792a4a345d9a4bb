"""H1, S5: a bridge to another home or VPN takes what is published at any broker of its home: stored
once at its near broker, with one receipt, and brought once, whichever brokers have bridges there
and whoever dies."""

from __future__ import annotations

from typing import Any

import pytest
from lakequeue.core import Limits
from lakequeue.definitions import parse_configuration
from lakequeue.definitions.far_address import far_home
from lakequeue.memory import MemoryEngine
from lakequeue.protocol import Rejected
from lakequeue.protocol.offering import Offer
from model.limits import TINY

from .joined import forgetful
from .mortal import Fate, MortalEngine
from .spread import Spread, local


class SpreadHomes(Spread):
    """A home of three brokers, and another one of two, `far` and `far2`, which expects bridges."""

    def __init__(self, *queues: dict[str, Any], bridges: dict[str, str], **given: Any) -> None:
        """bridges: by name the near broker."""
        self.topics = given.pop("topics", {})
        super().__init__(*queues, **given)
        east = MortalEngine(parse_configuration({"brokers": ["far", "far2"]}), given.get("limits"))
        east.checking = True
        homes: dict[str, MemoryEngine] = {"west": self.engine, "east": east}
        for engine in homes.values():
            engine.homes.find = homes.get
        east.now = self.engine.now
        self.east = east
        self.far = east.connect("far", "consumer").admin()
        for name, near in bridges.items():
            self.bridge(name, near)

    def bridge(self, name: str, near: str, to: str = "memory://east", far: str = "far") -> None:
        given = {"name": name, "subscriptions": self.topics.get(name, ["t/>"])}
        self.far.bridge(given | {"from": "memory://west", "to": far})
        self.admin.bridge(given | {"from": near, "to": to})

    def advance(self, duration: str) -> None:
        for _ in range(3):
            self.engine.advance(duration)
            self.east.advance(duration)

    def there(self, queue: str = "all") -> list[bytes]:
        return [m.payload for m in self.far.browse(queue, limit=10_000)]

    def eaten(self, queue: str) -> list[bytes]:
        """What is in a queue there, acknowledged."""
        found = []
        connection = self.east.connect("far", "eats")  # type: ignore[attr-defined]
        with connection, connection.consumer(queue, ack_mode="individual") as consumer:
            while (message := consumer.receive(timeout=0)) is not None:
                message.ack()
                found.append(message.payload)
        return found


def everything(homes: SpreadHomes, *topics: str) -> None:
    homes.far.define(local("all", "far", *(topics or ("t/>",))))


def test_H1_what_is_published_anywhere_goes_over() -> None:
    homes = SpreadHomes(bridges={"out": "b"})
    everything(homes)
    for n, broker in enumerate("abcabc"):
        homes.send(broker, "t/1", b"%d" % n)
    homes.advance("1s")
    assert homes.there() == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert homes.admin.describe_bridge("out")["taken"] == 6


def test_S5_a_message_for_queues_and_a_bridge_has_one_receipt() -> None:
    homes = SpreadHomes(
        local("qa", "a", "t/1"), local("qc", "c", "t/1"),
        {"name": "shared", "message_type": "json", "subscriptions": ["t/1"]}, bridges={"out": "b"},
    )  # fmt: skip
    everything(homes)
    sent = [homes.send(broker, "t/1", b"%d" % n) for n, broker in enumerate("abc")]
    homes.advance("1s")
    assert homes.ids("qa") == homes.ids("qc") == sent
    assert sorted(homes.ids("shared")) == sorted(sent)
    assert homes.there() == [b"0", b"1", b"2"]


def test_S5_a_full_endpoint_refuses_wherever_it_is_published() -> None:
    homes = SpreadHomes(local("qa", "a", "t/1"), bridges={})
    bridge = {"name": "out", "from": "b", "to": "memory://nowhere", "subscriptions": ["t/>"]}
    homes.admin.bridge(bridge | {"max_spool_usage": "100"})
    homes.send("a", "t/1", b'"%s"' % (b"x" * 80))
    with pytest.raises(Rejected, match="queue_quota"):
        homes.send("a", "t/1", b'"%s"' % (b"x" * 80))
    assert len(homes.ids("qa")) == 1
    assert homes.admin.describe_bridge("out")["waiting"] == 1


def test_S6_a_bridge_elsewhere_is_a_destination() -> None:
    homes = SpreadHomes(bridges={"out": "b"})
    everything(homes)
    homes.send("c", "t/x", b"1")
    with pytest.raises(Rejected, match="no_matching_destination"):
        homes.send("c", "other", b"2")
    homes.admin.delete_bridge("out")
    with pytest.raises(Rejected, match="no_matching_destination"):
        homes.send("c", "t/x", b"3")


def test_S5_a_near_broker_that_is_away_votes_when_it_is_back() -> None:
    homes = SpreadHomes(bridges={"out": "b"})
    everything(homes)
    homes.engine.cut("b")
    sent = homes.start("a", "t/1", b"1")
    homes.advance("1s")
    assert not sent.done()
    homes.engine.mend("b")
    homes.advance("1s")
    assert sent.result(0).message_id
    assert homes.there() == [b"1"]


@pytest.mark.parametrize("far", ["far", "far2"])
def test_H1_of_bridges_to_one_home_those_of_one_broker_take_a_message(far: str) -> None:
    """Of the one where it is published, else of the first that has one."""
    homes = SpreadHomes(local("qc", "c", "t/>"), bridges={"b-out": "b"})  # so that c is asked
    homes.bridge("c-out", "c", f"memory://east?broker={far}", far)
    everything(homes)
    homes.far.define(local("all2", "far2", "t/>"))
    for n, broker in enumerate("abc"):
        homes.send(broker, "t/1", b"%d" % n)
    homes.advance("1s")
    seen = {name: homes.admin.describe_bridge(name)["taken"] for name in ("b-out", "c-out")}
    assert seen == {"b-out": 2, "c-out": 1}
    assert sorted([*homes.there(), *homes.there("all2")]) == [b"0", b"1", b"2"]


def test_H1_bridges_to_several_homes_all_take_it() -> None:
    """And a bridge for other topics takes nothing away from one that is for these."""
    homes = SpreadHomes(bridges={"out": "c", "narrow": "b"}, topics={"narrow": ["t/2"]})
    homes.admin.bridge(
        {"name": "south", "from": "b", "to": "memory://south", "subscriptions": ["t/>"]}
    )
    everything(homes)
    homes.send("a", "t/1", b"1")
    homes.send("a", "t/2", b"2")
    homes.send("b", "t/1", b"3")
    homes.advance("1s")
    assert homes.admin.describe_bridge("south")["waiting"] == 3
    assert sorted(homes.there()) == [b"1", b"2", b"3"]
    assert homes.admin.describe_bridge("narrow")["taken"] == 1


@pytest.mark.parametrize("also", [False, True])
def test_H1_what_a_bridge_of_the_home_brings_is_not_offered_too(also: bool) -> None:
    """a ─▶ b ─▶ east: from b on it goes by that way alone, also where c leads there too; what is
    published at c comes to east by an offer, or over c's own bridge."""
    homes = SpreadHomes(
        local("qc", "c", "t/>"), bridges={"out": "b", **({"out-c": "c"} if also else {})}
    )
    homes.admin.bridge({"name": "ab", "from": "a", "to": "b", "subscriptions": ["t/>"]})
    everything(homes)
    for n, broker in enumerate("abcabc"):
        homes.send(broker, "t/1", b"%d" % n)
    homes.advance("1s")
    assert sorted(homes.there()) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert homes.admin.describe_bridge("ab")["taken"] == 2
    assert homes.admin.describe_bridge("out")["taken"] == (4 if also else 6)


def test_H1_a_bridge_of_the_home_takes_no_offers_still() -> None:
    spread = Spread(local("q", "c", "t/1"))
    spread.admin.bridge({"name": "bc", "from": "b", "to": "c", "subscriptions": ["t/>"]})
    for n, broker in enumerate("abc"):
        spread.send(broker, "t/1", b"%d" % n)
    spread.engine.advance("1s")
    assert sorted(spread.bodies("q")) == [b"0", b"1", b"2"]
    assert spread.admin.describe_bridge("bc")["taken"] == 1


def test_H1_topics_and_places_that_change_are_told() -> None:
    homes = SpreadHomes(bridges={"b-out": "b", "c-out": "c"})
    everything(homes)
    given = {"name": "b-out", "from": "b", "to": "memory://east", "subscriptions": ["u/>"]}
    homes.admin.bridge(given)
    homes.send("a", "t/1", b"1")  # over c now
    homes.advance("1s")
    assert homes.there() == [b"1"]
    homes.admin.bridge(given | {"to": "memory://south", "subscriptions": ["t/>"]})
    homes.send("a", "t/1", b"2")
    homes.advance("1s")
    assert homes.there() == [b"1", b"2"]
    seen = homes.admin.describe_bridge("b-out")
    assert seen["waiting"] + seen["on_its_way"] == 1
    homes.admin.bridge(given | {"to": "memory://east/default", "subscriptions": ["t/>"]})
    homes.send("a", "t/1", b"3")  # as b leads there again, over b alone
    homes.advance("30s")
    assert homes.there().count(b"3") == 1
    assert homes.admin.describe_bridge("c-out")["taken"] == 2


def test_H1_what_comes_over_a_bridge_is_not_offered_on() -> None:
    """So nothing goes round: what comes back to another broker of the home stays there."""
    homes = SpreadHomes(local("back", "c", "t/>"), bridges={"out": "b"})
    everything(homes)
    back = {"name": "back", "subscriptions": ["t/>"]}
    homes.admin.bridge(back | {"from": "memory://east", "to": "c"})
    homes.far.bridge(back | {"from": "far2", "to": "memory://west?broker=c"})
    homes.east.connect("far2", "there").producer().send("t/1", b"1")
    homes.advance("2s")
    assert homes.bodies("back") == [b"1"]
    assert homes.admin.describe_bridge("out")["taken"] == 0
    homes.send("a", "t/1", b"2")
    homes.advance("2s")
    assert homes.bodies("back") == [b"1", b"2"]
    assert homes.there() == [b"1", b"2"]
    assert homes.far.describe_bridge("back")["taken"] == 1


def test_H1_a_bridge_to_another_vpn_takes_what_is_published_anywhere() -> None:
    """A distributed queue there has it once, though two brokers lead there."""
    config = {"brokers": ["a", "b", "c"], "vpns": {"near": None, "far": None}}
    engine = MortalEngine(parse_configuration(config))
    engine.checking = True
    from lakequeue.memory import MemoryConnection

    at = {name: MemoryConnection(engine, "near", f"app-{name}", name) for name in "abc"}
    far = MemoryConnection(engine, "far", "consumer", "a").admin()
    for near in "bc":
        one = {"name": f"from-{near}", "subscriptions": ["t/>"]}
        far.bridge(one | {"from": "vpn://near", "to": near})
        at["a"].admin().bridge(one | {"from": near, "to": "vpn://far"})
    far.define({"name": "shared", "message_type": "json", "subscriptions": ["t/>"]})
    far.define(local("only", "b", "t/>"))
    for n, broker in enumerate("abc"):
        at[broker].producer().send("t/1", b"%d" % n)
    engine.advance("1s")
    assert sorted(m.payload for m in far.browse("shared")) == [b"0", b"1", b"2"]
    assert sorted(m.payload for m in far.browse("only")) == [b"0", b"1"]


def test_H1_whichever_broker_of_it_a_home_is_one_place() -> None:
    places = {
        far_home("kafka://b:1,a:2/v?broker=x", "v"), far_home("kafka://a:2,b:1", "v"),
        far_home("kafka://a:2,b:1?broker=y", "v"),
    }  # fmt: skip
    assert len(places) == 1
    others = {
        *places, far_home("kafka://a:2,b:1", "w"), far_home("kafka://a:2", "v"),
        far_home("vpn://v", "v"), far_home("memory://a", "v"),
    }  # fmt: skip
    assert len(others) == 5
    assert far_home("vpn://x?broker=a", "v") == far_home("vpn://x", "w")


def test_an_offer_without_the_word_of_bridges_is_for_queues_alone() -> None:
    """As one that was made before this broker, or that one, knew of them."""
    old = Offer(1, 1, "v", [], 0, ["t"], [0], [b""], [0], [0], [0], [0], [None], [b""], [None])
    assert old.out == []


@pytest.mark.parametrize("seed", range(10))
def test_H1_whoever_dies_each_message_goes_over_once(seed: int) -> None:
    """Queues, bridges within the home and to another one; the sides do not hear each other now and
    then, and endpoints there are full; a queue moves."""
    fate = Fate(seed, death=0.08)
    limits: Limits | None = TINY if seed % 2 else None
    nears = {"b-out": "b"} | ({"c-out": "c"} if seed % 3 else {})
    homes = SpreadHomes(
        local("qa", "a", "t/1"), local("qc", "c", "t/>"), bridges=nears, fate=fate, limits=limits
    )
    if seed % 4 == 3:
        homes.admin.bridge({"name": "ab", "from": "a", "to": "b", "subscriptions": ["t/>"]})
    homes.far.define(local("small", "far", "t/0", max_spool_messages=2))
    homes.far.define(local("rest", "far", "t/1", "t/2"))
    for name in nears:
        forgetful(homes.engine.homes.copier(name), fate)
    homes.east.fated(fate)
    random, sent = fate.random, list[tuple[str, bytes, Any]]()
    got: list[bytes] = []
    for turn in range(12):
        deaf = random.choice("abc") if random.random() < 0.3 else None
        if deaf:
            homes.engine.cut(deaf)
        for _ in range(4):
            to, body = f"t/{random.randrange(3)}", b'{"n": %d}' % len(sent)
            sent.append((to, body, homes.start(random.choice("abc"), to, body)))
        if turn == 6:
            with_room = random.choice("ab")
            homes.admin.move_queue("qc", broker=with_room) if not deaf else None
        homes.advance("300ms")
        if deaf:
            homes.engine.mend(deaf)
        got += homes.eaten("small")
    for engine in (homes.engine, homes.east):
        engine.fated(None)  # type: ignore[attr-defined]
    for name in nears:
        begin_again = homes.engine.homes.copier(name).begin_again  # type: ignore[attr-defined]
        forgetful(homes.engine.homes.copier(name), None)
        begin_again()
    for _ in range(60):
        homes.advance("2s")
        got += homes.eaten("small")
    assert all(one.result(0).message_id for _, _, one in sent)
    wanted = {to: sorted(body for at, body, _ in sent if at == to) for to in ("t/0", "t/1", "t/2")}
    assert sorted(got) == wanted["t/0"]
    assert sorted(homes.there("rest")) == sorted([*wanted["t/1"], *wanted["t/2"]])
    assert sorted(homes.bodies("qc")) == sorted(body for _, body, _ in sent)
    assert sorted(homes.bodies("qa")) == wanted["t/1"]
    assert fate.deaths
    for engine in (homes.engine, homes.east):
        engine.check()
