"""A broker is removed from an engine in the process, as `streaming.fewer_brokers` does it.

Its clients' words wait while it takes its leave; then the first broker hears them, or, where it
could not leave, the broker itself.
"""

from __future__ import annotations

from ..definitions import DEFAULT_VPN
from ..protocol import LakequeueError, commands
from ..protocol.signing import ENGINE_CLIENT, Credentials, engines_key
from .in_process import MemoryEngine
from .registry import MemoryConnection


def remove_broker(engine: MemoryEngine, name: str) -> None:
    """Remove a broker of which nothing is left. Raises LakequeueError with what stands in the way,
    and then it goes on as before."""
    own = Credentials(ENGINE_CLIENT, engines_key(engine.secret))
    with MemoryConnection(engine, DEFAULT_VPN, "remove", signed_by=own) as connection:
        asked = commands.RemoveBroker(broker=name)
        begun = connection.request(asked)
        leaving = engine.broker(name)
        leaving.unread = []
        closed = commands.encode_command(commands.CloseBroker(round=begun["round"]))
        engine.instruct(DEFAULT_VPN, closed, name)
        told = connection.request(commands.RemoveBroker(broker=name, round=begun["round"]))
        if told["done"]:
            engine.brokers.remove(leaving)
            engine.removed[leaving.home.number] = name
        peers = {broker.home.name: broker.home.number for broker in engine.brokers}
        groups = {known: engine.groups[known] for known in peers if known in engine.groups}
        told_all = commands.encode_command(commands.Peers(brokers=peers, groups=groups))
        for broker in engine.brokers:
            engine.instruct(DEFAULT_VPN, told_all, broker.home.name)
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
