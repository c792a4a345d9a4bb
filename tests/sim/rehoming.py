"""Brokers are added and removed at rest, as in the engine: all stop cleanly, the new states are
made, and one record makes them valid. A failure before that record changes nothing."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec
from lakequeue.mesh.home_change import HomeChange, NotAtRest
from lakequeue.mesh.rehome import Rehomed, Resting, rehome
from lakequeue.protocol import commands as c
from lakequeue.protocol import mesh_messages, topics, wire
from lakequeue.protocol.errors import ConfigError
from lakequeue.protocol.home_bridges import COPIER_PREFIX
from lakequeue.protocol.journal import Journal
from lakequeue.replica.driver import Snapshot
from lakequeue.state import Limits

from .kafka import Record
from .replaying import judge_replay
from .worker import VPN, Saved, Site, digest

if TYPE_CHECKING:
    from .home import Home

BROKERS_MAX = 4
LATE_MAX = 4


class _Header(msgspec.Struct):
    time: int = 0
    step: int = 0


_header = msgspec.msgpack.Decoder(_Header).decode


def change_brokers(world: Home, rng: random.Random) -> None:
    """Add or remove a broker, if the home comes to rest."""
    if len(world.sites) < 2 and rng.random() < 0.5:
        return
    for _ in range(6):  # their messages to each other are read
        for site in world.sites.values():
            if site.worker is not None and not site.worker.is_frozen:
                world.do(site.worker, site.worker.step)
    if not all(end_in_order(world, site) for site in world.sites.values()):
        return
    brokers = {site.name: site.number for site in world.sites.values()}
    if len(brokers) > 1 and (len(brokers) == BROKERS_MAX or rng.random() < 0.5):
        del brokers[rng.choice(sorted(brokers))]
    else:
        world.numbers += 1
        brokers[f"n{world.numbers - 1}"] = world.numbers - 1
    known = {site.name: _resting(site) for site in world.sites.values()}
    before = [digest(resting.pages) for _, resting in known.values()]
    limits: Limits = next(iter(world.sites.values())).limits
    try:
        found = rehome(
            [resting for _, resting in known.values()], HomeChange(brokers), 7, b"", limits
        )
    except (NotAtRest, ConfigError) as why:
        world.told.append(f"   {why}")
        return
    finally:
        after = [digest(resting.pages) for _, resting in known.values()]
        assert before == after, "an unfinished rehoming has changed the home"
    if rng.random() < 0.2:
        world.told.append("   it died before the word")
        return
    _take(world, found, {name: own for name, (own, _) in known.items()})
    _say_late(world, rng)


def end_in_order(world: Home, site: Site) -> bool:
    """A broker's loop stops cleanly, and its state has all steps."""
    worker = site.worker
    if worker is None or worker.is_over or worker.is_frozen or site.is_cut:
        return False
    world.do(worker, worker.commit)
    if not worker.is_over:
        world.do(worker, worker.begin_mark)
    return bool(world.do(worker, worker.commit))


def _resting(site: Site) -> tuple[Snapshot, Resting]:
    saved = site.saved[-1]
    own = msgspec.msgpack.decode(saved.snapshot or b"", type=Snapshot)
    return own, Resting(
        site.name, site.number, dict(saved.pages), {(t, n): at for t, n, at in own.offsets},
        {(t, n): one for t, n, one in own.ids}, list(own.captured),
    )  # fmt: skip


def sender_of(record: Record) -> int | None:
    """The broker that sent it; None: a copier."""
    copied = (record.own_key or b"").startswith(COPIER_PREFIX)
    return None if copied else mesh_messages.decode(record.own_value).sender


def _say_late(world: Home, rng: random.Random) -> None:
    """A predecessor of a removed broker's last worker still had its last records in flight to
    Kafka: they arrive once more."""
    gone = {number for site in world.sites.values() for number in site.speaks_for}
    for site in world.sites.values():
        place = topics.topic(site.name, topics.MESH), 0
        heard = world.kafka.read(place, 0, world.kafka.end(place))
        for number in sorted(gone):
            said = [record for record in heard if sender_of(record) == number]
            for record in said[len(said) - rng.randint(0, min(len(said), LATE_MAX)) :]:
                world.kafka.append(place, record.own_value, record.own_key)


def _take(world: Home, found: Rehomed, before: dict[str, Snapshot]) -> None:
    """The home is the new one from now on."""
    world.kafka.loses.clear()  # another broker may be the first one
    for site in world.sites.values():
        assert site.worker is not None
        site.worker.is_over = True
        judge_replay(site, world.kafka)
    gone = [
        site for name, site in world.sites.items() if name not in {o.name for o in found.brokers}
    ]
    peers = c.Peers(brokers={one.name: one.number for one in found.brokers})
    told = c.encode_command(peers)
    sites = {}
    for one in found.brokers:
        is_new = one.name not in world.sites
        if is_new:
            limits = next(iter(world.sites.values())).limits
            site = Site(one.name, one.number, limits)
            world.kafka.sizes |= {
                topics.topic(one.name, kind): 1
                for kind in (topics.MESH, topics.INSTRUCTIONS, topics.BRIDGE_OUT)
            }
        else:
            site = world.sites[one.name]
        header, own = _header(one.pages["broker"]), before.get(one.name, Snapshot())
        snapshot = own.rehomed(
            header.step, header.time, one.offsets, one.ids, one.captures, one.journal
        )
        site.origin = Saved(msgspec.msgpack.encode(snapshot), dict(one.pages))
        site.saved = [site.origin]
        site.begins[header.step] = dict(one.offsets)
        sites[one.name] = site
    heir = min(sites.values(), key=lambda site: site.number)
    for site in gone:
        heir.speaks_for += [site.number, *site.speaks_for]
        site.log.owner = -1
        rest = [*before[site.name].journal, *found.last[site.name]]
        value = msgspec.msgpack.encode(Journal(site.name, 1 << 40, 0, rest))
        step = [(wire.STEP, b"%d.0" % (1 << 40))]
        world.kafka.append((topics.topic(VPN, "journal"), 0), value, site.name.encode(), step)
    new = [site for name, site in sites.items() if name not in world.sites]
    world.sites = sites
    world.told.append(f"   brokers: {', '.join(sites)}")
    world.accounts.happened.add("transferred")
    for site in sites.values():
        if site in new:
            world.begin_site(site, [(VPN, told)])
        else:
            world.kafka.append((topics.topic(site.name, "instructions"), 0), told, VPN.encode())
            world.open(site, world.rng)
