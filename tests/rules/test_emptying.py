"""A broker that hosts distributed queues is removed: what it owns of them goes to a broker that
stays. Nothing is lost, nothing comes twice unmarked, and a message has one owner all the time (Q5,
H4, L1, L7, L9)."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any

import pytest
from lakequeue.client.following import PAUSE_S
from lakequeue.definitions import parse_configuration
from lakequeue.memory.broker_removal import remove_broker
from lakequeue.protocol import LakequeueError, LeaseLost, commands
from lakequeue.state.broker import Broker
from model.limits import TINY

from .harness import drain
from .mesh import BROKERS, Mesh, ids, of_an_older_home, owned
from .mortal import Fate
from .slow import SlowEngine
from .test_mesh_kills import in_use


def owners(mesh: Mesh, queue: str = "orders") -> dict[str, list[str]]:
    """Who owns what, by broker; a message on its way is its old owner's until it is stored."""
    found = {}
    for broker in mesh.engine.brokers:
        own, moving = owned(broker, mesh.engine.now, queue)
        found[broker.home.name] = own + moving
    return found


def test_H4_messages_of_a_removed_broker_go_to_one_that_stays() -> None:
    mesh = Mesh()
    sent = [mesh.send("c", {"n": n}) for n in range(3)]
    sent.append(mesh.send("c", delay="10s"))
    others = [mesh.send("b")]
    held = mesh.consumer("c", 2)
    first, second = drain(held)
    remove_broker(mesh.engine, "c")
    assert owners(mesh) == {"a": sent, "b": others}
    assert mesh.whole()["depth"] == 5
    mesh.at["c"].attend()
    with pytest.raises(LeaseLost):
        second.ack()
    assert [(m.id, m.redelivered) for m in drain(held)] == [(first.id, True), (second.id, True)]
    mesh.advance("10s")
    consumer = mesh.consumer("b")
    rest = drain(consumer)
    assert sorted(ids(rest)) == sorted([sent[2], sent[3], *others])
    assert not any(m.redelivered for m in rest)
    assert mesh.whole()["counters"]["spooled"] == 5
    mesh.engine.check()


def test_L1_an_ack_that_came_after_the_broker_was_closed_counts() -> None:
    """What its clients say while it leaves the first broker hears: there the messages are then."""
    mesh = Mesh()
    sent = [mesh.send("c") for _ in range(3)]
    messages = drain(mesh.consumer("c"))
    remove_broker(mesh.engine, "c")
    ack = commands.Ack(queue="orders", ids=messages[1].id)
    mesh.engine.command("default.commands", b"", commands.encode_command(ack), 2)
    assert owners(mesh) == {"a": [sent[0], sent[2]], "b": []}


def test_L9_early_acks_and_counters_go_along() -> None:
    mesh = Mesh()
    early = int(mesh.send("c")) + 5
    ack = commands.Ack(queue="orders", ids=str(early))
    mesh.engine.command("default.commands", b"", commands.encode_command(ack), "c")
    for message in drain(consumer := mesh.consumer("c")):
        message.ack()
    consumer.close()
    before = mesh.whole()["counters"]
    assert before["acknowledged"]
    remove_broker(mesh.engine, "c")
    assert mesh.whole()["counters"] == before
    a = mesh.engine.broker("a")
    state = Broker.load(a.store, a.home, mesh.engine.now, a._limits, first=False)
    queue = state.find("default", "orders")
    assert queue is not None
    assert [one[:2] for one in queue.early.overview()] == [[early, early]]


@pytest.mark.parametrize("given", [{}, {"type": "GroupLocalQueue", "initial_owner": "b"}])
def test_S3_a_full_queue_takes_what_is_stored_already(given: dict[str, Any]) -> None:
    mesh = Mesh(max_spool_messages=2, **given)
    for broker in "bbcc":
        mesh.send(broker) if not given or broker == "b" else None
    if given:
        mesh.consumer("c", 1)
    before = sorted(n for own in owners(mesh).values() for n in own)
    remove_broker(mesh.engine, "c")
    assert sorted(n for own in owners(mesh).values() for n in own) == before
    assert mesh.whole()["depth"] == len(before)


def test_X5_what_dies_while_its_broker_leaves_is_dead_lettered() -> None:
    dead = {"name": "dead", "message_type": "json", "max_per_subscription_backlog": 100}
    queue = {**dead, "name": "orders", "dead_message_queue": "dead", "max_deliveries": 1}
    mesh = Mesh(queues=[dead, queue])
    sent = [mesh.send("c") for _ in range(3)]
    consumer = mesh.consumer("c", 2)
    assert ids(drain(consumer)) == sent[:2]
    remove_broker(mesh.engine, "c")
    assert owners(mesh, "dead") == {"a": sent[:2], "b": []}
    assert owners(mesh) == {"a": sent[2:], "b": []}


@pytest.mark.parametrize(
    ("sent", "stays"), [("c", "c"), ("bc", "c"), ("ac", "c"), ("ca", "a"), ("a", "a"), ("", "")]
)
def test_S10_of_two_last_messages_the_later_one_stays(sent: str, stays: str) -> None:
    mesh = Mesh(max_spool_usage=0)
    ids_of = {}
    for broker in sent:
        ids_of[broker] = mesh.send(broker)
        mesh.advance("1s")
    if "c" in sent:
        mesh.consumer("c")  # and holds it
    remove_broker(mesh.engine, "c")
    assert owners(mesh)["a"] == ([ids_of[stays]] if stays else [])
    replaced = [r for r in mesh.engine.journal() if r["event"] == "replaced"]
    assert [r["message_id"] for r in replaced] == [
        ids_of[one] for one in "ac" if one in ids_of and "b" not in sent and one != stays
    ]
    assert mesh.whole()["depth"] == len({*sent} & {"b"}) + bool(stays)
    again = mesh.send("a")
    assert owners(mesh)["a"] == [again]
    mesh.engine.check()


def test_S10_of_messages_of_one_moment_the_one_that_was_there_stays() -> None:
    mesh = Mesh(max_spool_usage=0)
    mesh.send("c")
    own = mesh.send("a")
    remove_broker(mesh.engine, "c")
    assert owners(mesh)["a"] == [own]


def test_S10_a_last_message_on_its_way_is_not_replaced() -> None:
    """The removal is given up while it travels; whatever enters meanwhile, one is left."""
    mesh = Mesh(max_spool_usage=0)
    mesh.send("c")
    for to, command in (
        ("a", commands.RemoveBroker(broker="c")), ("c", commands.CloseBroker(round=1))
    ):  # fmt: skip
        mesh.engine.cut("a") if to == "c" else None
        mesh.engine.instruct("default", commands.encode_command(command), to)
    peers = {name: n for n, name in enumerate(BROKERS)}
    for name in "abc":
        told = commands.encode_command(commands.Peers(brokers=peers))
        mesh.engine.instruct("default", told, name)
    mesh.advance("1s")
    last = mesh.send("c")
    mesh.engine.mend("a")
    assert owners(mesh)["c"] == [last]
    assert not [r for r in mesh.engine.journal() if r["event"] == "queue_faulted"]
    mesh.engine.check()


@pytest.mark.parametrize("goes", [True, False])
def test_S10_plain_records_leave_the_last_one_at_each_host(goes: bool) -> None:
    mesh = Mesh(max_spool_usage=0)
    mesh.engine.publish("orders", b"1", None, [], partition=2)
    if not goes:
        mesh.engine.cut("b")
        with pytest.raises(LakequeueError, match="it goes on"):
            remove_broker(mesh.engine, "c")
        mesh.engine.mend("b")
        mesh.engine.publish("orders", b"2", None, [], partition=2)
    remove_broker(mesh.engine, "c") if goes else None
    found = [m.payload for m in mesh.at["a"].admin().browse("orders")]
    assert found == ([b"1"] * 2 if goes else [b"2"] * 3)
    mesh.engine.check()


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"type": "GroupLocalQueue", "initial_owner": "c"}, "has it as its initial_owner"),
        ({"group": ["a", "b", "c"]}, "names it in its group"),
        ({"group": ["b", "c"]}, "is hosted by some of the brokers only"),
    ],
)
def test_a_queue_that_cannot_be_handed_over_says_why(keys: dict[str, Any], why: str) -> None:
    mesh = Mesh(**keys)
    entries = mesh.engine.directory("default.directory")
    with pytest.raises(LakequeueError, match=f"'c': is a host of queue 'orders' .*, which {why}"):
        remove_broker(mesh.engine, "c")
    assert mesh.engine.directory("default.directory") == entries


@pytest.mark.parametrize("read", [True, False])
def test_Q2_plain_records_of_an_older_home_keep_their_reader(
    read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever broker took the first one; or none yet, where the engine says that there are. How
    far they were read, versions before did not note."""
    mesh = Mesh()
    of_an_older_home(monkeypatch)
    if read:
        mesh.engine.publish("orders", b"{}", None, [], partition=1)
    asked = commands.RemoveBroker(broker="c", topics=[] if read else ["other", "orders"])
    with pytest.raises(LakequeueError, match="which takes plain Kafka records"):
        mesh.at["a"].request(asked)


def test_Q2_plain_records_that_come_later_are_taken_by_those_who_stay() -> None:
    mesh = Mesh()
    remove_broker(mesh.engine, "c")
    for partition in range(6):
        mesh.engine.publish("orders", b"%d" % partition, None, [], partition=partition)
    shown = mesh.at["a"].admin().browse("orders")
    assert sorted(m.payload for m in shown) == [b"%d" % n for n in range(6)]
    assert {len(own) for own in owners(mesh).values()} == {3}


def test_a_removal_that_is_given_up_leaves_the_queue_where_it_was() -> None:
    mesh = Mesh()
    mesh.at["a"].admin().subscribe_topic("orders", "a/>")
    sent = [mesh.send("c") for _ in range(2)]
    mesh.engine.cut("b")
    with pytest.raises(LakequeueError, match="it goes on"):
        remove_broker(mesh.engine, "c")
    mesh.engine.mend("b")
    entry = json.loads(mesh.engine.directory("default.directory")[b"queue/orders"])
    assert entry["hosts"] == {"a": 0, "b": 1, "c": 2}
    sent.append(mesh.at["c"].producer().send("a/b", b"{}").message_id)
    for partition in range(6):
        mesh.engine.publish("orders", b"%d" % partition, None, [], partition=partition)
    assert len(mesh.at["a"].admin().browse("orders")) == 9
    assert owned(mesh.engine.broker("c"), mesh.engine.now)[0][-3:-2] == sent[2:]
    assert len(drain(mesh.consumer("c"))) == 9
    mesh.engine.check()


def test_S7_a_queue_is_not_deleted_while_a_broker_hands_it_over() -> None:
    mesh = Mesh()
    mesh.at["a"].request(commands.RemoveBroker(broker="c"))
    with pytest.raises(LakequeueError, match=r"'orders': broker 'c' is being removed"):
        mesh.at["a"].admin().delete("orders")
    remove_broker(mesh.engine, "c")
    mesh.at["a"].admin().delete("orders")


def test_H4_a_broker_leaves_when_nobody_gives_it_anything_more() -> None:
    """Another host has not heard of the removal, and grants what was asked of it before."""
    one = {"name": "orders", "message_type": "json", "max_per_subscription_backlog": 9}
    engine = SlowEngine(parse_configuration({"brokers": list(BROKERS), "queues": [one]}))
    engine.checking = True
    at = {name: engine.connect(name, f"app-{name}") for name in BROKERS}
    at["c"].consumer("orders", max_backlog=3, ack_mode="individual")
    engine.slow()
    for to, command in (
        ("a", commands.RemoveBroker(broker="c")), ("c", commands.CloseBroker(round=1))
    ):  # fmt: skip
        engine.instruct("default", commands.encode_command(command), to)
    for _ in range(3):
        engine.let("c", by="a")
        engine.let("a", by="c")
    sent = at["b"].producer().send_async("orders", b"{}")
    engine.let_in()
    engine.let("c", by="b")
    assert owned(engine.broker("c"), engine.now)[0] == owned(engine.broker("b"), engine.now)[1]
    engine.haste()
    assert owned(engine.broker("a"), engine.now)[0] == [sent.result(0).message_id]


# ---------------------------------------------------------------- deaths


@pytest.mark.parametrize(
    ("seed", "keys"),
    [
        (0, {}),
        (1, {"type": "GroupLocalQueue", "initial_owner": "b"}),
        (2, {"priority": "/n"}),
        (3, {"max_spool_usage": 60, "lease_period": "150ms"}),
        (5, {"partition_key": "/k"}),
    ],
)
def test_H4_a_broker_leaves_whoever_dies(seed: int, keys: dict[str, Any]) -> None:
    """It stays at first, for one of the others is away; then it leaves, in use."""
    mesh, judge, traffic, fate = in_use(seed, **keys)
    for _ in range(15):
        traffic.one()
    mesh.engine.cut(fate.random.choice("abc"))
    with pytest.raises(LakequeueError):
        remove_broker(mesh.engine, "c")
    for name in "abc":
        mesh.engine.mend(name)
    for _ in range(10):
        traffic.one()
    remove_broker(mesh.engine, "c")
    for _ in range(15):
        traffic.one()
    mesh.engine.fated(None)
    traffic.finish()
    assert set(traffic.acked) | set(traffic.rejected) == judge.sent
    assert not set(traffic.acked) & set(traffic.rejected)
    assert set(traffic.acked.values()) <= {1}
    assert mesh.whole()["depth"] == 0
    assert fate.deaths > 30  # 150 in all seeds together


class SlowRemoval:
    """Two queues, one the other's dead message queue, in use while everything takes its time and
    brokers die; broker c is removed, now and then in vain. order: of the brokers by number."""

    operations = ("send",) * 3 + ("take",) * 2 + ("some",) * 14 + ("time",)
    steps = 400
    in_vain = 0.05
    keeper = 0  # the number of who keeps the directory

    def __init__(self, seed: int, death: float = 0.1, order: str = "abc") -> None:
        self.fate = Fate(seed, death=death)
        self.random = self.fate.random
        one = {"message_type": "json", "max_per_subscription_backlog": 9}
        queues = [
            {**one, "name": "dead"},
            {**one, "name": "orders", "dead_message_queue": "dead", "max_deliveries": 4},
        ]
        config = parse_configuration({"brokers": list(order), "queues": queues})
        self.engine = SlowEngine(config, TINY if seed % 2 else None)
        self.engine.checking = True
        self.at = {name: self.engine.connect(name, f"app-{name}") for name in BROKERS}
        self.producers = {n: one.producer(pub_ack_time="1h") for n, one in self.at.items()}
        self.consumers = [one.consumer("orders", max_backlog=3, ack_mode="individual")
                          for one in self.at.values()]  # fmt: skip
        self.leaving: Any = self.engine.broker("c")
        self.round = self.given_up = 0
        self.answers: list[Any] = []
        self.futures: list[Any] = []
        self.acked: set[str] = set()
        self.seen: dict[str, int] = {}
        self.engine.fated(self.fate)
        self.engine.slow()

    def go(self) -> None:
        for n in range(self.steps):
            getattr(self, self.random.choice(self.operations))()
            if self.leaving is None:
                continue
            if n > 60 and not self.round:
                self.begin()
            elif self.round and self.leaving.unread is None and self.random.random() < 0.2:
                self.leaving.unread = []
                self.instruct("c", commands.CloseBroker(round=self.round))
            elif self.round and self.random.random() < 0.3:
                self.look()
            self.never_two_owners()
        self.finish()

    def instruct(self, to: str, command: commands.Command) -> None:
        self.engine.instruct("default", commands.encode_command(command), to)

    def ask(self, round_: int) -> dict[str, Any]:
        asked = commands.RemoveBroker(broker="c", round=round_)
        self.at["a"].ask(asked, self.answers.append, self.keeper)
        self.at["a"].attend()
        answer = self.answers.pop()
        found = answer["result"] if answer["error"] is None else {}
        self.keeper = found.get("keeper", self.keeper)
        return dict(found)

    def begin(self) -> None:
        self.round = self.ask(0).get("round", 0)

    def look(self) -> None:
        done = self.ask(self.round)["done"]
        if done or (self.given_up < 3 and self.random.random() < self.in_vain):
            self.end(done)

    def end(self, done: bool) -> None:
        """It has left; or it is given up, wherever it stands."""
        unread, self.leaving.unread = self.leaving.unread or [], None
        self.given_up += not done
        self.round = 0
        if done:
            self.engine.brokers.remove(self.leaving)
            self.engine.removed[self.leaving.home.number] = "c"
        names = [broker.home.name for broker in self.engine.brokers]
        self.random.shuffle(names)
        peers = {broker.home.name: broker.home.number for broker in self.engine.brokers}
        for name in names:
            self.instruct(name, commands.Peers(brokers=peers))
        for batch in unread:
            self.engine.give(self.engine.at(self.leaving.home.number), batch)
        if done:
            self.leaving = None

    def send(self) -> None:
        body = json.dumps({"n": len(self.futures)}).encode()
        name = self.random.choice(BROKERS)
        self.futures.append(self.producers[name].send_async("orders", body))

    def some(self) -> None:
        self.engine.some(self.fate)

    def time(self) -> None:
        self.engine.advance("50ms")

    def take(self) -> None:
        for message in drain(self.random.choice(self.consumers)):
            before = self.seen.get(message.id, 0)
            assert message.redelivered or not before, f"{message.id} twice, and does not say so"
            self.seen[message.id] = message.delivery_count
            if self.random.random() < 0.8:
                try:
                    message.ack() if self.random.random() < 0.7 else message.cancel()
                except LeaseLost:
                    continue

    def never_two_owners(self) -> None:
        own = Counter(
            number for broker in self.engine.brokers for queue in ("orders", "dead")
            for number in owned(broker, self.engine.now, queue)[0]
        )  # fmt: skip
        assert max(own.values(), default=1) == 1, own.most_common(3)

    def finish(self) -> None:
        self.engine.fated(None)
        self.engine.haste()
        if self.leaving is not None:
            if self.round:
                self.end(False)
                self.engine.haste()
            remove_broker(self.engine, "c")
        for _ in range(6):
            time.sleep(PAUSE_S)
            self.engine.advance("5s")
        for consumer in self.consumers:
            consumer.close()
        sent = [one.result(0).message_id for one in self.futures]
        admin = self.at["a"].admin()
        left = [m.id for q in ("orders", "dead") for m in admin.browse(q, limit=10_000)]
        gone = {r["message_id"] for r in self.engine.journal() if r["event"] == "acknowledged"}
        assert len(left) == len(set(left))
        assert sorted([*left, *gone]) == sorted(sent)
        assert not [e for e in self.engine.journal() if e["event"] in ("mesh_gap", "mesh_refused")]
        self.engine.check()


@pytest.mark.parametrize("order", ["abc", "cab"])
@pytest.mark.parametrize("seed", range(6))
def test_H4_a_broker_leaves_while_everything_takes_its_time(seed: int, order: str) -> None:
    """Be it the home's last or its first."""
    removal = SlowRemoval(seed, order=order)
    removal.go()
    assert removal.fate.deaths > 15  # 100 in all seeds together
