"""Permissions with one broker and with several: brokers forward the sender with a command
([spool])."""

from __future__ import annotations

from typing import Any

import lakequeue
import pytest
from lakequeue.protocol import PermissionDenied
from lakequeue.protocol import commands as c
from lakequeue.protocol.signing import Credentials, Signature, sign

from .test_permissions import KEYS, LEVELS, NEEDS, Guarded, attempt

BROKERS = ("a", "b", "c")  # the first keeps the directory
OVER_BROKERS = {"move_queue": "delete", **NEEDS}  # deleted last
KINDS: dict[str, dict[str, Any]] = {
    # neither the keeper nor the broker that receives the command
    "local": {"type": "LocalQueue", "broker": "b"},
    "keeper": {"type": "LocalQueue", "broker": "a"},
    "everywhere": {"type": "Queue"},
    "alone": {},  # one broker
}
NOWHERE_ELSE = {("move_queue", "everywhere"), ("move_queue", "alone")}


def guarded(kind: str, **keys: Any) -> Guarded:
    return Guarded(None if kind == "alone" else list(BROKERS), **KINDS[kind], **keys)


def hosts(engine: Guarded, queue: str = "orders") -> list[str]:
    def queues(number: int) -> set[str]:
        return {q["name"] for q in engine.first.request_list(c.Queues(), "after", broker=number)}

    return [b.home.name for b in engine.engine.brokers if queue in queues(b.home.number)]


def attempt_there(connection: Any, what: str, kind: str) -> None:
    if what == "move_queue":
        connection.admin().move_queue("orders", "c")
    elif what == "define":
        again = {"name": "orders", "message_type": "json", "max_backlog": 7, **KINDS[kind]}
        connection.admin().define(again)
    else:
        attempt(connection, what)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("level", LEVELS)
def test_permissions_hold_on_every_broker(kind: str, level: str) -> None:
    engine = guarded(kind, permissions={"app": level})
    engine.connect("owner").admin().subscribe_topic("orders", "a/b")
    before, at_first = engine.seen(), hosts(engine)
    app = engine.connect("app", broker=None if kind == "alone" else "c")
    rank = LEVELS.index(level)
    denied = [what for what, needed in OVER_BROKERS.items() if rank < LEVELS.index(needed)]
    for what in denied:
        with pytest.raises(PermissionDenied, match=f"has '{level}' on queue 'orders'") as caught:
            attempt_there(app, what, kind)
        assert caught.value.reason == "permission_denied"
        assert {**engine.seen(), "now": 0} == {**before, "now": 0}
    assert hosts(engine) == at_first
    if kind == "alone":
        assert engine.refused().get("permission_denied", 0) == len(denied)
    listed = [queue["name"] for queue in app.admin().queues()]
    assert listed == (["spare"] if level == "no-access" else ["orders", "spare"])
    for what in OVER_BROKERS:
        if what not in denied and (what, kind) not in NOWHERE_ELSE:
            attempt_there(app, what, kind)
    assert hosts(engine) == ([] if level == "delete" else at_first)


@pytest.mark.parametrize("kind", ["local", "keeper", "everywhere"])
def test_the_defining_client_owns_the_queue_on_every_broker(kind: str) -> None:
    engine = guarded(kind)
    mine = {"name": "mine", "message_type": "json", **KINDS[kind]}

    def admin(broker: str, name: str = "app") -> Any:
        return engine.connect(name, broker=broker).admin()

    admin("c").define(mine)
    for name, broker in (("other", "a"), ("other", "b"), ("owner", "c")):
        with pytest.raises(PermissionDenied, match="has 'no-access' on queue 'mine'"):
            admin(broker, name).define({**mine, "max_backlog": 9})
        with pytest.raises(PermissionDenied, match="has 'no-access' on queue 'mine'"):
            admin(broker, name).delete("mine")
    said = engine.seen("mine")["definition"]
    assert (said["owner"], said["permission"]) == ("app", "no-access")
    admin("b").define({**mine, "max_per_subscription_backlog": 7})
    again = engine.seen("mine")["definition"]
    assert (again["owner"], again["max_per_subscription_backlog"]) == ("app", 7)
    admin("a").delete("mine")
    assert hosts(engine, "mine") == []


def test_a_signature_is_for_one_broker() -> None:
    """A witness cannot replay a client's command on another broker."""
    engine = guarded("everywhere")
    who = Credentials.parse(f"owner:{KEYS['owner']}")
    said = Signature("owner", "owner-s", 1, engine.engine.now, 1)
    value = sign(who, "default", said, c.encode_command(c.Purge(queue="orders")))
    engine.first.producer().send("orders", b"{}")
    engine.engine.command("default.commands", b"owner-s", value, 0)
    assert engine.seen()["depth"] == 1
    assert engine.refused()["permission_denied"] == 1


@pytest.mark.parametrize("broker", BROKERS)
def test_without_a_key_no_broker_accepts_commands(broker: str) -> None:
    with pytest.raises(lakequeue.PermissionDenied, match="not signed"):
        guarded("local").connect("nobody", signed=False, broker=broker).admin().queues()


@pytest.mark.parametrize(
    "command",
    [c.Delete(queue="orders"), c.Define(definition={"name": "x", "message_type": "json"})],
)
def test_a_forwarded_command_keeps_its_client(command: c.Command) -> None:
    """From a broker without the queue to the keeper of the directory."""
    engine = guarded("local")
    who = Credentials.parse(f"other:{KEYS['other']}")
    said = Signature("other", "other-s", 1, engine.engine.now, 2)
    value = sign(who, "default", said, c.encode_command(command))
    engine.engine.command("default.commands", b"other-s", value, 2)
    if isinstance(command, c.Delete):
        assert hosts(engine) == ["b"]
    else:
        assert engine.seen("x")["definition"]["owner"] == "other"
