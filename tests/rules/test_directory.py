"""Q5, Q7, S7 over several brokers: the keeper places queues, the directory says where they are, and
clients find them by themselves."""

import json
from typing import Any

import lakequeue
import pytest
from lakequeue.definitions import parse_configuration
from lakequeue.definitions.definition import to_wire
from lakequeue.protocol import ConfigError, LakequeueError, NotConnected
from lakequeue.protocol import commands as c
from lakequeue.state.commands import topic_subscriptions

from .spread import Spread

BROKERS = ["a", "b", "c"]


def local(name: str, **keys: Any) -> dict[str, Any]:
    return {"name": name, "message_type": "json", "type": "LocalQueue", **keys}


def where(admin: Any) -> dict[str, str]:
    return {q["name"]: q["broker"] or "".join(q["brokers"]) for q in admin.queues()}


class Mesh(Spread):
    """Its queues are defined while it runs."""

    def __init__(self, *queues: dict[str, Any]) -> None:
        super().__init__()
        for queue in queues:
            self.admin.define(queue)

    def where(self) -> dict[str, str]:
        """The brokers of each queue, in one word."""
        return where(self.admin)

    def entries(self) -> dict[str, Any]:
        """The records of queues in the directory's topic."""
        records = self.engine.directory("default.directory")
        found = {
            key.decode().removeprefix("queue/"): json.loads(value)
            for key, value in records.items() if key.startswith(b"queue/")
        }  # fmt: skip
        for record in found.values():
            assert record.pop("edition") > 0
            record.pop("epoch")
        return found


@pytest.fixture
def mesh() -> Mesh:
    return Mesh()


@pytest.mark.parametrize("broker", BROKERS)
def test_Q9_a_key_that_is_not_named_stays_wherever_the_queue_is(mesh: Mesh, broker: str) -> None:
    mesh.admin.define(local("one", broker=broker, max_deliveries=5))
    mesh.admin.define({"name": "all", "message_type": "json", "max_deliveries": 5})
    for by in BROKERS:
        for name in ("one", "all"):
            mesh.at[by].admin().define({"name": name, "max_backlog": 10 + ord(by)})
            seen = mesh.admin.describe(name)["definition"]
            assert (seen["max_deliveries"], seen["max_backlog"]) == (5, 10 + ord(by))
    assert mesh.where()["one"] == broker


# ---------------------------------------------------------------- placement


def test_q5_a_local_queue_is_made_where_there_is_least(mesh: Mesh) -> None:
    for name in ("q1", "q2", "q3", "q4"):
        mesh.admin.define(local(name))
    assert mesh.where() == {"q1": "a", "q2": "b", "q3": "c", "q4": "a"}
    mesh.admin.delete("q2")
    mesh.admin.define(local("q5"))
    assert mesh.where()["q5"] == "b"


def test_q5_other_queues_are_hosted_by_all_or_by_their_group(mesh: Mesh) -> None:
    mesh.admin.define({"name": "all", "message_type": "json"})
    mesh.admin.define({"name": "some", "message_type": "json", "group": ["c", "b"]})
    assert mesh.where() == {"all": "abc", "some": "bc"}
    assert mesh.entries()["some"]["hosts"] == {"b": 1, "c": 2}
    mesh.admin.delete("all")
    mesh.admin.delete("some")
    assert mesh.admin.queues() == []
    assert mesh.entries() == {}


def test_q5_a_queue_of_a_configuration_is_placed_as_others_are() -> None:
    queues = [local("q1"), local("q2", broker="a"), local("q3"), local("q4")]
    with lakequeue.connect("memory://", config={"brokers": BROKERS, "queues": queues}) as one:
        found = {q["name"]: q["broker"] for q in one.admin().queues()}
    assert found == {"q1": "a", "q2": "a", "q3": "b", "q4": "c"}


def test_x5_a_dead_message_queue_is_where_its_queue_is_where_nobody_says_more(mesh: Mesh) -> None:
    mesh.admin.define(local("one", broker="b", dead_message_queue="one-dead"))
    mesh.admin.define(local("one-dead"))
    mesh.admin.define(local("two-dead", broker="c"))
    mesh.admin.define(local("two", dead_message_queue="two-dead"))
    assert mesh.where() == {"one": "b", "one-dead": "b", "two": "c", "two-dead": "c"}
    mesh.admin.define(local("three", broker="a", dead_message_queue="two-dead"))
    mesh.admin.define({"name": "all", "message_type": "json", "dead_message_queue": "one-dead"})
    assert (mesh.where()["three"], mesh.where()["all"]) == ("a", "abc")


def test_q9_a_name_is_given_once_and_a_queue_is_defined_again_where_it_is(mesh: Mesh) -> None:
    mesh.admin.define(local("q", broker="b"))
    mesh.at["c"].admin().define(local("q", max_cancels=3))
    assert mesh.where() == {"q": "b"}
    assert mesh.admin.describe("q")["definition"]["max_cancels"] == 3
    with pytest.raises(ConfigError, match=r"type: .* – cannot change while the queue exists"):
        mesh.admin.define({"name": "q", "message_type": "json", "type": "Queue", "broker": None})
    assert mesh.where() == {"q": "b"}


def test_s7_a_queue_is_deleted_wherever_it_is(mesh: Mesh) -> None:
    mesh.admin.define(local("q", broker="b"))
    mesh.at["c"].admin().delete("q")
    assert (mesh.where(), mesh.entries()) == ({}, {})
    with pytest.raises(LakequeueError, match="queue: 'q' – there is no such queue"):
        mesh.admin.delete("q")
    with pytest.raises(LakequeueError, match="queue: 'q' – there is no such queue"):
        mesh.admin.describe("q")


@pytest.mark.parametrize("told", BROKERS)
def test_s7_consumers_at_every_host_hear_of_a_deleted_queue(mesh: Mesh, told: str) -> None:
    """Whichever broker deletes it."""
    mesh.admin.define(local("far", broker="b"))
    mesh.admin.define({"name": "all", "message_type": "json"})
    for queue in ("all", "far"):
        consumers = [mesh.at[broker].consumer(queue) for broker in BROKERS]
        mesh.at[told].admin().delete(queue)
        for consumer in consumers:
            with pytest.raises(NotConnected, match=f"queue '{queue}' was deleted"):
                consumer.receive(0)


def test_a_definition_that_came_to_another_broker_is_passed_on(mesh: Mesh) -> None:
    for command in (c.Define(definition=local("q", broker="c")), c.Define(definition={})):
        mesh.engine.command("default.commands", b"", c.encode_command(command), "b")
    assert mesh.where() == {"q": "c"}
    mesh.engine.command("default.commands", b"", c.encode_command(c.Delete(queue="q")), "b")
    assert mesh.where() == {}


def test_a_broker_that_is_added_is_told_and_hosts_what_all_host() -> None:
    config = {"brokers": ["a"], "queues": [{"name": "all", "message_type": "json"}, local("q")]}
    one = lakequeue.connect("memory://grows-with-queues", config=config)
    two = lakequeue.connect("memory://grows-with-queues", config={"brokers": BROKERS}, broker="c")
    assert where(two.admin()) == {"all": "abc", "q": "a"}
    two.admin().define(local("new"))
    assert two.admin().describe("new")["broker"] == "b"
    # who was there before finds it too
    one.producer().send("new", b"{}")
    assert two.admin().describe("new")["depth"] == 1
    assert one.admin().describe("new")["broker"] == "b"
    one.close()
    two.close()


@pytest.mark.parametrize(
    "keys", [{}, {"type": "GroupLocalQueue", "initial_owner": "b"}], ids=["of all", "of a group"]
)
def test_Q2_H5_a_broker_that_is_added_knows_what_was_said_since_a_queue_was_defined(
    keys: dict[str, Any],
) -> None:
    """Where the keeper hosts the queue, and where it does not."""
    url = f"memory://grows-with-topics-{len(keys)}"
    queue = {"name": "all", "message_type": "json", "subscriptions": ["old/x", "old/y"]} | keys
    brokers = ["a", *({"name": name, "group": "east"} for name in "bcd")]
    one = lakequeue.connect(url, config={"brokers": brokers[:2], "queues": [queue]}, broker="b")
    admin = one.admin()
    admin.subscribe_topic("all", "late/1")
    admin.subscribe_topic("all", "later/>")
    admin.unsubscribe_topic("all", "old/y")
    two = lakequeue.connect(url, config={"brokers": brokers[:3]}, broker="c")
    assert "c" in where(two.admin())["all"]
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
    assert {name: part["egress"] for name, part in parts.items() if name in "bcd"} == dict.fromkeys(
        "bcd", False
    )
    with three.producer() as producer:
        producer.send("later/3", b"{}")
    assert admin.describe("all")["depth"] == 4
    for connection in (one, two, three):
        connection.close()


def test_Q9_what_a_configuration_says_again_is_told_to_nobody() -> None:
    """At each start: thousands of queues, and all brokers know them."""
    mesh = Mesh(local("q", broker="b"), {"name": "all", "message_type": "json"})
    # type: ignore[attr-defined]
    facts: Any = mesh.engine.brokers[0]._replica.broker.mesh.facts
    before = facts.edition
    entry = facts.entries["default"]["q"]
    for changed, editions in ({}, 0), ({"max_spool_messages": 7}, 1):
        definition = to_wire(entry.definition) | changed
        mesh.engine.instruct("default", c.encode_command(c.Define(definition=definition)), "a")
        mesh.engine.advance("0s")
        assert facts.edition == before + editions
    assert mesh.admin.describe("q")["definition"]["max_spool_messages"] == 7


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("definition", "why"),
    [
        (local("q", broker="x"), r"broker: 'x' – allowed are the home's brokers: a, b, c"),
        (local("q", broker=7), "broker: 7 – must be a text"),
        (local("q", group=["a"]), "group: .* – is allowed for a Queue and a GroupLocalQueue"),
        ({"name": "q", "broker": "a"}, "broker: 'a' – is allowed for a LocalQueue only"),
        ({"name": "q", "group": []}, r"group: '\[\]' – has no members"),
        ({"name": "q", "group": ["a", "x"]}, "group: 'x' – allowed are the home's brokers"),
        (
            {"name": "q", "type": "GroupLocalQueue", "initial_owner": "c", "group": ["a", "b"]},
            "initial_owner: 'c' – must be one of the queue's group: a, b",
        ),
        (
            {"name": "q", "type": "GroupLocalQueue", "initial_owner": "x"},
            "initial_owner: 'x' – allowed are the home's brokers: a, b, c",
        ),
    ],
)
def test_q7_wrong_brokers_are_refused_with_a_sentence(
    mesh: Mesh, definition: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        mesh.admin.define({"message_type": "json", **definition})
    assert (mesh.admin.queues(), mesh.entries()) == ([], {})


@pytest.mark.parametrize(("key", "value"), [("broker", "x"), ("group", ["a", "x"])])
def test_q7_a_configuration_names_its_own_brokers(key: str, value: Any) -> None:
    kind = "LocalQueue" if key == "broker" else "Queue"
    queue = {"name": "q", "message_type": "json", "type": kind, key: value}
    with pytest.raises(ConfigError, match=f"{key}: 'x' – must be a broker that the section"):
        parse_configuration({"brokers": ["a", "b"], "queues": [queue]})


def test_q7_what_a_host_refuses_is_done_nowhere(mesh: Mesh) -> None:
    """The dead message queue of `one` is `two`, on c; that `two` leads back is known there."""
    mesh.admin.define(local("one", broker="c", dead_message_queue="two"))
    with pytest.raises(ConfigError, match="must not lead back to the queue itself"):
        mesh.admin.define(local("two", dead_message_queue="one"))
    assert mesh.where() == {"one": "c"}
    assert list(mesh.entries()) == ["one"]
    mesh.admin.define(local("two"))
    assert mesh.where() == {"one": "c", "two": "c"}


# ---------------------------------------------------------------- clients find queues


def test_p1_a_producer_counts_for_each_broker_by_itself(mesh: Mesh) -> None:
    for name in BROKERS:
        mesh.admin.define(local(f"at-{name}", broker=name))
    mesh.at["b"].attend()
    producer = mesh.at["b"].producer(producer_id="p", window=2)
    for number in range(6):
        for name in BROKERS:
            assert producer.send(f"at-{name}", str(number)).sequence == number + 1
    futures = [producer.send_async(f"at-{name}", b"6") for name in BROKERS for _ in range(2)]
    producer.flush()
    ids = [int(future.result().message_id) >> 48 for future in futures]
    assert ids == [0, 0, 1, 1, 2, 2]
    assert {q["name"]: q["depth"] for q in mesh.admin.queues()} == {
        "at-a": 8, "at-b": 8, "at-c": 8,
    }  # fmt: skip


def test_c3_heartbeats_keep_consumers_of_several_brokers(mesh: Mesh) -> None:
    for name in BROKERS:
        mesh.admin.define(local(f"at-{name}", broker=name))
    consumers = {name: mesh.at["a"].consumer(f"at-{name}") for name in BROKERS}
    producer = mesh.at["a"].producer()
    for name in BROKERS:
        producer.send(f"at-{name}", b"1")
    mesh.at["a"].advance("10m")
    for consumer in consumers.values():
        assert consumer.receive() is not None
    consumers["c"].kill()
    mesh.at["a"].advance("10m")
    assert {q["name"]: q["ready"] for q in mesh.admin.queues()} == {
        "at-a": 0, "at-b": 0, "at-c": 1,
    }  # fmt: skip
    mesh.at["a"].close()
    admin = mesh.at["b"].admin()
    assert {q["name"]: q["ready"] for q in admin.queues()} == {"at-a": 1, "at-b": 1, "at-c": 1}


def test_who_asks_a_broker_that_does_not_have_it_hears_where_it_is(mesh: Mesh) -> None:
    mesh.admin.define(local("q", broker="c"))
    connection = mesh.at["a"]
    answers: list[Any] = []
    connection.ask(c.Describe(queue="q"), answers.append, 0)
    connection.wait(lambda: True, 0)
    assert answers[0]["kind"] == "Moved"
    assert answers[0]["error"] == "queue 'q' of VPN 'default' is on broker 'c'"
    assert answers[0]["result"] == {"hosts": {"c": 2}}


def test_a_producer_that_does_not_know_sends_where_it_hears_and_keeps_its_order(mesh: Mesh) -> None:
    producer = mesh.at["a"].producer(delivery_mode="persistent_groupack")
    mesh.admin.define(local("q", broker="b", max_per_subscription_backlog=100))
    futures = [producer.send_async("q", str(number)) for number in range(20)]
    producer.send("q", b"20")
    producer.flush()
    assert producer.unacknowledged() == []
    assert [f.result().message_id is not None for f in futures] == [True] * 20
    payloads = [int(m.payload) for m in mesh.admin.browse("q")]
    assert payloads == list(range(21))
    refused = mesh.admin.usage()["vpn"]["refused"]
    assert "no_matching_destination" not in refused


def test_what_nobody_answers_for_is_passed_on(mesh: Mesh) -> None:
    mesh.admin.define(local("q", broker="c"))
    mesh.at["b"].publish_raw(
        "default.publish", b"1", key=b"k", headers={"lq": b'{"to": "q"}', "own": b"x"}
    )
    producer = mesh.at["c"].producer(delivery_mode="non_persistent")
    producer.send("q", b"2")
    one, two = mesh.admin.browse("q")
    assert (one.payload, one.key, one.headers) == (b"1", b"k", {"own": "x"})
    assert two.payload == b"2"


def test_Q2_a_topic_more_is_one_topic_to_all_whatever_the_queue_has(mesh: Mesh) -> None:
    """What brokers say to each other of it does not grow; nor does what each of them looks at."""
    mesh.admin.define(local("q", broker="b"))
    said: list[int] = []
    for broker in mesh.engine.brokers:
        tell = broker.tell
        # type: ignore[method-assign, misc]
        broker.tell = lambda record, tell=tell: said.append(len(record.value)) or tell(record)

    def costs(topic: str) -> int:
        said.clear()
        assert mesh.admin.subscribe_topic("q", topic)
        mesh.admin.unsubscribe_topic("q", topic)
        assert mesh.admin.subscribe_topic("q", topic)
        return sum(said)

    few = costs("t/000")
    mesh.admin.define(local("q", broker="b", subscriptions=[f"t/{n}" for n in range(100, 500)]))
    assert costs("t/001") <= few + 50  # numbers have more digits
    for broker in mesh.engine.brokers:
        entry = broker._replica.broker.mesh.facts.entries["default"]["q"]
        assert entry.topics == ["t/000", "t/001", *(f"t/{n}" for n in range(100, 500))]
    assert mesh.at["c"].producer().send("t/001", b"{}").message_id
    assert mesh.admin.describe("q")["depth"] == 1


def test_Q2_a_queue_elsewhere_has_at_most_so_many_topics(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_subscriptions, "TOPICS_MAX", 2)
    mesh.admin.define(local("q", broker="c"))
    assert mesh.admin.subscribe_topic("q", "t/1")
    assert mesh.admin.subscribe_topic("q", "t/2")
    assert not mesh.admin.subscribe_topic("q", "t/2")
    with pytest.raises(LakequeueError, match=r"topic: 't/3' – .* at most 2"):
        mesh.admin.subscribe_topic("q", "t/3")
    assert mesh.admin.describe("q")["subscriptions"] == ["t/1", "t/2"]


@pytest.mark.parametrize("last", [None, {"hosts": {"b": 1}, "epoch": 0, "edition": 1}])
def test_Q5_a_client_finds_all_hosts_though_the_directory_lost_them(
    mesh: Mesh, last: dict[str, Any] | None
) -> None:
    """Somebody deleted the topic, or compaction kept a late record of a replaced worker alone. No
    host could tell the client that there are others."""
    mesh.admin.define({"name": "all", "message_type": "json"})
    mesh.admin.define(local("one", broker="b"))
    for broker in BROKERS:
        mesh.send(broker, "all")
    written = mesh.engine._directories["default.directory"]
    written.clear()
    if last is not None:
        written[b"queue/all"] = json.dumps(last).encode()
    early = mesh.engine.connect("b", "early").admin()
    for broker in BROKERS:
        mesh.engine.instruct("default", c.encode_command(c.Begin(epoch=0)), broker)
    assert list(mesh.entries()) == ["all"], "of a queue with one host each broker tells it"
    late = mesh.engine.connect("c", "late").admin()
    assert late.describe("one")["broker"] == "b"
    assert early.purge("all") == 3
