"""A broker is removed from an engine in the process, as `streaming.fewer_brokers` does it.

Its clients' words wait while it takes its leave; then the first broker that stays hears them, or,
where it could not leave, the broker itself.
"""

from __future__ import annotations

from functools import partial

from ..client.connection import Connection
from ..client.moving_out import Keeper, MovedOut, move_out, with_moved
from ..definitions import DEFAULT_VPN
from ..protocol import LakequeueError, commands
from ..protocol.signing import ENGINE_CLIENT, Credentials, engines_key
from .in_process import MemoryEngine
from .registry import MemoryConnection

TIMES_MAX = 3  # one asks who keeps the directory, where that changes; nothing is waited for


def remove_broker(engine: MemoryEngine, name: str, to: str = "") -> list[MovedOut]:
    """Remove a broker; gives which local queues have moved where. to: a broker for all of them.
    Raises LakequeueError with what stands in the way, and then it goes on as before."""
    moved: list[MovedOut] = []
    try:
        with _connect(engine, DEFAULT_VPN) as connection:
            _remove(engine, connection, name, to, moved)
    except LakequeueError as error:
        raise with_moved(error, moved) from error
    return moved


def _connect(engine: MemoryEngine, vpn: str) -> MemoryConnection:
    own = Credentials(ENGINE_CLIENT, engines_key(engine.secret))
    return MemoryConnection(engine, vpn, "remove", signed_by=own)


def _remove(
    engine: MemoryEngine, connection: Connection, name: str, to: str, moved: list[MovedOut]
) -> None:
    begun: list[bool] = []
    times = iter(range(TIMES_MAX))
    keeper = Keeper(lambda: next(times, None) is not None)
    ask = partial(keeper.ask, connection)

    asked = commands.RemoveBroker(broker=name, to=to)
    try:
        number = move_out(
            ask, lambda vpn: _connect(engine, vpn), asked, lambda: begun.append(True),
            lambda: False, moved,
        )  # fmt: skip
    except LakequeueError:
        if begun:
            tell_peers(engine)
        raise
    leaving = engine.broker(name)
    leaving.unread = []
    closed = commands.encode_command(commands.CloseBroker(round=number))
    engine.instruct(DEFAULT_VPN, closed, name)
    told = ask(commands.RemoveBroker(broker=name, round=number))
    if told["done"]:
        engine.brokers.remove(leaving)
        engine.removed[leaving.home.number] = name
    tell_peers(engine)
    unread, leaving.unread = leaving.unread, None
    for batch in unread:
        engine.give(engine.at(leaving.home.number), batch)
    engine.advance("0s")
    if not told["done"]:
        others = ", ".join(map(repr, told["waits_for"]))
        raise LakequeueError(
            f"broker {name!r}: cannot be removed now, for {others} did not say the last word; "
            "it goes on"
        )


def tell_peers(engine: MemoryEngine) -> None:
    """Which brokers there are; a removal that is not done is given up with it."""
    peers = {broker.home.name: broker.home.number for broker in engine.brokers}
    groups = {known: engine.groups[known] for known in peers if known in engine.groups}
    told_all = commands.encode_command(commands.Peers(brokers=peers, groups=groups))
    for broker in engine.brokers:
        engine.instruct(DEFAULT_VPN, told_all, broker.home.name)
