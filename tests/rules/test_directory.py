"""Q5, Q7, S7 over several brokers: the keeper places queues, the directory lists their brokers, and
clients find them."""

from __future__ import annotations

import json
from typing import Any

import lakequeue
import msgspec
import pytest
from lakequeue.definitions import parse_configuration
from lakequeue.definitions.definition import to_wire
from lakequeue.protocol import ConfigError, LakequeueError, NotConnected
from lakequeue.protocol import commands as c
from lakequeue.state.commands import topic_subscriptions

from .mesh import BROKERS, Mesh, Network, local, shared

AT = [local(f"at-{name}", name) for name in BROKERS]


@pytest.fixture
def mesh() -> Mesh:
    """Without queues: the tests define them."""
    return Mesh()


@pytest.mark.parametrize("broker", BROKERS)
def test_Q9_omitted_keys_keep_their_values_on_every_host(mesh: Mesh, broker: str) -> None:
    mesh.admin.define(local("one", broker, max_deliveries=5))
    mesh.admin.define(shared("all", max_deliveries=5))
    for by in BROKERS:
        for name in ("one", "all"):
            mesh.at[by].admin().define({"name": name, "max_backlog": 10 + ord(by)})
            seen = mesh.whole(name)["definition"]
            assert (seen["max_deliveries"], seen["max_backlog"]) == (5, 10 + ord(by))
    assert mesh.where()["one"] == broker


# ---------------------------------------------------------------- placement


def test_Q5_a_local_queue_is_placed_on_the_least_loaded_broker(mesh: Mesh) -> None:
    for name in ("q1", "q2", "q3", "q4"):
        mesh.admin.define(local(name))
    assert mesh.where() == {"q1": "a", "q2": "b", "q3": "c", "q4": "a"}
    mesh.admin.delete("q2")
    mesh.admin.define(local("q5"))
    assert mesh.where()["q5"] == "b"


def test_Q5_a_configured_queue_is_placed_like_others() -> None:
    mesh = Mesh(local("q1"), local("q2", "a"), local("q3"), local("q4"))
    assert mesh.where() == {"q1": "a", "q2": "a", "q3": "b", "q4": "c"}


def test_X5_a_dead_message_queue_is_by_default_beside_its_queue(mesh: Mesh) -> None:
    for one in (
        local("one", "b", dead_message_queue="one-dead"), local("one-dead"), local("two-dead", "c"),
        local("two", dead_message_queue="two-dead"), shared("all", dead_message_queue="one-dead"),
        local("three", "a", dead_message_queue="two-dead"),
    ):  # fmt: skip
        mesh.admin.define(one)
    assert mesh.where() == {
        "one": "b", "one-dead": "b", "two": "c", "two-dead": "c", "three": "a", "all": "abc",
    }  # fmt: skip


def test_Q9_a_name_is_unique_and_a_queue_is_redefined_in_place(mesh: Mesh) -> None:
    mesh.admin.define(local("q", "b"))
    mesh.at["c"].admin().define(local("q", max_cancels=3))
    assert mesh.where() == {"q": "b"}
    assert mesh.whole("q")["definition"]["max_cancels"] == 3
    with pytest.raises(ConfigError, match=r"type: .* – cannot change while the queue exists"):
        mesh.admin.define({"name": "q", "message_type": "json", "type": "Queue", "broker": None})
    assert mesh.where() == {"q": "b"}


def test_S7_a_queue_is_deleted_on_any_broker(mesh: Mesh) -> None:
    mesh.admin.define(local("q", "b"))
    mesh.at["c"].admin().delete("q")
    assert (mesh.where(), mesh.written()) == ({}, {})
    for asked in (mesh.admin.delete, mesh.admin.describe):
        with pytest.raises(LakequeueError, match="queue: 'q' – there is no such queue"):
            asked("q")


@pytest.mark.parametrize("told", BROKERS)
def test_S7_consumers_of_every_host_learn_of_a_deleted_queue(told: str) -> None:
    """Whichever broker deletes it."""
    mesh = Mesh(local("far", "b"), shared("all"))
    for queue in ("all", "far"):
        consumers = [mesh.consumer(broker, queue=queue) for broker in BROKERS]
        mesh.at[told].admin().delete(queue)
        for consumer in consumers:
            with pytest.raises(NotConnected, match=f"queue '{queue}' was deleted"):
                consumer.receive(0)


def test_a_definition_sent_to_another_broker_is_forwarded(mesh: Mesh) -> None:
    for command in (c.Define(definition=local("q", "c")), c.Define(definition={})):
        mesh.engine.command("default.commands", b"", c.encode_command(command), "b")
    assert mesh.where() == {"q": "c"}
    mesh.engine.command("default.commands", b"", c.encode_command(c.Delete(queue="q")), "b")
    assert mesh.where() == {}


def test_an_added_broker_learns_all_queues_and_hosts_those_of_all_brokers() -> None:
    mesh = Mesh(shared("all"), local("q"), brokers="a")
    mesh.engine.configure(parse_configuration({"brokers": list(BROKERS)}))
    at_c = mesh.engine.connect("c").admin()
    assert mesh.where() == {"all": "abc", "q": "a"}
    at_c.define(local("new"))
    assert at_c.describe("new")["broker"] == "b"
    mesh.send("a", "new")  # an earlier client finds it too
    assert at_c.describe("new")["depth"] == 1
    assert mesh.whole("new")["broker"] == "b"


@pytest.mark.parametrize(
    "keys", [{}, {"type": "GroupLocalQueue", "initial_owner": "b"}], ids=["of all", "of a group"]
)
def test_Q2_H5_an_added_broker_knows_later_changes_of_a_queue(
    keys: dict[str, Any],
) -> None:
    """Whether the keeper hosts the queue or not."""
    url = f"memory://grows-with-topics-{len(keys)}"
    queue = shared("all", "old/x", "old/y", **keys)
    brokers = ["a", *({"name": name, "group": "east"} for name in "bcd")]
    one = lakequeue.connect(url, config={"brokers": brokers[:2], "queues": [queue]}, broker="b")
    admin = one.admin()
    admin.subscribe_topic("all", "late/1")
    admin.subscribe_topic("all", "later/>")
    admin.unsubscribe_topic("all", "old/y")
    two = lakequeue.connect(url, config={"brokers": brokers[:3]}, broker="c")
    assert "c" in two.admin().describe("all")["brokers"]
    with two.producer() as producer:
        for topic in ("late/1", "later/2", "old/x"):
            producer.send(topic, b"{}")
        for topic in ("old/y", "never"):
            with pytest.raises(LakequeueError, match=topic):
                producer.send(topic, b"{}")
    assert admin.describe("all")["depth"] == 3
    admin.shutdown("all", egress=True)
    three = lakequeue.connect(url, config={"brokers": brokers}, broker="d")
    parts = three.admin().describe("all")["brokers"]
    assert [parts[name]["egress"] for name in "bcd"] == [False] * 3
    three.producer().send("later/3", b"{}")
    assert admin.describe("all")["depth"] == 4
    for connection in (one, two, three):
        connection.close()


def test_Q9_an_unchanged_configuration_sends_nothing() -> None:
    """At each start: thousands of queues, and all brokers know them."""
    mesh = Mesh(local("q", "b"), shared("all"))
    facts = mesh.facts("a")
    before = facts.edition
    for changed, editions in ({}, 0), ({"max_spool_messages": 7}, 1):
        definition = to_wire(mesh.entries("a")["q"].definition) | changed
        mesh.engine.instruct("default", c.encode_command(c.Define(definition=definition)), "a")
        mesh.advance("0s")
        assert facts.edition == before + editions
    assert mesh.whole("q")["definition"]["max_spool_messages"] == 7


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("definition", "why"),
    [
        (local("q", "x"), r"broker: 'x' – allowed are the home's brokers: a, b, c"),
        (local("q", 7), "broker: 7 – must be a text"),
        (local("q", group=["a"]), "group: .* – is allowed for a Queue and a GroupLocalQueue"),
        (shared("q", broker="a"), "broker: 'a' – is allowed for a LocalQueue only"),
        (shared("q", group=[]), r"group: '\[\]' – has no members"),
        (shared("q", group=["a", "x"]), "group: 'x' – allowed are the home's brokers"),
        (
            shared("q", type="GroupLocalQueue", initial_owner="c", group=["a", "b"]),
            "initial_owner: 'c' – must be one of the queue's group: a, b",
        ),
        (
            shared("q", type="GroupLocalQueue", initial_owner="x"),
            "initial_owner: 'x' – allowed are the home's brokers: a, b, c",
        ),
    ],
)
def test_Q7_wrong_brokers_are_refused(mesh: Mesh, definition: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        mesh.admin.define(definition)
    assert (mesh.where(), mesh.written()) == ({}, {})


@pytest.mark.parametrize("one", [local("q", "x"), shared("q", group=["a", "x"])])
def test_Q7_a_configuration_names_its_own_brokers(one: dict[str, Any]) -> None:
    key = "broker" if "broker" in one else "group"
    with pytest.raises(ConfigError, match=f"{key}: 'x' – must be a broker that the section"):
        Mesh(one)


def test_Q7_a_definition_refused_by_one_host_is_applied_nowhere(mesh: Mesh) -> None:
    """The dead message queue of `one` is `two`, on c; only c knows that `two` leads back."""
    mesh.admin.define(local("one", "c", dead_message_queue="two"))
    with pytest.raises(ConfigError, match="must not lead back to the queue itself"):
        mesh.admin.define(local("two", dead_message_queue="one"))
    assert mesh.where() == {"one": "c"}
    assert list(mesh.written()) == ["one"]
    mesh.admin.define(local("two"))
    assert mesh.where() == {"one": "c", "two": "c"}


# ---------------------------------------------------------------- clients find queues


def test_P1_a_producer_has_a_sequence_for_each_broker() -> None:
    mesh = Mesh(*AT)
    mesh.at["b"].attend()
    producer = mesh.at["b"].producer(producer_id="p", window=2)
    for number in range(6):
        for name in BROKERS:
            assert producer.send(f"at-{name}", b"{}").sequence == number + 1
    futures = [producer.send_async(f"at-{name}", b"6") for name in BROKERS for _ in range(2)]
    producer.flush()
    assert [int(one.result().message_id) >> 48 for one in futures] == [0, 0, 1, 1, 2, 2]
    assert [q["depth"] for q in mesh.admin.queues()] == [8, 8, 8]


def test_C3_heartbeats_keep_consumers_of_several_brokers() -> None:
    mesh = Mesh(*AT)

    def ready() -> list[int]:
        return [q["ready"] for q in mesh.at["b"].admin().queues()]

    consumers = [mesh.consumer("a", queue=f"at-{name}") for name in BROKERS]
    for name in BROKERS:
        mesh.send("a", f"at-{name}")
    mesh.advance("10m")
    assert all(consumer.receive() for consumer in consumers)
    consumers[2].kill()
    mesh.at["a"].advance("10m")
    assert ready() == [0, 0, 1]
    mesh.at["a"].close()
    assert ready() == [1, 1, 1]


def test_a_broker_without_the_queue_names_its_host() -> None:
    mesh = Mesh(local("q", "c"))
    connection = mesh.at["a"]
    answers: list[Any] = []
    connection.ask(c.Describe(queue="q"), answers.append, 0)
    connection.wait(lambda: True, 0)
    assert answers[0]["kind"] == "Moved"
    assert answers[0]["error"] == "queue 'q' of VPN 'default' is on broker 'c'"
    assert answers[0]["result"] == {"hosts": {"c": 2}}


def test_a_producer_is_redirected_and_keeps_its_order(mesh: Mesh) -> None:
    producer = mesh.at["a"].producer(delivery_mode="persistent_groupack")
    mesh.admin.define(local("q", "b"))
    futures = [producer.send_async("q", b"%d" % number) for number in range(20)]
    producer.send("q", b"20")
    producer.flush()
    assert producer.unacknowledged() == []
    assert all(future.result().message_id is not None for future in futures)
    assert mesh.bodies("q") == [b"%d" % number for number in range(21)]
    assert "no_matching_destination" not in mesh.admin.usage()["vpn"]["refused"]


def test_a_publish_without_a_receipt_is_forwarded_to_the_host() -> None:
    mesh = Mesh(local("q", "c"))
    mesh.at["b"].publish_raw(
        "default.publish", b"1", key=b"k", headers={"lq": b'{"to": "q"}', "own": b"x"}
    )
    mesh.at["c"].producer(delivery_mode="non_persistent").send("q", b"2")
    one, two = mesh.admin.browse("q")
    assert (one.payload, one.key, one.headers) == (b"1", b"k", {"own": "x"})
    assert two.payload == b"2"


def test_Q2_a_new_topic_subscription_is_sent_alone(network: Network) -> None:
    """The messages between brokers do not grow with the queue's topics, nor does the work of each
    broker."""
    mesh = Mesh(local("q", "b"))

    def costs(topic: str) -> int:
        network.said.clear()
        assert mesh.admin.subscribe_topic("q", topic)
        mesh.admin.unsubscribe_topic("q", topic)
        assert mesh.admin.subscribe_topic("q", topic)
        return sum(len(msgspec.msgpack.encode(word.body)) for word in network.said)

    few, more = costs("t/000"), [f"t/{n}" for n in range(100, 500)]
    mesh.admin.define(local("q", "b", *more))
    assert costs("t/001") <= few + 50  # numbers have more digits
    for broker in BROKERS:
        assert mesh.entries(broker)["q"].topics == ["t/000", "t/001", *more]
    mesh.send("c", "t/001")
    assert mesh.whole("q")["depth"] == 1


def test_Q2_a_remote_queue_has_the_same_limit_of_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_subscriptions, "TOPICS_MAX", 2)
    mesh = Mesh(local("q", "c"))
    assert mesh.admin.subscribe_topic("q", "t/1")
    assert mesh.admin.subscribe_topic("q", "t/2")
    assert not mesh.admin.subscribe_topic("q", "t/2")
    with pytest.raises(LakequeueError, match=r"topic: 't/3' – .* at most 2"):
        mesh.admin.subscribe_topic("q", "t/3")
    assert mesh.whole("q")["subscriptions"] == ["t/1", "t/2"]


@pytest.mark.parametrize("last", [None, {"hosts": {"b": 1}, "epoch": 0, "edition": 1}])
def test_Q5_a_client_finds_all_hosts_despite_an_incomplete_directory(
    last: dict[str, Any] | None,
) -> None:
    """Somebody deleted the topic, or compaction kept only a late record of a replaced worker. No
    host could tell the client of the others."""
    mesh = Mesh(shared("all"), local("one", "b"))
    for broker in BROKERS:
        mesh.send(broker, "all")
    directory = mesh.engine._directories["default.directory"]
    directory.clear()
    if last is not None:
        directory[b"queue/all"] = json.dumps(last).encode()
    early = mesh.engine.connect("b", "early").admin()
    for broker in BROKERS:
        mesh.engine.instruct("default", c.encode_command(c.Begin(epoch=0)), broker)
    assert sorted(mesh.written()) == ["all", "one"]
    late = mesh.engine.connect("c", "late").admin()
    assert late.describe("one")["broker"] == "b"
    assert early.purge("all") == 3
