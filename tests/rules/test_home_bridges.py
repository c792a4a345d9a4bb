"""Bridges between two homes (H1–H3, X4): nothing lost, nothing doubled, whoever dies, whatever is
copied twice or late, and however long the two do not reach each other."""

from typing import Any

import msgspec
import pytest
from lakequeue.definitions import parse_configuration
from lakequeue.protocol import ConfigError
from lakequeue.protocol import commands as c
from lakequeue.protocol.home_bridges import decode_send, encode

from .joined import ARRIVES, LEAVES, Homes
from .two_homes import TINY


def record(copier: Any) -> list[Any]:
    """The records that it copies from now on."""
    copied: list[Any] = []

    def bring(*given: Any) -> None:
        copied.append(given)
        type(copier).bring(copier, *given)

    copier.bring = bring
    return copied


def bring(copier: Any, copied: list[Any]) -> None:
    """Copy records once more."""
    for one in list(copied):
        type(copier).bring(copier, *one)


def test_h1_messages_go_to_another_home_with_all_that_is_theirs() -> None:
    homes = Homes()
    homes.define("q", "a/b")
    homes.send("a/b", "one", priority=7, headers={"k": "v"}, key=b"key")
    with homes.east.consumer("q", ack_mode="individual") as consumer:
        message = consumer.receive(timeout=0)
        assert message is not None
        assert (message.payload, message.priority, message.key) == (b"one", 7, b"key")
        assert message.headers == {"k": "v"}
        message.ack()
    seen, far = homes.seen(), homes.seen_far()
    assert (seen["state"], seen["taken"], seen["on_its_way"]) == ("open", 1, 0)
    assert (far["state"], far["taken"], far["from"]) == ("open", 1, "memory://west")
    assert far["home"] == {"epoch": 0, "broker": "near"}


def test_h1_a_home_that_is_not_reached_for_minutes_loses_and_doubles_nothing() -> None:
    homes = Homes(TINY)
    homes.define("q", "a/>")
    homes.send("a/1", *range(3))
    homes.copier.is_cut = True
    for n in range(3, 40):
        homes.send(f"a/{n % 10}", n)
    homes.advance("10m")
    seen = homes.seen()
    assert seen["on_its_way"] == TINY.bridge_rows  # bounded, however long it lasts
    assert (seen["waiting"], seen["unanswered_s"]) == (30, 600)
    homes.copier.is_cut = False
    homes.advance("0s")
    bodies = [int(body) for body in homes.bodies("q")]
    assert sorted(bodies) == list(range(40))
    for last in range(10):
        own = [n for n in bodies if n > 2 and n % 10 == last]
        assert own == sorted(own)
    assert homes.seen()["unanswered_s"] is None


def test_h1_what_comes_behind_a_record_that_is_missing_waits_for_it() -> None:
    """The gap is told once. What copies begins again, and brings all that came behind it too."""
    homes = Homes()
    homes.define("q", "a/>")
    copier, arrives = homes.copier, type(homes.copier).bring
    copied: list[Any] = []

    def bring(*record: Any) -> None:
        copied.append(record)
        if len(copied) != 2:
            arrives(copier, *record)

    copier.bring = bring  # type: ignore[method-assign]
    for to in "1234":
        homes.send(f"a/{to}", to)
    assert homes.bodies("q") == ["1"]
    (gap,) = homes.events("east", "bridge_gap")
    assert (gap["bridge"], gap["came"] - gap["number"]) == ("out", 1)
    for record in copied[1:]:
        arrives(copier, *record)
    assert homes.bodies("q") == ["2", "3", "4"]
    assert len(homes.events("east", "bridge_gap")) == 1


def test_x4_time_to_live_counts_on_in_another_home() -> None:
    homes = Homes()
    homes.define("q", "a/>")
    homes.copier.is_cut = True
    homes.send("a/b", "x", ttl="8s")
    homes.send("a/c", "y", ttl="1s")
    homes.advance("2s")
    homes.copier.is_cut = False
    homes.advance("0s")
    assert homes.bodies("q") == ["x"]
    homes.copier.is_cut = True
    homes.send("a/b", "z", ttl="8s")
    homes.advance("2s")
    homes.copier.is_cut = False
    homes.advance("0s")
    with homes.east.consumer("q") as consumer:
        message = consumer.receive(timeout=0)
        assert message is not None
        assert message.payload == b"z"
    homes.advance("5.9s")
    assert homes.east.admin().describe("q")["depth"] == 1
    homes.advance("100ms")
    assert homes.east.admin().describe("q")["depth"] == 0


def test_h1_nothing_comes_in_that_is_not_expected() -> None:
    homes = Homes(expected=False)
    homes.define("q", ">")
    homes.send("a/b", "x")
    assert homes.east.admin().describe("q")["depth"] == 0
    (told,) = homes.events("east", "bridge_refused")
    assert told["why"] == (
        "bridge: 'out' – no bridge of this name arrives here; broker 'near' of home 0 sends it"
    )
    homes.advance("1m")
    seen = homes.seen()
    assert (seen["unanswered_s"], seen["state"], seen["why"]) == (60, "waiting", told["why"])


def test_h1_who_is_another_does_not_speak_over_a_bridge() -> None:
    homes = Homes()
    homes.define("q", "a/>")
    own = record(homes.copier)
    homes.send("a/b", "x")
    stranger = [
        (*to, encode(msgspec.structs.replace(decode_send(value), epoch=1))) for *to, value in own
    ]
    bring(homes.copier, stranger)
    assert homes.bodies("q") == ["x"]
    (told,) = homes.events("east", "bridge_refused")
    how = "to admit another home, delete it here and define it again"
    assert told["why"] == f"bridge: 'out' – is for home 0; {how}; broker 'near' of home 1 sends it"
    homes.east.admin().delete_bridge("out")
    homes.east.admin().bridge(ARRIVES)
    bring(homes.copier, stranger)
    homes.send("a/b", "y")
    assert homes.bodies("q") == ["x"]
    seen = homes.seen()  # the near end is told why (H2)
    assert (seen["state"], seen["on_its_way"], homes.seen_far()["home"]["epoch"]) == (
        "waiting",
        1,
        1,
    )
    assert seen["why"] == f"bridge: 'out' – is for home 1; {how}; broker 'near' of home 0 sends it"
    homes.east.admin().delete_bridge("out")
    homes.east.admin().bridge(ARRIVES)
    bring(homes.copier, own[1:])
    assert homes.bodies("q") == ["y"]
    assert (homes.seen()["state"], homes.seen()["why"]) == ("open", "")


def test_h1_a_message_goes_nowhere_that_the_far_end_does_not_expect() -> None:
    homes = Homes(subscriptions=[">"])
    homes.define("q", ">")
    homes.send("b/c", "not expected")
    homes.send("a/c", "expected")
    assert homes.bodies("q") == ["expected"]
    (blocked,) = homes.seen()["blocked"]
    assert (blocked["reason"], blocked["destinations"]) == ("permission_denied", ["b/c"])


def test_h1_what_was_taken_in_is_not_taken_in_again_when_the_bridge_is_made_again() -> None:
    homes = Homes()
    homes.define("q", "a/>")
    copier = homes.copier
    copied = record(copier)
    homes.send("a/1", 1, 2)
    homes.east.admin().delete_bridge("out")
    homes.east.admin().bridge(ARRIVES)
    bring(copier, copied)
    homes.send("a/1", 3)
    assert homes.bodies("q") == ["1", "2", "3"]
    homes.west.admin().delete_bridge("out")
    homes.west.admin().bridge(LEAVES)
    bring(copier, copied)  # of a bridge that is gone
    homes.send("a/1", 4)
    assert homes.bodies("q") == ["4"]


def test_h1_a_bridge_that_is_made_again_at_another_broker_goes_on() -> None:
    """The far end takes nothing more of the earlier broker, and its answers are not the new one's.
    The numbers of queues are higher there."""
    homes = Homes()
    west = homes.engines["west"]
    homes.define("q", "a/>")
    west.configure(parse_configuration({"brokers": ["near", "beside"]}))
    for n in range(4):
        homes.west.admin().define({"name": f"own{n}", "message_type": "text", "type": "LocalQueue"})
    last: list[str] = []
    for n, broker in enumerate(("near", "beside", "near", "beside", "beside")):
        if n:
            homes.west.admin().delete_bridge("out")
        homes.west.admin().bridge(LEAVES | {"from": broker})
        copier, late = homes.copier, last
        copied = record(copier)
        homes.send("a/1", f"{n}a", f"{n}b")
        assert (homes.seen()["taken"], homes.seen()["on_its_way"]) == (2, 0)
        bring(copier, late)
        homes.send("a/1", f"{n}c")
        assert homes.bodies("q") == [f"{n}a", f"{n}b", f"{n}c"]
        assert homes.seen_far()["home"] == {"epoch": 0, "broker": broker}
        last = copied
    assert homes.events("east", "bridge_refused") == []


def test_h1_a_far_end_that_is_made_again_at_another_broker_goes_on() -> None:
    """The near end is told where it is. Only what has no answer yet comes there."""
    homes = Homes()
    east = homes.engines["east"]
    east.configure(parse_configuration({"brokers": ["far", "beside"]}))
    for broker in ("far", "beside"):
        own = {"name": broker, "message_type": "binary", "type": "LocalQueue", "broker": broker}
        homes.east.admin().define(own | {"subscriptions": ["a/>"]})
    want: dict[str, list[str]] = {"far": [], "beside": []}
    for n, broker in enumerate(("beside", "far")):
        copied = record(homes.copier)
        homes.send("a/1", f"{n}a", f"{n}b")
        homes.east.admin().delete_bridge("out")
        homes.east.admin().bridge(ARRIVES | {"to": broker})
        homes.send("a/1", f"{n}c", f"{n}d")
        seen = homes.seen()
        assert (seen["state"], seen["on_its_way"], seen["waiting"]) == ("waiting", 1, 1)
        assert seen["why"].startswith(
            f"bridge: 'out' – arrives at broker {broker!r} here: put ?broker={broker} into its `to`"
        )
        homes.west.admin().bridge({"name": "out", "to": f"memory://east?broker={broker}"})
        homes.advance("1s")
        bring(homes.copier, [(east, "default", ("far", "beside").index(broker), copied[-1][-1])])
        homes.advance("1s")
        homes.send("a/1", f"{n}e")
        assert homes.seen()["on_its_way"] == homes.seen()["waiting"] == 0
        assert homes.seen()["state"] == "open"
        for queue in want:
            want[queue] += [f"{n}{one}" for one in "abcde"]
    for queue, bodies in want.items():
        assert homes.bodies(queue) == bodies
    assert homes.seen()["taken"] == 10


def test_h1_a_far_home_that_begins_anew_is_told_from_the_oldest_without_an_answer() -> None:
    homes = Homes()
    homes.define("q", "a/>")
    homes.send("a/1", 1, 2, 3)
    assert homes.bodies("q") == ["1", "2", "3"]
    east = type(homes.engines["east"])()
    homes.engines["east"] = east
    east.homes.find = homes.engines.get
    homes.east = east.connect()  # type: ignore[attr-defined]
    homes.copier.answers = None
    homes.east.admin().bridge({k: v for k, v in ARRIVES.items() if k != "to"} | {"to": "broker-0"})
    homes.define("q", "a/>")
    homes.send("a/1", 4)
    assert homes.bodies("q") == ["4"]


def test_h1_a_home_that_serves_no_bridges_to_others_refuses_them() -> None:
    homes = Homes(leaves=None, expected=False)
    begin = c.encode_command(c.Begin(epoch=0, joins_homes=False))
    for name, bridge in (("west", LEAVES), ("east", ARRIVES)):
        homes.engines[name].instruct("default", begin)
        admin = {"west": homes.west, "east": homes.east}[name].admin()
        with pytest.raises(ConfigError) as refused:
            admin.bridge(bridge)
        key = "to" if name == "west" else "from"
        assert str(refused.value) == (
            f"bridge 'out': {key}: {bridge[key]!r} – must be in this home: the trigger "
            "'micro-batch' serves no bridge to another Kafka"
        )
        assert admin.bridges() == []


def test_h1_bridges_between_homes_make_a_chain_and_end_with_a_sentence_at_home() -> None:
    homes = Homes()
    homes.west.admin().bridge(LEAVES | {"name": "home", "to": "memory://west"})
    (seen,) = [b for b in homes.west.admin().bridges() if b["name"] == "home"]
    assert (seen["state"], seen["why"]) == ("waiting", "memory://west: is this home itself")
    homes.west.admin().bridge(LEAVES | {"name": "none", "to": "memory://north"})
    homes.west.admin().bridge(LEAVES | {"name": "far", "to": "memory://east?broker=nobody"})
    shown = {b["name"]: b["why"] for b in homes.west.admin().bridges()}
    assert shown["none"] == "memory://north: no engine of this process has that name"
    assert "broker: 'nobody' – allowed are the engine's brokers: far" in shown["far"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"to": "kafka://"}, r"to: 'kafka://' – must be kafka://HOST:PORT\[/VPN\]"),
        ({"to": "kafka://me:pw@h:1"}, "put credentials into a file"),
        ({"to": "http://h:1"}, "must be a broker of this home, kafka://HOST:PORT"),
        ({"to": "kafka://h:1?user=x"}, "without any other option"),
        ({"from": "kafka://h:1"}, "must be a broker of this home, since"),
        ({"credentials": "x"}, "are for a bridge that leads to another Kafka"),
        ({"to": "kafka://h:1", "credentials": "../x"}, "credentials: '../x' – must be at most 64"),
        ({"from": "nobody"}, "from: 'nobody' – must be a broker of this home, which has 'near'"),
    ],
)
def test_h1_a_wrong_bridge_between_homes_is_a_sentence(changes: dict[str, Any], why: str) -> None:
    homes = Homes()
    before = homes.west.admin().bridges()
    with pytest.raises(ConfigError, match=why):
        homes.west.admin().bridge(LEAVES | {"name": "other"} | changes)
    assert homes.west.admin().bridges() == before
