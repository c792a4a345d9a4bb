"""Rebuilt brokers, each at another step, continue together (R3)."""

from __future__ import annotations

import copy
import random
from collections import Counter
from typing import Any

import pytest
from lakequeue.lake.past_replica import move_ahead, next_counter
from lakequeue.mesh.channel import RejoiningBroker, agree, skip_lost_steps
from lakequeue.mesh.facts import Peer, Sent, peers_of, put_peers
from lakequeue.protocol.outputs import Output
from lakequeue.state import Batch, DictStore
from model.batches import TIMES
from rules.mesh import BROKERS, Mesh, local, numbers, shared
from rules.mortal import MortalBroker, MortalEngine

ENTRIES = ("a", "b")  # at c the full queue would refuse at once
STEPS_AHEAD, IDS_AHEAD = 1_000_000, 4_000_000
TAKES = {"all": {"near", "far", "keyed", "owned", "everywhere"}, "far/x": {"far"}}
TAKES["two"] = {"near", "keyed"}
QUEUES = [
    local("near", "a", "all", "two"),
    local("far", "c", "all", "far/x", max_spool_messages=40),
    shared("keyed", "all", "two", partition_key="@key"),
    shared("owned", "all", type="GroupLocalQueue", initial_owner="b"),
    shared("everywhere", "all"),
]


class KeptBroker(MortalBroker):
    """Keeps its state after each step, its positions in the others' messages, and the clients'
    inputs."""

    def __init__(self, *given: Any) -> None:
        self.spoken: list[Any] = []
        self.given: list[Batch] = []
        self.history: list[tuple[dict[str, bytes], int, int]] = []
        super().__init__(*given)

    def tell(self, record: Any) -> None:
        self.spoken.append(record)
        super().tell(record)

    def take(self, batch: Batch, now: int) -> list[Output]:
        if batch.commands or batch.publishes:
            own = Batch(commands=batch.commands, publishes=batch.publishes)
            self.given.append(copy.deepcopy(own))
        outputs = super().take(batch, now)
        self.history.append((dict(self.store.pages), self._heard, len(self.given)))
        return outputs

    def at(self, name: str, step: int) -> RejoiningBroker | None:
        peers = peers_of(DictStore(self.history[step - 1][0]))
        return None if peers is None else RejoiningBroker(name, self.home.number, peers)


class KeptEngine(MortalEngine):
    """`lose` puts each broker back by so many steps, as a rebuild does."""

    BROKER = KeptBroker  # type: ignore[assignment]

    def lose(self, back: dict[str, int], elsewhere: bool = False) -> int:
        """elsewhere: on another Kafka, which has none of their messages to each other."""
        known: dict[str, Any] = {broker.home.name: broker for broker in self.brokers}
        last = {name: max(len(one.history) - back[name], 1) for name, one in known.items()}
        steps = agree(last, lambda name, step: known[name].at(name, step))
        stores = {
            name: DictStore(dict(known[name].history[at - 1][0])) for name, at in steps.items()
        }
        peers = {name: peers_of(store) or {} for name, store in stores.items()}
        skip_lost_steps(
            RejoiningBroker(name, known[name].home.number, one) for name, one in peers.items()
        )
        lost, again = 0, []
        for name, one in known.items():
            put_peers(stores[name], peers[name])
            step = len(one.history) + STEPS_AHEAD * (1 + len(one.history))
            counter = next_counter(stores[name]) + IDS_AHEAD
            move_ahead(stores[name], step, counter, IDS_AHEAD, self.now)
            _, heard, given = one.history[steps[name] - 1]
            lost += len(one.history) - steps[name]
            again += [(one, batch) for batch in one.given[given:]]
            one.store = stores[name]
            one._received, one._heard = [] if elsewhere else one.spoken[heard:], heard
            if elsewhere:
                one.spoken = one.spoken[:heard]
            one.given, one.history = one.given[:given], [(dict(stores[name].pages), heard, given)]
        for one, batch in again:
            self._step(one, batch)
        self._run_to_rest()
        return lost


class Kept(Mesh):
    ENGINE = KeptEngine


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("seed", range(2 * TIMES))
def test_R3_rebuilt_brokers_continue_together(seed: int, elsewhere: bool) -> None:
    """Each message is in all its queues, once: inputs of lost steps come again."""
    draw = random.Random(seed)
    mesh = Kept(*QUEUES)
    engine: Any = mesh.engine
    for one in engine.brokers:
        del one.history[:-1]
    sent: dict[str, Counter[int]] = {one["name"]: Counter() for one in QUEUES}
    lost = 0
    for n in range(120):
        if n in (40, 80):
            lost += engine.lose({name: draw.choice((0, 3, 20)) for name in BROKERS}, elsewhere)
        topic, key = draw.choice(list(TAKES)), draw.choice((b"1", b"2", None))
        mesh.send(draw.choice(ENTRIES), topic, n, key=key)
        for name in TAKES[topic]:
            sent[name][n] += 1
    assert lost > 0
    for _ in range(3):
        engine.advance("2s")
    if mesh.whole("far")["depth"] == 40:
        taken = mesh.take("far", rounds=20)
        assert Counter(numbers(taken)) == sent.pop("far")
    for name, bodies in sent.items():
        assert Counter(numbers(mesh.admin.browse(name, limit=1_000))) == bodies, name
    assert not mesh.admin.usage()["lanes"]
    wrong = {"mesh_refused"} if elsewhere else {"mesh_gap", "mesh_refused"}
    assert not [e for e in mesh.admin.events() if e["event"] in wrong]
    engine.check()


def sent(*numbers: int) -> list[Sent]:
    return [Sent(number, "note", b"") for number in numbers]


def speaker_at(name: str, step: int) -> RejoiningBroker | None:
    """a sends one message a step; b receives them in pairs, in every second step."""
    if not 1 <= step <= 100:
        return None
    if name == "a":
        unconfirmed = sent(*range(1, step + 1))
        return RejoiningBroker("a", 0, {1: Peer("b", said=step, unconfirmed=unconfirmed)})
    return RejoiningBroker("b", 1, {0: Peer("a", heard=step // 2 * 2)})


def test_R3_no_rebuilt_broker_has_received_unsent_messages() -> None:
    assert agree({"a": 100, "b": 100}, speaker_at) == {"a": 100, "b": 100}
    assert agree({"a": 30, "b": 100}, speaker_at) == {"a": 30, "b": 31}
    assert agree({"a": 1, "b": 2}, speaker_at) == {"a": 1, "b": 1}
    with pytest.raises(LookupError, match="'b': no known step of it fits"):
        agree({"a": 50, "b": 100}, lambda name, n: speaker_at(name, n) if n in (50, 100) else None)


def test_R3_messages_confirmed_by_a_lost_step_are_kept() -> None:
    """a drops a message once b confirms it. If b loses the step that confirmed it, a goes back to a
    step that still has the message."""

    def confirmed(name: str, step: int) -> RejoiningBroker | None:
        if name == "b":
            return speaker_at("b", step)
        left = sent(*range(max(step - 10, 0) + 1, step + 1))
        return RejoiningBroker("a", 0, {1: Peer("b", said=step, unconfirmed=left)})

    assert agree({"a": 100, "b": 50}, confirmed) == {"a": 60, "b": 50}
    assert agree({"a": 55, "b": 50}, confirmed) == {"a": 55, "b": 50}


def test_R3_unconfirmed_messages_get_numbers_beyond_those_of_lost_steps() -> None:
    a = RejoiningBroker("a", 0, {1: Peer("b", said=30, unconfirmed=sent(27, 28, 29, 30))})
    b = RejoiningBroker("b", 1, {0: Peer("a", heard=28)})
    skip_lost_steps([a, b])
    said, heard = a.peers[1], b.peers[0].heard
    assert [one.number for one in said.unconfirmed] == [heard + 1, heard + 2]
    assert (said.said, said.repeat_from) == (heard + 2, 1)
    assert heard > 10**9
