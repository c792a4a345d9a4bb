"""Checks before a broker is added to a home or removed from it (M4), on Kafka as in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ..protocol import LakequeueError
from .brokers import BROKERS_MAX
from .configuration import names_within_others
from .definition_values import broker_name


def check_added(
    name: str, group: str, brokers: Mapping[str, str], removed: Collection[str], vpns: Iterable[str]
) -> None:
    """Raise LakequeueError if this broker cannot be added. group: "" for none; brokers: the group
    of each broker by name; removed: the names of removed brokers."""
    for what, text in (("a name", name), (f"group {group!r}", group or name)):
        try:
            broker_name(text)
        except ValueError as error:
            raise LakequeueError(f"broker {name!r}: {what} {error}") from error
    if name in brokers:
        raise LakequeueError(f"broker {name!r}: exists already")
    if name in removed:
        raise LakequeueError(
            f"broker {name!r}: was removed from this home, and its name cannot be used again"
        )
    if name in brokers.values() or group in {*brokers, name}:
        both = name if name in brokers.values() else group
        raise LakequeueError(f"broker {name!r}: {both!r} would be both a broker and a group")
    within = names_within_others(vpns, [*brokers, name])
    if within:
        raise LakequeueError(f"broker {name!r}: {within[0].allowed}")
    if len(brokers) >= BROKERS_MAX:
        raise LakequeueError(f"broker {name!r}: a home has at most {BROKERS_MAX} brokers")


def check_removed(name: str, to: str, brokers: Collection[str], removed: Collection[str]) -> None:
    """Raise LakequeueError if this broker cannot be removed. to: the broker that gets its local
    queues, "" if none is named; removed: the names of removed brokers."""
    if name in removed:
        raise LakequeueError(f"broker {name!r}: was removed from this home before")
    if name not in brokers:
        names = ", ".join(map(repr, brokers))
        raise LakequeueError(f"broker {name!r}: this home has no such broker; it has {names}")
    stay = [broker for broker in brokers if broker != name]
    if not stay:
        raise LakequeueError(f"broker {name!r}: is the home's only one, and cannot be removed")
    if to and to not in stay:
        allowed = ", ".join(map(repr, stay))
        raise LakequeueError(f"to: {to!r} – allowed are the brokers that stay: {allowed}")
