"""Who may do what, over several brokers: who said it goes with what brokers pass on ([spool])."""

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
    "local": {"type": "LocalQueue", "broker": "b"},  # neither keeper nor who hears the command
    "keeper": {"type": "LocalQueue", "broker": "a"},
    "everywhere": {"type": "Queue"},
}


class GuardedBrokers(Guarded):
    """The same with three brokers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: str, **keys: Any) -> None:
        super().__init__(monkeypatch, brokers=list(BROKERS), **KINDS[kind], **keys)

    def at(self, broker: str, name: str) -> Any:
        from lakequeue.memory.registry import MemoryConnection

        signed_by = Credentials.parse(f"{name}:{KEYS[name]}")
        return MemoryConnection(self.engine, "default", name, broker, signed_by)

    def where(self, queue: str = "orders") -> list[str]:
        return [b.home.name for b in self.engine.brokers
                if queue in {q["name"] for q in self.queues(b.home.number)}]  # fmt: skip

    def queues(self, number: int) -> list[dict[str, Any]]:
        return self.first.request_list(c.Queues(), "after", broker=number)


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
def test_a_level_has_its_rights_whoever_hears_it_and_whoever_hosts(
    kind: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded = GuardedBrokers(monkeypatch, kind, permissions={"app": level})
    guarded.connect("owner").admin().subscribe_topic("orders", "a/b")
    before, hosts = guarded.first.admin().describe("orders"), guarded.where()
    app = guarded.at("c", "app")
    for what, needed in OVER_BROKERS.items():
        if LEVELS.index(level) < LEVELS.index(needed):
            with pytest.raises(PermissionDenied, match=f"has '{level}' on queue 'orders'"):
                attempt_there(app, what, kind)
    now = guarded.first.admin().describe("orders")
    assert {**now, "now": 0} == {**before, "now": 0}
    assert guarded.where() == hosts
    for what, needed in OVER_BROKERS.items():
        stays = what == "move_queue" and kind == "everywhere"  # such a queue is everywhere
        if LEVELS.index(level) >= LEVELS.index(needed) and not stays:
            attempt_there(app, what, kind)
    assert guarded.where() == ([] if level == "delete" else hosts)


@pytest.mark.parametrize("kind", KINDS)
def test_the_queue_is_of_who_defines_it_wherever_that_was_said(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded = GuardedBrokers(monkeypatch, kind)
    mine = {"name": "mine", "message_type": "json", **KINDS[kind]}
    guarded.at("c", "app").admin().define(mine)
    for name, broker in (("other", "a"), ("other", "b"), ("owner", "c")):
        with pytest.raises(PermissionDenied, match="has 'no-access' on queue 'mine'"):
            guarded.at(broker, name).admin().define({**mine, "max_backlog": 9})
        with pytest.raises(PermissionDenied, match="has 'no-access' on queue 'mine'"):
            guarded.at(broker, name).admin().delete("mine")
    said = guarded.first.admin().describe("mine")["definition"]
    assert (said["owner"], said["permission"]) == ("app", "no-access")
    guarded.at("b", "app").admin().define({**mine, "max_per_subscription_backlog": 7})
    again = guarded.first.admin().describe("mine")["definition"]
    assert (again["owner"], again["max_per_subscription_backlog"]) == ("app", 7)
    guarded.at("a", "app").admin().delete("mine")
    assert guarded.where("mine") == []


def test_a_signature_is_for_one_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a client said to one broker is not carried to another by who saw it."""
    guarded = GuardedBrokers(monkeypatch, "everywhere")
    who = Credentials.parse(f"owner:{KEYS['owner']}")
    said = Signature("owner", "owner-s", 1, guarded.engine.now, 1)
    value = sign(who, "default", said, c.encode_command(c.Purge(queue="orders")))
    guarded.first.producer().send("orders", b"{}")
    guarded.engine.command("default.commands", b"owner-s", value, 0)
    assert guarded.first.admin().describe("orders")["depth"] == 1
    assert guarded.refused()["permission_denied"] == 1


def test_without_a_key_nobody_is_heard_by_any_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = GuardedBrokers(monkeypatch, "local")
    for broker in BROKERS:
        from lakequeue.memory.registry import MemoryConnection

        with pytest.raises(lakequeue.PermissionDenied, match="not signed"):
            MemoryConnection(guarded.engine, "default", "nobody", broker).admin().queues()
