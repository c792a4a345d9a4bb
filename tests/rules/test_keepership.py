"""The home's first broker is removed: another one keeps the directory from then on, and reads on
what the first read, for itself and for brokers that had gone before (Q5, Q7, P1, H1)."""

from __future__ import annotations

import time
from typing import Any

import pytest
from lakequeue.client.following import PAUSE_S
from lakequeue.definitions import parse_configuration
from lakequeue.memory.broker_removal import remove_broker
from lakequeue.protocol import LakequeueError, commands
from lakequeue.protocol.errors import ConfigError
from lakequeue.state.mesh import keepership

from .harness import drain
from .mesh import ids
from .spread import Spread, local
from .test_moving_out import names, where
from .test_removing import say


def test_Q5_the_first_broker_is_removed_and_its_clients_go_on() -> None:
    shared_queue = {"name": "shared", "message_type": "json", "max_per_subscription_backlog": 9}
    spread = Spread(local("orders", "a", "t"), shared_queue)
    consumer = spread.at["a"].consumer("shared", max_backlog=9, ack_mode="individual")
    sent = [spread.send(broker, "t") for broker in "abc"]
    shared = [spread.send(broker, "shared") for broker in "ab"]
    assert [tuple(one) for one in remove_broker(spread.engine, "a")] == [("default", "orders", "b")]
    assert (names(spread), where(spread)["orders"]) == (["b", "c"], "b")
    sent += [spread.send(broker, "t") for broker in "abc"]
    assert spread.ids("orders") == sent
    shared.append(spread.send("a", "shared"))
    got = []
    for _ in range(4):  # it subscribes anew a moment later
        time.sleep(PAUSE_S)
        spread.engine.advance("1s")
        spread.at["a"].attend()
        got += drain(consumer)
    assert sorted({m.id for m in got}) == sorted(shared)
    for message in {m.id: m for m in got}.values():
        message.ack()
    spread.engine.advance("1s")
    assert spread.admin.describe("shared")["depth"] == 0
    spread.engine.check()


def test_Q7_its_successor_places_queues_and_knows_how_many_each_has() -> None:
    spread = Spread(*(local(f"b{n}", "b") for n in range(3)), local("dead", "c"))
    remove_broker(spread.engine, "a")
    for connection in spread.at.values():  # whoever is asked
        admin = connection.admin()
        with pytest.raises(ConfigError, match="message_type"):
            admin.define({"name": "b0", "type": "LocalQueue", "message_type": "binary"})
    placed = {"type": "LocalQueue", "message_type": "json"}
    for n in range(3):
        spread.admin.define({"name": f"n{n}", **placed})
    spread.admin.define({"name": "near", **placed, "dead_message_queue": "dead"})
    spread.admin.define({"name": "all", "message_type": "json"})
    found = where(spread)
    assert [found[f"n{n}"] for n in range(3)] == ["c", "c", "b"]
    assert found["near"] == "c"
    spread.admin.move_queue("n0", broker="b")
    spread.at["c"].admin().delete("n1")
    found = where(spread)
    assert found["n0"] == "b"
    assert "n1" not in found
    assert spread.admin.describe("all")["brokers"].keys() == {"b", "c"}


def test_P1_what_was_read_for_brokers_that_had_gone_before_is_known_to_its_successor() -> None:
    """Each producer counts for each of the three by itself, and nothing is stored twice."""
    spread = Spread(local("orders", "b", "a/b"))
    for partition in (0, 8, 16):
        for seq in (1, 2):
            say(spread, "p", seq, partition, b'{"at": %d}' % partition)
    assert len(spread.ids("orders")) == 6
    for name in ("c", "a"):
        remove_broker(spread.engine, name)
    for partition in (0, 8, 16):
        for seq in (2, 3):
            say(spread, "p", seq, partition, b'{"at": %d}' % partition)
    assert len(spread.ids("orders")) == 9
    spread.engine.restart()
    for partition in (0, 8, 16):
        say(spread, "p", 3, partition, b"{}")
    assert len(spread.ids("orders")) == 9


def test_H1_bridges_are_known_to_its_successor() -> None:
    bridge = {"name": "over", "from": "b", "to": "c", "subscriptions": ["x/>"]}
    spread = Spread(local("there", "c", "x/>"), bridges=[bridge])
    remove_broker(spread.engine, "a")
    assert [one["name"] for one in spread.admin.bridges()] == ["over"]
    back = {"name": "back", "from": "c", "to": "b", "subscriptions": ["x/1"]}
    with pytest.raises(ConfigError, match="where they began"):
        spread.admin.bridge(back)
    spread.admin.bridge({**bridge, "name": "more", "subscriptions": ["y/>"]})
    spread.admin.delete_bridge("over")
    assert [one["name"] for one in spread.at["c"].admin().bridges()] == ["more"]
    with pytest.raises(LakequeueError, match="'b': is an end of bridge 'more'"):
        remove_broker(spread.engine, "b")


def test_Q5_a_broker_that_is_added_later_hosts_what_all_host() -> None:
    spread = Spread({"name": "shared", "message_type": "json"}, local("orders", "b"))
    remove_broker(spread.engine, "a")
    spread.engine.configure(parse_configuration({"brokers": ["b", "c", "d"]}))
    assert spread.admin.describe("shared")["brokers"].keys() == {"b", "c", "d"}
    spread.at["d"] = spread.engine.connect("d", "app-d")
    with pytest.raises(ConfigError, match="message_type"):  # it knows whom to ask
        spread.at["d"].admin().define({"name": "orders", "message_type": "binary"})
    sent = [spread.send("d", "shared")]
    assert ids(drain(spread.at["d"].consumer("shared"))) == sent
    remove_broker(spread.engine, "b")
    assert (names(spread), where(spread)["orders"]) == (["c", "d"], "c")
    spread.engine.check()


def test_one_after_the_other_but_for_the_last() -> None:
    spread = Spread(local("orders", "a", "t"))
    sent = [spread.send("a", "t")]
    for name in "ab":
        remove_broker(spread.engine, name)
        sent += [spread.send(broker, "t") for broker in "abc"]
    with pytest.raises(LakequeueError, match="'c': cannot be removed, for it is the home's only"):
        remove_broker(spread.engine, "c")
    assert spread.ids("orders") == sent
    spread.admin.define(local("more", "c"))
    assert where(spread) == {"orders": "c", "more": "c"}
    spread.engine.check()


def ask(spread: Spread, told: list[Any], command: Any, broker: int | None = None) -> None:
    spread.at["b"].ask(command, told.append, broker)
    spread.at["b"].attend()


def define(name: str) -> commands.Define:
    return commands.Define(
        definition={"name": name, "message_type": "json", "type": "LocalQueue", "broker": "c"}
    )


def test_Q5_nothing_is_decided_until_all_know_who_decides() -> None:
    """What is asked meanwhile, of whom ever, waits; then it is done, in its order."""
    spread = Spread(local("orders", "b"))
    spread.engine.cut("c")
    told: list[Any] = []
    ask(spread, told, commands.RemoveBroker(broker="a"), 0)
    assert told.pop()["result"] == {"keeper": 1}
    ask(spread, told, commands.RemoveBroker(broker="a"), 1)
    assert "changes hands" in told.pop()["result"]["why"]
    for broker, name in ((0, "one"), (1, "two"), (2, "three")):
        ask(spread, told, define(name), broker)
    ask(spread, told, commands.Delete(queue="one"), 1)
    assert told == []
    spread.engine.mend("c")
    spread.at["b"].attend()
    assert [one["error"] for one in told] == [None] * 4
    assert where(spread) == {"orders": "b", "two": "c", "three": "c"}
    assert not [e for e in spread.engine.journal() if e["event"] == "mesh_refused"]
    spread.engine.check()


def test_Q5_so_many_commands_wait_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keepership, "WAITING_MAX", 3)
    spread = Spread()
    spread.engine.cut("c")
    told: list[Any] = []
    ask(spread, told, commands.RemoveBroker(broker="a"), 0)
    told.clear()
    for n in range(5):
        ask(spread, told, define(f"q{n}"), n % 2)
    refused = [one["error"] for one in told]
    assert len(refused) == 2
    assert all("the directory changes hands, and 3 commands wait" in why for why in refused)
    spread.engine.mend("c")
    assert sorted(where(spread)) == ["q0", "q1", "q2"]


def test_it_stays_the_keeper_where_the_removal_is_given_up() -> None:
    spread = Spread(local("orders", "c", "a/b"))
    spread.engine.cut("c")
    with pytest.raises(LakequeueError, match="changes hands"):
        remove_broker(spread.engine, "a")
    spread.engine.mend("c")
    assert names(spread) == ["a", "b", "c"]
    spread.admin.define(local("more", "a"))
    spread.engine.configure(parse_configuration({"brokers": ["a", "b", "c", "d"]}))
    spread.engine.connect("d", "app-d").admin().define(local("last", "d"))
    assert where(spread) == {"orders": "c", "more": "a", "last": "d"}
    say(spread, "p", 1, 16, b"{}")
    remove_broker(spread.engine, "c")  # the first reads on what was its, whoever keeps
    say(spread, "p", 1, 16, b"{}")
    assert len(spread.ids("orders")) == 1
    remove_broker(spread.engine, "b")  # the keeper: the first keeps again
    remove_broker(spread.engine, "a")
    say(spread, "p", 1, 16, b"{}")
    assert len(spread.ids("orders")) == 1
    assert names(spread) == ["d"]
    spread.engine.check()
