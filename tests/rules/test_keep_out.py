"""A client of one VPN cannot affect another, nor the brokers: each attempt is refused like any
other bad command, counted, and found in ``<vpn>.rejected``."""

from __future__ import annotations

from typing import Any

import pytest
from lakequeue.definitions import parse_configuration
from lakequeue.mesh.mesh import Mesh
from lakequeue.protocol import ConfigError
from lakequeue.protocol import commands as c
from lakequeue.protocol.outputs import Deliveries, RejectedRecord
from lakequeue.state import Batch, Home
from rules.steps import Steps, asking, define, described, of, replies, started, subscribe

FORGED = [
    c.Configure(system={"max_spool_usage": 0}, vpns={"default": {"max_spool_usage": 0}}),
    c.Peers(brokers={"broker-0": 0, "evil": 1}),
    c.RecordsLost(topic="default.publish", records=7),
    c.Stuck(why="no step for 30 s"),
    c.RecordRefused(topic="default.receipts", why="too large"),
    c.Undeliverable(
        queue="orders", ids="1", topic="default.deliveries", reason="message_too_large", why="x"
    ),
    c.BeginAgain(queue="orders"),
    c.Tick(),
    c.Clients(required=False),
    c.Tables(written=False),
    c.ExistingTopics(topics=[]),
]
assert {*map(type, FORGED)} == {*c.OF_ENGINE}


def say_as_tenant(steps: Steps, command: c.Command) -> list[Any]:
    records = steps.instructions([("default", c.encode_command(command))])
    records.topics[:], records.keys[:] = ["default.commands"], [b"session"]
    return steps.step_alone(Batch(records))


def usage(steps: Steps) -> dict[str, Any]:
    found: dict[str, Any] = steps.ask(c.Usage())
    return found


@pytest.mark.parametrize("forged", FORGED, ids=lambda command: type(command).__name__)
def test_instructions_of_the_engine_are_refused_from_a_tenant(forged: c.Command) -> None:
    steps = started(define(), subscribe("a"))
    steps.run(publishes=[("orders", b"1")])
    before = described(steps), usage(steps)
    said = say_as_tenant(steps, asking(forged))
    (rejected,) = of(RejectedRecord, said)
    assert "only the engine may give it" in rejected.error
    assert rejected.vpn == "default"
    (answer,) = replies(said)
    assert (answer.kind, answer.error) == ("ConfigError", rejected.error)
    after = described(steps), usage(steps)
    assert after[1]["vpn"]["refused"].pop("malformed") == 1
    assert after[0]["consumers"] == before[0]["consumers"]
    assert after[1]["broker"].get("peers") == before[1]["broker"].get("peers")
    assert steps.run([], [("orders", b"2")])  # the spool's limit is unchanged
    assert described(steps)["depth"] == 2


def test_the_engine_gives_instructions_on_its_own_topic() -> None:
    steps = Steps()
    steps.broker.mesh = Mesh.load(steps.broker)
    steps.run([define(), *FORGED[1:], c.Configure(system={"max_delivered_unacked": 1})])
    assert not usage(steps)["vpn"]["refused"]


@pytest.mark.parametrize("key", [None, b"", b"\xff", b"a b", b"x" * 300])
def test_an_instruction_without_a_vpn_is_refused(key: bytes | None) -> None:
    steps = Steps()
    records = steps.instructions([("default", c.encode_command(define()))])
    records.keys[:] = [key]
    said = steps.step_alone(Batch(records))
    (rejected,) = of(RejectedRecord, said)
    assert "the name of the VPN" in rejected.error


def test_instructions_of_another_home_are_skipped() -> None:
    """An old topic of the same name has instructions for an earlier home."""
    steps = Steps(home=Home(epoch=7))
    old = [("default", c.encode_command(command)) for command in (c.Begin(epoch=6), define())]
    steps.step_alone(Batch(steps.instructions(old)))
    steps.run([c.Begin(epoch=7)])
    assert "no such queue" in steps.error(c.Describe(queue="orders"))


@pytest.mark.parametrize(("names", "said"), [
    ({"vpns": {"a": {}, "a.b": {}}}, "vpns 'a.b'"),
    ({"vpns": {"a": {}, "a.deliveries": {}}}, "vpns 'a.deliveries'"),
    ({"vpns": {"a": {}}, "brokers": ["x", "a"]}, "brokers 'a'"),
    ({"vpns": {"a": {}}, "brokers": ["a.x"]}, "brokers 'a.x'"),
    ({"vpns": {"a.x": {}}, "brokers": ["a"]}, "vpns 'a.x'"),
])  # fmt: skip
def test_no_name_collides_with_a_vpns_topics(names: dict[str, Any], said: str) -> None:
    """An ACL for one VPN's prefix would open the other's topics, or a broker's."""
    with pytest.raises(ConfigError, match="topics of") as caught:
        parse_configuration(names)
    assert said in str(caught.value)
    assert parse_configuration({"vpns": {"a": {}, "ab": {}, "b.a": {}}, "brokers": ["c", "a-b"]})


@pytest.mark.parametrize("topic", ["b.deliveries.mine", "b.publish", "b.x", "b.deliveries"])
@pytest.mark.parametrize("pattern", ["{}", ".*", "b[.].*"])
def test_no_queue_captures_a_topic_of_another_vpn(topic: str, pattern: str) -> None:
    """Its publish topic is read for that VPN alone, and other topics with its name as prefix are
    its own."""
    own_target = {} if pattern == "{}" else {"default_publish_target": "b.x"}
    thief = define("thief", underlying_topic=pattern.format(topic), **own_target)
    steps = Steps()
    of_b = c.encode_command(define("own", underlying_topic="b.x"))
    steps.step_alone(Batch(steps.instructions([("b", of_b)])))
    steps.run([thief, subscribe("t", queue="thief")])
    records = steps.instructions([("b", b"secret")])
    records.topics[:] = [topic]
    said = steps.step_alone(Batch(publishes=records))
    assert not of(Deliveries, said)
    assert described(steps, "thief")["depth"] == 0
