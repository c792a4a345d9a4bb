"""While a broker is away, what waits for it is bounded (M2, M3, Q9); and a broker that
is loaded goes on as the live one (R1)."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from lakequeue import Rejected
from lakequeue.memory.memory_broker import MemoryBroker
from lakequeue.protocol import commands as c
from lakequeue.protocol import mesh_messages
from lakequeue.state import Limits
from lakequeue.state.rules.edits import TRANSIT
from rules.harness import drain
from rules.mesh import Mesh

from .test_directory_faults import Network, ask, change, entries, is_same_everywhere, local
from .test_directory_faults import network as network

ORDERS = {"name": "orders", "message_type": "json", "subscriptions": ["news"]}


def facts_of(mesh: Mesh, broker: str) -> Any:
    engine_broker: Any = mesh.engine.broker(broker)
    return engine_broker._replica.broker.mesh.facts


@pytest.mark.parametrize(
    "limits", [Limits(unconfirmed_changes=3), Limits(unconfirmed_bytes=700)], ids=["rows", "bytes"]
)
def test_Q9_changes_wait_for_a_broker_that_is_away_up_to_a_limit(limits: Limits) -> None:
    mesh = Mesh(limits=limits, queues=[local("near", "a")])
    mesh.engine.cut("b")
    answers = [ask(mesh, change("near", max_deliveries=n)) for n in range(2, 22)]
    refused = [answer for (answer,) in filter(None, answers)]
    assert 15 < len(refused) < 20
    for answer in refused:
        assert "until broker 'b' confirms them" in answer["error"]
        assert "start that broker or remove it" in answer["error"]
    waiting = len(answers) - len(refused)
    assert len(facts_of(mesh, "a").waiting) == waiting
    assert entries(mesh, "c")["near"].definition.max_deliveries == 1 + waiting
    mesh.send("c", queue="near")  # nobody else notices
    mesh.engine.mend("b")
    assert not facts_of(mesh, "a").waiting
    assert [answer["error"] for (answer,) in answers[:waiting]] == [None] * waiting
    assert not ask(mesh, change("near", max_deliveries=30))[0]["error"]
    assert is_same_everywhere(mesh)


def test_Q9_a_limit_that_is_reached_while_the_last_confirmation_is_lost_does_not_stay(
    network: Network,
) -> None:
    mesh = Mesh(limits=Limits(unconfirmed_changes=1), queues=[local("near", "a")])
    network.lose("heard", "b", "a", once=True)
    first = ask(mesh, change("near", max_deliveries=3))
    assert not first
    assert "confirms" in ask(mesh, change("near", max_deliveries=4))[0]["error"]
    assert not first[0]["error"]
    assert not ask(mesh, change("near", max_deliveries=5))[0]["error"]
    assert is_same_everywhere(mesh)


def test_H4_rooms_for_a_queue_that_is_not_known_yet_are_kept_once(network: Network) -> None:
    mesh = Mesh(queues=[local("near", "a")])
    network.lose("entries", "a", "c")
    ask(mesh, c.Define(definition=ORDERS))
    for n in range(20):
        consumer = mesh.at["b"].consumer("orders", max_backlog=1 + n, filter=f"/n = {n}")
        if n < 18:
            consumer.close()
    ((_, room),) = facts_of(mesh, "c").early_rooms
    assert sorted(text for text, _ in room.rooms) == ["/n = 18", "/n = 19"]
    network.heal()
    mesh.at["a"].admin().define(local("later", "a"))
    assert not facts_of(mesh, "c").early_rooms
    mesh.send("c", {"n": 19})
    assert len(drain(consumer)) == 1


def test_R6_edits_of_messages_on_their_way_are_kept_as_one() -> None:
    mesh = Mesh(queues=[{"name": "orders", "message_type": "json"}])
    consumer = mesh.consumer("b")
    mesh.engine.cut("b")
    mesh.send("a")
    broker: Any = mesh.engine.broker("a")
    (row,) = broker._replica.broker.find("default", "orders").live.values()
    for n in range(30):
        edit = c.Edit(queue="orders", headers={"x": str(n), f"y{n % 3}": "z"})
        mesh.at["a"].ask(edit, lambda answer: None)
    (kept,) = row.extras[TRANSIT]["commands"]
    assert c.decode_command(kept).headers == {"x": "29", "y0": "z", "y1": "z", "y2": "z"}
    mesh.engine.mend("b")
    mesh.advance("5s")
    (message,) = drain(consumer)
    assert message.headers == {"x": "29", "y0": "z", "y1": "z", "y2": "z"}


def test_M5_a_queue_that_is_not_where_it_was_is_looked_for_less_and_less(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third broker does not hear where it is, and nobody says anything that shows it."""
    mesh = Mesh(queues=[local("queue", "b", subscriptions=["news"])])
    network.lose("entries", "a", "c")
    ask(mesh, c.MoveQueue(queue="queue", broker="a"))
    asked = []
    heard = MemoryBroker.tell

    def tell(broker: Any, record: Any) -> None:
        if mesh_messages.decode(record.value).kind == "hand_over":
            asked.append(broker.home.name)
        heard(broker, record)

    monkeypatch.setattr(MemoryBroker, "tell", tell)
    mesh.send("c", queue="news")
    mesh.advance("20s")
    assert 20 <= len(asked) < 25
    assert {*asked} == {"b"}
    network.heal()
    mesh.at["a"].admin().define(local("later", "c"))
    mesh.advance("1s")
    assert mesh.at["a"].admin().describe("queue")["depth"] == 1


def load(mesh: Mesh, name: str) -> None:
    """A broker begins again from its snapshot."""
    broker: Any = mesh.engine.broker(name)
    broker._replica.mark()
    broker._replica.reload()


@pytest.mark.parametrize("is_late", [False, True], ids=["at once", "late"])
def test_M1_a_loaded_keeper_places_queues_as_the_live_one(
    monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """late: the keeper was the old host, and does not hear yet that the queue has arrived."""
    placed, late = [], []
    heard = MemoryBroker.tell

    def tell(broker: Any, record: Any) -> None:
        message = mesh_messages.decode(record.value)
        if is_late and (late or message.kind == "has_moved") and message.sender == 1:
            late.append((broker, record))
        else:
            heard(broker, record)

    monkeypatch.setattr(MemoryBroker, "tell", tell)
    for is_loaded in (False, True):
        mesh = Mesh(queues=[local("one", "a"), local("two", "b"), local("three", "c")])
        keyed = {"message_type": "json", "partition_key": "/k"}
        ask(mesh, c.Define(definition=keyed | {"name": "next"}))
        ask(mesh, c.MoveQueue(queue="one", broker="b"))
        if is_loaded:
            load(mesh, "a")
        for n in range(6):
            ask(mesh, c.Define(definition=keyed | {"name": f"new{n}"}))
        placed.append({name: one.hosts for name, one in entries(mesh, "a").items()})
        assert bool(late) is is_late
        late.clear()
    assert placed[0] == placed[1]


def test_M2_a_loaded_broker_routes_as_the_live_one_once_a_stand_in_is_emptied() -> None:
    """The queue has come here and is full, so what waited for it was still here, and is purged."""
    seen = []
    for is_loaded in (False, True):
        far = local("far", "b", subscriptions=["news"], max_spool_messages=1)
        mesh = Mesh(queues=[far])
        mesh.send("b", queue="news")
        mesh.send("a", queue="news")
        ask(mesh, c.MoveQueue(queue="far", broker="a"))
        assert mesh.at["a"].admin().describe("#out/far")["depth"] == 1
        with contextlib.suppress(Rejected):
            mesh.send("a", queue="news")  # behind it
        mesh.at["a"].admin().purge("#out/far")
        if is_loaded:
            load(mesh, "a")
        try:
            seen.append(mesh.send("a", queue="news"))
        except Rejected as refused:
            seen.append(refused.reason)
    assert seen[0] == seen[1]


def test_M1_a_loaded_keeper_places_queues_as_the_live_one_while_a_queue_comes_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It hears of a definition and of the queue's last messages in one step."""
    placed = []
    heard, held = MemoryBroker.tell, list[tuple[Any, Any]]()
    is_held = False

    def tell(broker: Any, record: Any) -> None:
        if is_held and broker.home.name == "a":
            held.append((broker, record))
        else:
            heard(broker, record)

    monkeypatch.setattr(MemoryBroker, "tell", tell)
    for is_loaded in (False, True):
        mesh = Mesh(queues=[local("one", "b"), local("two", "b"), local("three", "c")])
        keyed = {"message_type": "json", "partition_key": "/k"}
        ask(mesh, c.Define(definition=keyed | {"name": "next"}))
        is_held = True
        ask(mesh, c.MoveQueue(queue="one", broker="a"))
        forwarded = c.encode_command(c.Define(definition=keyed | {"name": "new"}))
        mesh.engine.instruct("default", forwarded, "b")
        if is_loaded:
            load(mesh, "a")
        is_held = False
        while held:
            heard(*held.pop(0))
        mesh.advance("1s")
        placed.append({name: one.hosts for name, one in entries(mesh, "a").items()})
        assert placed[-1]["one"] == [0]
    assert placed[0] == placed[1]
