"""Bridges between two homes (H1–H3, X4): nothing lost, nothing doubled, whatever is copied twice or
late, and however long the homes do not reach each other."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from lakequeue.definitions import parse_configuration
from lakequeue.mesh.bridges import far_end
from lakequeue.protocol.home_bridges import HomeSend, decode_send, encode

from .two_homes import BRIDGE, TINY, Two


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


def test_H1_messages_keep_all_fields_on_the_way_to_another_home() -> None:
    homes = Two()
    homes.define("q", "a/b")
    homes.send("a/b", "one", priority=7, headers={"k": "v"}, key=b"key")
    with homes.east.consumer("q", ack_mode="auto") as consumer:
        message = consumer.receive(timeout=0)
    assert message is not None
    assert (message.payload, message.priority, message.key) == (b"one", 7, b"key")
    assert message.headers == {"k": "v"}
    seen, far = homes.seen(), homes.seen_far()
    assert (seen["state"], seen["taken"], seen["on_its_way"]) == ("open", 1, 0)
    assert (far["state"], far["taken"], far["from"]) == ("open", 1, "memory://west")
    assert far["home"] == {"epoch": 0, "broker": "near"}


def test_H1_a_home_unreachable_for_minutes_loses_and_doubles_nothing() -> None:
    homes = Two(TINY)
    homes.define("q", "a/>")
    homes.send("a/1", *range(3))
    homes.cut()
    for n in range(3, 40):
        homes.send(f"a/{n % 10}", n)
    homes.advance("10m")
    seen = homes.seen()
    assert seen["on_its_way"] == TINY.bridge_rows  # bounded, however long it lasts
    assert (seen["waiting"], seen["unanswered_s"]) == (30, 600)
    homes.mend()
    bodies = [int(body) for body in homes.bodies("q")]
    assert sorted(bodies) == list(range(40))
    for last in range(10):
        own = [n for n in bodies if n > 2 and n % 10 == last]
        assert own == sorted(own)
    assert homes.seen()["unanswered_s"] is None


def test_H1_records_after_a_missing_one_wait_for_it() -> None:
    """The gap is reported once. The copier starts again, and repeats all later records too."""
    homes = Two()
    homes.define("q", "a/>")
    copier, copied = homes.copier, list[Any]()
    copier.bring = (
        lambda *given: (  # type: ignore[method-assign]
            copied.append(given) or len(copied) == 2 or bring(copier, copied[-1:])
        )
    )
    for to in "1234":
        homes.send(f"a/{to}", to)
    assert homes.bodies("q") == ["1"]
    (gap,) = homes.events("east", "bridge_gap")
    assert (gap["bridge"], gap["came"] - gap["number"]) == ("out", 1)
    bring(copier, copied[1:])
    assert homes.bodies("q") == ["2", "3", "4"]
    assert len(homes.events("east", "bridge_gap")) == 1


def test_H1_unexpected_records_are_refused() -> None:
    homes = Two(expects=None)
    homes.define("q", ">")
    homes.send("a/b", "x")
    assert homes.depth("q") == 0
    (told,) = homes.events("east", "bridge_refused")
    assert told["why"] == (
        "bridge: 'out' – no bridge of this name arrives here; broker 'near' of home 0 sends it"
    )
    homes.advance("1m")
    seen = homes.seen()
    assert (seen["unanswered_s"], seen["state"], seen["why"]) == (60, "waiting", told["why"])


def test_H1_another_sender_cannot_use_a_bridge() -> None:
    homes = Two()
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
    homes.expect()
    bring(homes.copier, stranger)
    homes.send("a/b", "y")
    assert homes.bodies("q") == ["x"]
    seen = homes.seen()  # the near end learns why (H2)
    assert (seen["state"], seen["on_its_way"]) == ("waiting", 1)
    assert homes.seen_far()["home"]["epoch"] == 1
    assert seen["why"] == f"bridge: 'out' – is for home 1; {how}; broker 'near' of home 0 sends it"
    homes.expect()
    bring(homes.copier, own[1:])
    assert homes.bodies("q") == ["y"]
    assert (homes.seen()["state"], homes.seen()["why"]) == ("open", "")


def test_H1_a_bridge_remembers_the_last_homes_that_sent_over_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their repeated records are not taken in again."""
    monkeypatch.setattr(far_end, "HOMES_MAX", 2)
    homes = Two()
    homes.define("q", "a/>")
    own = record(homes.copier)
    homes.send("a/b", "x")

    def copied(epoch: int, link: int = 0) -> bool:
        """Whether it is taken in. link: a home's next one, when its end was made again."""
        homes.expect()
        (*to, value) = own[0]
        message = decode_send(value)
        send = msgspec.structs.replace(message.send, link=message.send.link + link)
        bring(homes.copier, [(*to, encode(HomeSend(epoch, "near", message.oldest, send)))])
        return homes.bodies("q") == ["x"]

    assert homes.bodies("q") == ["x"]
    assert [copied(epoch) for epoch in (1, 2, 3)] == [True] * 3
    assert [copied(epoch) for epoch in (2, 3, 1, 2)] == [False, False, True, True]
    assert [copied(*one) for one in ((1, 1), (3, 0), (1, 1))] == [True, True, False]


def test_H1_a_message_outside_the_far_ends_patterns_is_refused() -> None:
    homes = Two(expects="a/>", subscriptions=[">"])
    homes.define("q", ">")
    homes.send("b/c", "not expected")
    homes.send("a/c", "expected")
    assert homes.bodies("q") == ["expected"]
    (blocked,) = homes.seen()["blocked"]
    assert (blocked["reason"], blocked["destinations"]) == ("permission_denied", ["b/c"])


# ---------------------------------------------------------------- recreated ends


def test_H1_a_recreated_bridge_repeats_no_message() -> None:
    homes = Two()
    homes.define("q", "a/>")
    copier = homes.copier
    copied = record(copier)
    homes.send("a/1", 1, 2)
    homes.expect()
    bring(copier, copied)
    homes.send("a/1", 3)
    assert homes.bodies("q") == ["1", "2", "3"]
    homes.west.admin().delete_bridge("out")
    homes.west.admin().bridge(BRIDGE)
    bring(copier, copied)  # of a deleted bridge
    homes.send("a/1", 4)
    assert homes.bodies("q") == ["4"]


def test_H1_a_bridge_recreated_on_another_broker_continues() -> None:
    """The far end takes no more records of the earlier broker, and the new one ignores answers to
    it. The numbers of queues are higher there."""
    homes = Two()
    homes.define("q", "a/>")
    homes.engines["west"].configure(parse_configuration({"brokers": ["near", "beside"]}))
    for n in range(4):
        homes.west.admin().define({"name": f"own{n}", "message_type": "text", "type": "LocalQueue"})
    late: list[Any] = []
    for n, broker in enumerate(("near", "beside", "near", "beside", "beside")):
        if n:
            homes.west.admin().delete_bridge("out")
        homes.west.admin().bridge(BRIDGE | {"from": broker})
        copied = record(homes.copier)
        homes.send("a/1", f"{n}a", f"{n}b")
        assert (homes.seen()["taken"], homes.seen()["on_its_way"]) == (2, 0)
        bring(homes.copier, late)
        homes.send("a/1", f"{n}c")
        assert homes.bodies("q") == [f"{n}a", f"{n}b", f"{n}c"]
        assert homes.seen_far()["home"] == {"epoch": 0, "broker": broker}
        late = copied
    assert homes.events("east", "bridge_refused") == []


def test_H1_a_far_end_recreated_on_another_broker_continues() -> None:
    """The near end learns the new place. Only unanswered messages are sent there."""
    homes = Two()
    east, at = homes.engines["east"], ("far", "beside")
    east.configure(parse_configuration({"brokers": list(at)}))
    for broker in at:
        homes.define(broker, "a/>", broker=broker)
    want: dict[str, list[str]] = {"far": [], "beside": []}
    for n, broker in enumerate(("beside", "far")):
        copied = record(homes.copier)
        homes.send("a/1", f"{n}a", f"{n}b")
        homes.expect(to=broker)
        homes.send("a/1", f"{n}c", f"{n}d")
        seen = homes.seen()
        assert (seen["state"], seen["on_its_way"], seen["waiting"]) == ("waiting", 1, 1)
        assert seen["why"].startswith(
            f"bridge: 'out' – arrives at broker {broker!r} here: put ?broker={broker} into its `to`"
        )
        homes.west.admin().bridge({"name": "out", "to": f"memory://east?broker={broker}"})
        homes.advance("1s")
        bring(homes.copier, [(east, "default", at.index(broker), copied[-1][-1])])
        homes.advance("1s")
        homes.send("a/1", f"{n}e")
        seen = homes.seen()
        assert (seen["state"], seen["on_its_way"], seen["waiting"]) == ("open", 0, 0)
        for bodies in want.values():
            bodies += [f"{n}{one}" for one in "abcde"]
    assert {queue: homes.bodies(queue) for queue in want} == want
    assert homes.seen()["taken"] == 10


def test_H1_a_recreated_far_home_gets_messages_from_the_oldest_unconfirmed_one() -> None:
    homes = Two()
    homes.define("q", "a/>")
    homes.send("a/1", 1, 2, 3)
    assert homes.bodies("q") == ["1", "2", "3"]
    homes.engines["east"] = east = Two.ENGINE(parse_configuration({"brokers": ["far"]}))
    east.homes.find = homes.engines.get
    homes.far = homes.east = east.connect()
    homes.copier.answers = None
    homes.expect()
    homes.define("q", "a/>")
    homes.send("a/1", 4)
    assert homes.bodies("q") == ["4"]


def test_H1_a_lost_answer_is_repeated_with_its_record() -> None:
    """Also after a later record, which names this one as the oldest unanswered."""
    homes = Two()
    homes.define("q", "a/>")
    copied = record(homes.copier)
    homes.copier.answered = lambda value: None  # type: ignore[method-assign]
    homes.send("a/1", 1)
    homes.send("a/2", 2)
    del homes.copier.answered
    assert homes.seen()["on_its_way"] == 2
    bring(homes.copier, copied)
    homes.advance("0s")
    assert (homes.seen()["on_its_way"], homes.seen()["taken"]) == (0, 2)
    assert homes.bodies("q") == ["1", "2"]
