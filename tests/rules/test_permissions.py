"""Permissions: signed commands, their signatures, and the rights on queues ([spool])."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import lakequeue
import pytest
from lakequeue.conf import load_configuration_text
from lakequeue.definitions import parse_configuration
from lakequeue.memory import MemoryConnection
from lakequeue.protocol import ConfigError, PermissionDenied
from lakequeue.protocol import commands as c
from lakequeue.protocol.signing import ENGINE_CLIENT, Credentials, Signature, engines_key, sign
from lakequeue.sinks.table_batch import named
from lakequeue.state.commands import permissions

KEYS = {name: f"{name}-0123456789abcdef" for name in ("owner", "app", "other", "ops")}
LEVELS = ("no-access", "read-only", "consume", "modify-topic", "delete")
NEEDS: dict[str, str] = {
    "describe": "read-only", "browse": "read-only", "consume": "consume", "ack": "consume",
    "subscribe_topic": "modify-topic", "unsubscribe_topic": "modify-topic",
    "purge": "delete", "move": "delete", "edit": "delete", "shutdown": "delete",
    "redrive": "delete", "define": "delete", "delete": "delete",
}  # fmt: skip


class Guarded:
    """An engine that requires signatures, with the queue `orders` of the client `owner`."""

    def __init__(self, brokers: list[str] | None = None, **keys: Any) -> None:
        clients = [{"name": name, "key": {"env": f"KEY_{name.upper()}"}} for name in KEYS]
        clients[-1]["admin"] = True
        queue = {"name": "orders", "message_type": "json", "owner": "owner",
                 "max_per_subscription_backlog": 10, **keys}  # fmt: skip
        spare = {"name": "spare", "message_type": "json"}
        config = {"auth": "required", "clients": clients, "queues": [queue, spare]}
        config |= {} if brokers is None else {"brokers": brokers}
        with pytest.MonkeyPatch.context() as patch:
            for name, key in KEYS.items():
                patch.setenv(f"KEY_{name.upper()}", key)
            self.first = lakequeue.connect("memory://", config=config, key=f"ops:{KEYS['ops']}")
        self.engine = self.first.engine
        self.engine.checking = True

    def connect(self, name: str, signed: bool = True, broker: str | None = None) -> Any:
        by = Credentials.parse(f"{name}:{KEYS[name]}") if signed else None
        return MemoryConnection(self.engine, "default", name, broker, by)

    def refused(self) -> dict[str, int]:
        return self.first.admin().usage()["vpn"]["refused"]

    def seen(self, queue: str = "orders") -> dict[str, Any]:
        return self.first.admin().describe(queue)


@pytest.fixture
def guarded() -> Guarded:
    return Guarded()


ATTEMPTS: dict[str, Callable[[Any, Any], object]] = {  # of a connection and its administrator
    "consume": lambda one, _: one.consumer("orders").close(),
    "ack": lambda one, _: one.request(c.Ack(queue="orders", ids="1")),
    "subscribe_topic": lambda _, admin: admin.subscribe_topic("orders", "a/b"),
    "unsubscribe_topic": lambda _, admin: admin.unsubscribe_topic("orders", "a/b"),
    "move": lambda _, admin: admin.move("orders", to="spare"),
    "edit": lambda _, admin: admin.edit("orders", headers={"k": "v"}),
    "define": lambda _, admin: admin.define(
        {"name": "orders", "message_type": "json", "max_backlog": 7}
    ),
}


def attempt(connection: Any, what: str) -> None:
    by_name = ATTEMPTS.get(what, lambda _, admin: getattr(admin, what)("orders"))
    by_name(connection, connection.admin())


@pytest.mark.parametrize("who", ["owner", "ops"])
def test_the_owner_and_an_administrator_may_do_everything(guarded: Guarded, who: str) -> None:
    for what in NEEDS:
        if what != "unsubscribe_topic":
            attempt(guarded.connect(who), what)
    assert "permission_denied" not in guarded.refused()


def test_commands_about_all_queues_need_an_administrator(guarded: Guarded) -> None:
    guarded.first.admin().events()
    for command in (c.Events(), c.Captures(), c.Bridges(), c.DeleteBridge(name="b")):
        with pytest.raises(PermissionDenied, match="no administrator"):
            guarded.connect("app").request(command)


def test_a_list_in_parts_names_no_queue_that_its_client_may_not_see(guarded: Guarded) -> None:
    """Not even as the name behind which the list goes on."""
    broker = guarded.engine.brokers[0]._replica.broker
    broker.limits = replace(broker.limits, queues_listed=1)
    answer = guarded.connect("app").answer_to(c.Queues(), 9)
    assert ([queue["name"] for queue in answer["result"]], answer["more"]) == (["spare"], None)


def test_the_engines_own_connections_are_accepted(guarded: Guarded) -> None:
    """At its start the engine asks for captured topics, and for its metrics it inspects queues."""
    own = MemoryConnection(guarded.engine, "default", "engine", None, None)
    own._credentials = Credentials(ENGINE_CLIENT, engines_key(guarded.engine.secret))
    assert sorted(own.request_list(c.Captures(), "start")) == ["orders", "spare"]
    assert [q["name"] for q in own.request_list(c.Queues(), "after")] == ["orders", "spare"]
    own._credentials = Credentials(ENGINE_CLIENT, engines_key(b"another"))
    with pytest.raises(PermissionDenied, match="has another key"):
        own.request(c.Captures())


def test_the_client_that_defines_a_queue_owns_it(guarded: Guarded) -> None:
    mine = {"name": "mine", "message_type": "json"}
    app = guarded.connect("app").admin()
    app.define(mine)
    assert guarded.seen("mine")["definition"]["owner"] == "app"
    for other in (mine | {"owner": "other"}, {"topic": "mine", "message_type": "json"}):
        with pytest.raises(PermissionDenied):
            guarded.connect("other").admin().define(other)
    app.define(mine | {"permissions": {"other": "read-only"}})
    app.define(mine | {"max_backlog": 3})
    definition = guarded.connect("other").admin().describe("mine")["definition"]
    assert (definition["owner"], definition["permissions"]) == ("app", [["other", "read-only"]])
    assert (definition["permission"], definition["max_backlog"]) == ("no-access", 3)


# ---------------------------------------------------------------- signatures


def raw(guarded: Guarded, value: bytes) -> str:
    """The answers to a record; empty where it is carried out."""
    inbox = guarded.engine.open_inbox("default.rejected")
    guarded.engine.command("default.commands", b"", value)
    said = [dict(record.headers)["lq-error"].decode() for record in inbox]
    assert guarded.first.is_open
    return said[0] if said else ""


def signed(
    guarded: Guarded, seq: int = 1, key: str = "", vpn: str = "default", client: str = "owner",
    late: int = 0, session: str = "s", broker: int = 0, body: bytes = b'{"command":"queues"}',
) -> bytes:  # fmt: skip
    credentials = Credentials.parse(f"{client}:{key or KEYS.get(client, KEYS['app'])}")
    when = guarded.engine.now - late
    return sign(credentials, vpn, Signature(client, session, seq, when, broker), body)


def test_a_command_without_proof_is_refused(guarded: Guarded) -> None:
    assert raw(guarded, signed(guarded)) == ""
    for value, why in {
        b'{"command":"queues"}': "is not signed",
        b"": "is not signed",
        b'{"command":"begin","command":"purge","queue":"orders"}': "command",
        b'{"command":"begin","epoch":1,"queue":"orders","command":"delete"}': "command",
        signed(guarded, 2, key=KEYS["app"]): "has another key",
        signed(guarded, 2, client="nobody"): "has another key",
        signed(guarded, 2, client="#engine"): "has another key",
        signed(guarded, 2, vpn="west"): "has another key",
        signed(guarded, 2, broker=1): "is for broker 1",
        signed(guarded, 2).replace(b'"queues"', b'"usage" '): "has another key",
        signed(guarded, 2).replace(b'"seq":2', b'"seq":9'): "has another key",
        signed(guarded, 2, late=600_001): "minutes old",
        signed(guarded, 1): "was received before",
        signed(guarded, 2)[:80]: "signature: cannot be read",
        b"signed ": "signature: cannot be read",
    }.items():
        assert why in raw(guarded, value), value
    assert raw(guarded, signed(guarded, 2)) == ""
    counts = guarded.refused()
    assert (counts["permission_denied"], counts["malformed"]) == (11, 4)


def test_the_commands_table_decodes_signed_commands(guarded: Guarded) -> None:
    value = signed(guarded)
    assert named(value) == ("queues", None)
    assert named(value[:80]) == (None, None)


def test_a_signed_command_runs_once_even_when_overtaken(guarded: Guarded) -> None:
    heard = [raw(guarded, signed(guarded, seq)) for seq in (3, 1, 70, 2, 69, 7, 6)]
    assert [bool(said) for said in heard] == [False, False, False, True, False, False, True]
    for seq in (1, 3, 7, 69, 70):
        assert "received before" in raw(guarded, signed(guarded, seq))
    assert raw(guarded, signed(guarded, 1, session="another")) == ""
    guarded.engine.restart()
    assert "received before" in raw(guarded, signed(guarded, 70))
    assert raw(guarded, signed(guarded, 71)) == ""


def test_sessions_of_a_client_are_bounded_and_forgotten_in_time(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(permissions, "SESSIONS_MAX", 3)
    said = [raw(guarded, signed(guarded, session=f"s{n}")) for n in range(4)]
    assert said[:3] == ["", "", ""]
    assert "the most allowed" in said[3]
    # another client has its own limit
    assert raw(guarded, signed(guarded, client="app", session="s9")) == ""
    guarded.engine.advance("11m")
    assert raw(guarded, signed(guarded, session="s4")) == ""


def test_a_client_cannot_settle_messages_of_another_session() -> None:
    guarded = Guarded(leasing="strict", permissions={"app": "consume"})
    guarded.connect("ops").producer().send("orders", b"{}")
    holder = guarded.connect("owner").consumer("orders", ack_mode="individual")
    message = holder.receive(0)
    bound = guarded.seen()["consumers"][0]["subscription"]
    theirs: dict[str, Any] = {"queue": "orders", "subscription": bound}
    for thief in (guarded.connect("app"), guarded.connect("owner")):  # it has another session
        for command in (
            c.Ack(**theirs, ids=message.id), c.Cancel(**theirs, ids=message.id),
            c.Reject(**theirs, ids=message.id), c.Renew(**theirs, ids=message.id),
            c.Returned(**theirs, ids=message.id), c.Unsubscribe(**theirs),
            c.SetBacklog(**theirs, max_backlog=0), c.TransportAck(**theirs, received=9),
        ):  # fmt: skip
            with pytest.raises(PermissionDenied, match="does not belong to session"):
                thief.request(command)
        for command in (c.Bye(session="x"), c.Heartbeat(session="x")):
            with pytest.raises(PermissionDenied, match="signs as session"):
                thief.request(command)
        assert thief.request(c.Ack(queue="orders", ids=message.id)) == 0  # strict: not its lease
    assert guarded.seen()["leased"] == 1
    message.ack()
    holder._session.attend()
    assert guarded.seen()["depth"] == 0


# ---------------------------------------------------------------- configuration and keys


def test_keys_are_never_stored_in_clear(guarded: Guarded) -> None:
    guarded.connect("owner").admin().describe("orders")
    dump = guarded.engine.dump() + json.dumps(guarded.engine.journal()).encode()
    for name, key in KEYS.items():
        credentials = Credentials.parse(f"{name}:{key}")
        assert key.encode() not in dump
        assert credentials.key not in dump
        assert key not in repr(credentials)
        assert "key=" not in repr(credentials)
    assert guarded.engine.secret not in dump
    assert "secret" not in repr(guarded.engine.brokers[0].home)


@pytest.mark.parametrize(("text", "why"), [
    ("auth: perhaps", "must be one of required, none"),
    ("clients: 5", "must be a list of clients"),
    ("clients: [{name: a, key: topsecret}]", "must be the key's location"),
    ("clients: [{name: a, key: {vault: topsecret}}]", "must be the key's location"),
    ("clients: [{name: 'a:b', key: {env: A}}]", "must not contain ':'"),
    ("clients: [{name: '#engine', key: {env: A}}]", "or begin with '#'"),
    ("clients: [{name: a, key: {env: A}, keys: topsecret}]", "did you mean key"),
    ("clients: [{name: a, key: {env: A}}, {name: a, key: {env: B}}]", "is named already"),
    ("queues: [{name: q, message_type: json, owner: a}]", "need `auth: required`"),
    ("queues: [{name: q, message_type: json, permission: consume}]", "need `auth: required`"),
    ("auth: required\nqueues: [{name: q, message_type: json, permission: all}]", "no-access"),
])  # fmt: skip
def test_a_wrong_configuration_is_refused_and_shows_no_key(text: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_configuration_text(text)
    assert why in str(caught.value)
    assert "topsecret" not in str(caught.value)


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ({"env": "NO_SUCH_KEY"}, "NO_SUCH_KEY"),
        ({"file": "/no/such/file"}, "/no/such/file"),
        ({"file": "short"}, "fewer than 16"),
    ],
)
def test_a_missing_or_short_key_is_reported_at_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, place: dict[str, str], why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short").write_text("topsecret\n")
    config = {"auth": "required", "clients": [{"name": "a", "key": place}]}
    with pytest.raises(ConfigError, match=why) as caught:
        lakequeue.connect("memory://", config=config)
    assert "topsecret" not in str(caught.value)


@pytest.mark.parametrize("key", ["topsecret", ":topsecret", "a:topsecret"])
def test_half_a_key_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        lakequeue.connect("memory://", key=key)
    assert "topsecret" not in str(caught.value)


def test_a_client_that_needs_no_signature_may_sign(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """So keys can be given to clients first, and required later."""
    file = tmp_path / "key"
    file.write_text(f"app:{KEYS['app']}\n")
    monkeypatch.setenv("LAKEQUEUE_CLIENT_KEY_FILE", str(file))
    with lakequeue.connect("memory://") as connection:
        connection.admin().define({"name": "q", "message_type": "json"})
        assert connection.admin().describe("q")["definition"]["owner"] is None
        with pytest.raises(ConfigError, match="need `auth: required`"):
            connection.admin().define({"name": "p", "message_type": "json", "owner": "app"})


def test_a_configuration_is_read_with_its_clients() -> None:
    found = parse_configuration(
        {"auth": "required", "clients": [{"name": "a", "vpn": "w", "key": {"env": "A"}}]}
    )
    (client,) = found.clients
    assert (found.auth, client.name, client.vpn) == (True, "a", "w")
    assert (client.key, client.admin) == (("env", "A"), False)
