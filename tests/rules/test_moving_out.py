"""Q5: local queues leave a broker that is removed, each to where a new one would be made; what
cannot move ends the removal, and what has moved stays moved. Nothing is lost, nothing comes twice,
whoever dies."""

from __future__ import annotations

from typing import Any

import pytest
from lakequeue.memory.broker_removal import remove_broker
from lakequeue.protocol import LakequeueError, commands
from lakequeue.protocol.errors import ConfigError
from lakequeue.state.mesh import parting

from .harness import drain
from .mesh import of_an_older_home
from .mortal import Fate
from .spread import Spread, local


def where(spread: Spread) -> dict[str, str]:
    """Which broker has which queue."""
    return {one["name"]: one["broker"] for one in spread.admin.queues()}


def names(spread: Spread) -> list[str]:
    return [one["name"] for one in spread.admin.brokers()]


def test_Q5_queues_go_to_the_brokers_with_the_fewest() -> None:
    spread = Spread(
        local("a1", "a"), local("a2", "a"), local("b1", "b"),
        *(local(f"c{n}", "c", "t") for n in range(5)),
    )  # fmt: skip
    sent = [spread.send("c", "t", b"%d" % n) for n in range(3)]
    moved = remove_broker(spread.engine, "c")
    assert [tuple(one) for one in moved] == [
        ("default", "c0", "b"), ("default", "c1", "a"), ("default", "c2", "b"),
        ("default", "c3", "a"), ("default", "c4", "b"),
    ]  # fmt: skip
    assert names(spread) == ["a", "b"]
    assert where(spread) == {
        "a1": "a", "a2": "a", "b1": "b", "c0": "b", "c1": "a", "c2": "b", "c3": "a", "c4": "b",
    }  # fmt: skip
    sent.append(spread.send("b", "t", b"3"))
    assert all(spread.ids(f"c{n}") == sent for n in range(5))
    spread.engine.check()


def test_X5_a_queue_and_its_dead_message_queue_go_together() -> None:
    """Whichever of them is named first, over several too; where one is elsewhere, there."""
    spread = Spread(
        *(local(f"full{n}", "b") for n in range(6)),
        local("far", "b"),
        local("d1", "c"), local("a1", "c", dead_message_queue="d1"),
        local("z1", "c", dead_message_queue="d1"),
        local("k2", "c"), local("d2", "c", dead_message_queue="k2"),
        local("a2", "c", dead_message_queue="d2"),
        local("to_far", "c", dead_message_queue="far"),
        local("of_far", "c"), local("near", "b", dead_message_queue="of_far"),
    )  # fmt: skip
    remove_broker(spread.engine, "c")
    found = where(spread)
    assert found["d1"] == found["a1"] == found["z1"]
    assert found["k2"] == found["d2"] == found["a2"]
    assert found["to_far"] == found["of_far"] == "b"


def test_Q5_all_go_where_it_is_said() -> None:
    spread = Spread(*(local(f"c{n}", "c") for n in range(4)))
    for to in ("c", "nobody"):
        with pytest.raises(
            ConfigError, match=f"to: '{to}' – allowed are the brokers that stay: a, b"
        ):
            remove_broker(spread.engine, "c", to)
    remove_broker(spread.engine, "c", "a")
    assert set(where(spread).values()) == {"a"}


def test_Q5_more_queues_than_an_answer_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parting, "MOVES", 3)
    spread = Spread(
        *(local(f"c{n}", "c", dead_message_queue="c9") for n in range(8)), local("c9", "c")
    )
    assert len(remove_broker(spread.engine, "c")) == 9
    assert len(set(where(spread).values())) == 1
    assert names(spread) == ["a", "b"]


def test_Q5_queues_of_all_vpns_go() -> None:
    spread = Spread(local("q", "c"), local("q", "c", vpn="other"), vpns={"other": {}})
    moved = remove_broker(spread.engine, "c")
    assert {tuple(one) for one in moved} == {("default", "q", "a"), ("other", "q", "b")}


def test_L1_consumers_follow_and_leases_end_as_at_a_disconnect() -> None:
    spread = Spread(local("q", "c"))
    sent = [spread.send("c", "q", b"%d" % n) for n in range(3)]
    consumer = spread.at["c"].consumer("q", max_backlog=9, ack_mode="individual")
    first = consumer.receive(timeout=0)
    remove_broker(spread.engine, "c")
    spread.at["c"].attend()
    got = drain(consumer)
    assert [m.id for m in got] == sent
    assert got[0].id == first.id
    assert got[0].redelivered


@pytest.mark.parametrize("small", ["a", "b"])
def test_S3_a_move_without_room_ends_the_removal(small: str) -> None:
    """What has moved stays there, and the broker goes on: queues are made there again."""
    spread = Spread(local("c1", "c"), local("c2", "c"), system={"max_spool_usage": "1000"})
    spread.send("c", "c1", b'"%s"' % (b"x" * 600))
    spread.admin.define(local("fills", small))
    spread.send(small, "fills", b'"%s"' % (b"x" * 600))
    spread.admin.define(local("fills2", "b" if small == "a" else "a"))
    with pytest.raises(LakequeueError) as caught:
        remove_broker(spread.engine, "c", small)
    said = str(caught.value)
    assert f"'c1': holds 602 bytes, broker '{small}' has room for" in said
    assert f"moved before, and there now: 'c2' of VPN 'default' to '{small}'" in said
    found = where(spread)
    assert (found["c1"], found["c2"]) == ("c", small)
    assert names(spread) == ["a", "b", "c"]
    spread.admin.define(local("c3", "c"))
    spread.admin.move_queue("c2", broker="c")
    assert len(spread.ids("c1")) == 1
    spread.admin.purge("fills")
    remove_broker(spread.engine, "c")
    assert names(spread) == ["a", "b"]


def test_Q5_a_broker_that_is_away_ends_the_removal() -> None:
    spread = Spread(local("c1", "c"))
    sent = spread.send("c", "c1")
    spread.engine.cut("b")
    with pytest.raises(LakequeueError, match="the engine did not answer"):
        remove_broker(spread.engine, "c", "b")
    spread.engine.mend("b")
    spread.engine.advance("1s")
    assert names(spread) == ["a", "b", "c"]
    assert where(spread) == {"c1": "b"}  # that move went on
    remove_broker(spread.engine, "c")
    assert spread.ids("c1") == [sent]


def test_Q2_plain_records_go_on_to_a_queue_that_moves_away_from_its_maker() -> None:
    spread = Spread(local("q", "c"), local("other", "c"))
    spread.engine.publish("q", b"1", None, [])
    remove_broker(spread.engine, "c")
    assert where(spread) == {"other": "a", "q": "b"}
    spread.engine.publish("q", b"2", None, [])
    spread.engine.advance("3s")
    assert spread.bodies("q") == [b"1", b"2"]


def test_Q2_what_an_older_home_reads_is_said_before_anything_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Versions before did not note how far plain records were read."""
    of_an_older_home(monkeypatch)
    spread = Spread(local("q", "c"), local("other", "c"))
    spread.engine.publish("q", b"1", None, [])
    with pytest.raises(LakequeueError, match="'c': reads plain Kafka records for queue 'q' of VPN"):
        remove_broker(spread.engine, "c")
    assert where(spread) == {"q": "c", "other": "c"}
    spread.admin.delete("q")
    remove_broker(spread.engine, "c")
    assert where(spread) == {"other": "a"}


def test_Q2_a_queue_that_was_made_elsewhere_goes_on_though_it_has_plain_records() -> None:
    spread = Spread(local("q", "b"))
    spread.engine.publish("q", b"1", None, [])
    spread.admin.move_queue("q", broker="c")
    remove_broker(spread.engine, "c")
    spread.engine.publish("q", b"2", None, [])
    spread.engine.advance("3s")
    assert spread.bodies("q") == [b"1", b"2"]


def test_Q5_while_queues_move_away_others_may_be_defined() -> None:
    """But none there; and a distributed queue only until the removal begins."""
    spread = Spread(local("c1", "c"))
    asked = spread.at["a"].request(commands.RemoveBroker(broker="c"))
    assert asked["moves"] == [["default", "c1", "a"]]
    for n in range(3):
        spread.admin.define({"name": f"q{n}", "message_type": "json", "type": "LocalQueue"})
    spread.admin.define({"name": "shared", "message_type": "json"})
    spread.admin.delete("shared")
    with pytest.raises(LakequeueError, match="broker 'c' is being removed"):
        spread.admin.define(local("here", "c"))
    assert {broker for name, broker in where(spread).items() if name != "c1"} == {"a", "b"}
    remove_broker(spread.engine, "c")
    assert names(spread) == ["a", "b"]


@pytest.mark.parametrize("seed", range(12))
def test_brokers_die_while_queues_leave_one(seed: int) -> None:
    """S5, P1: whatever is sent to whom, before, while they leave and after: each message once."""
    fate = Fate(seed, death=0.08)
    queues = [local(f"q{n}", "c", f"t/{n % 3}", "all") for n in range(5)]
    spread = Spread(*queues, local("b1", "b", "t/1"), fate=fate)
    random = fate.random
    sent: list[tuple[str, bytes, Any]] = []

    def traffic(times: int) -> None:
        for _ in range(times):
            to, body = random.choice(["t/0", "t/1", "t/2", "all"]), b'{"n": %d}' % len(sent)
            sent.append((to, body, spread.start(random.choice("abc"), to, body)))

    traffic(10)
    deaf = random.choice("abc") if seed % 2 else None
    if deaf:
        spread.engine.cut(deaf)
        traffic(4)
        with pytest.raises(LakequeueError):
            remove_broker(spread.engine, "c")
        traffic(4)
        spread.engine.mend(deaf)
        spread.engine.advance("1s")
    remove_broker(spread.engine, "c")
    traffic(10)
    spread.engine.until_answered([one for _, _, one in sent])
    for n in range(5):
        wanted = [body for to, body, _ in sent if to in (f"t/{n % 3}", "all")]
        assert sorted(spread.bodies(f"q{n}")) == sorted(wanted)
    assert all(one.result(0).message_id for _, _, one in sent)
    assert names(spread) == ["a", "b"]
    assert fate.deaths
    spread.engine.check()
