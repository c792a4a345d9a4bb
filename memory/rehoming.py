"""The brokers of an engine in the process change while it is at rest (M4), as the job's do.

Steps are taken until nothing is between brokers; then `rehome` makes the new pages, and new brokers
of them. Until these take the place of the old ones, in one assignment, the home is what it was.
"""

from __future__ import annotations

import json

from ..client.known_brokers import WISH
from ..core import Limits
from ..definitions import DEFAULT_VPN
from ..mesh.rehome import Change, Rehomed, Resting, rehome
from ..protocol import ConfigError, LakequeueError, commands
from ..protocol.journal import Journal
from .in_process import MemoryEngine
from .live_broker import limits_of
from .mesh_broker import MeshBroker

ONLY_KAFKA = "{}_broker: only over Kafka; a configuration names those in memory"


def answer_wish(engine: MemoryEngine, topic: str, key: bytes, value: bytes) -> None:
    """A wish about a broker, in a VPN's directory: it is done, and the answer stands there. Raises
    ConfigError where brokers cannot do it."""
    asked = json.loads(value)
    if not isinstance(engine.brokers[0], MeshBroker):
        raise ConfigError(ONLY_KAFKA.format(asked["wish"]))
    name, said = key.removeprefix(WISH).decode(), {"id": asked["id"]}
    try:
        if asked["wish"] == "add":
            change_brokers(engine, add=name, group=asked["group"])
            moved = []
        else:
            moved = change_brokers(engine, remove=name, to=asked["to"]).moved
        said |= {"done": True, "moved": moved}
    except LakequeueError as error:
        said["refused"] = str(error)
    engine.tell_directory(topic, key, json.dumps(said).encode())


def change_brokers(
    engine: MemoryEngine, add: str = "", remove: str = "", to: str = "", group: str = ""
) -> Rehomed:
    """Add a broker, remove one, or both. Raises LakequeueError, and the home is as it was."""
    brokers = {broker.home.name: broker.home.number for broker in engine.brokers}
    if add in brokers or add in engine.removed.values():
        raise LakequeueError(f"broker {add!r}: is of this home, or was: a name is given once")
    if remove and remove not in brokers:
        known = ", ".join(map(repr, brokers))
        raise LakequeueError(f"broker {remove!r}: is not of this home, whose brokers are {known}")
    if remove and len(brokers) == 1 and not add:
        raise LakequeueError(f"broker {remove!r}: cannot be removed, for it is the home's only one")
    if add:
        brokers[add] = engine.numbers
    brokers.pop(remove, None)
    groups = engine.groups | ({add: group} if group else {})
    groups = {name: one for name, one in groups.items() if name in brokers}
    resting = [
        Resting(broker.home.name, broker.home.number, dict(broker.store.pages))
        for broker in engine.brokers
    ]
    limits: Limits = limits_of(engine.limits)
    first = engine.brokers[0].home
    found = rehome(resting, Change(brokers, groups, to), first.epoch, engine.secret, limits)
    engine.take_home([(one.name, one.number, one.pages) for one in found.brokers], groups)
    for name, segments in (*found.last.items(), *((o.name, o.journal) for o in found.brokers)):
        engine.tell_journal(Journal(name, 0, engine.now, segments))
    told = commands.encode_command(commands.Peers(brokers=brokers, groups=groups))
    for name in brokers:
        engine.instruct(DEFAULT_VPN, told, name)
    return found
