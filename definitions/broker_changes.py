"""Which broker a home can get, and which it can do without (M4), on Kafka as in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ..protocol import LakequeueError
from .broker_section import BROKERS_MAX
from .configuration import names_within_others
from .definition_values import broker_name


def check_added(
    name: str, group: str, brokers: Mapping[str, str], removed: Collection[str], vpns: Iterable[str]
) -> None:
    """Raise LakequeueError where a home cannot get this broker. group: "" where it is in none;
    brokers: the group of each that is there; removed: names of those that were."""
    for what, text in (("a name", name), (f"group {group!r}", group or name)):
        try:
            broker_name(text)
        except ValueError as error:
            raise LakequeueError(f"broker {name!r}: {what} {error}") from error
    if name in brokers:
        raise LakequeueError(f"broker {name!r} is there already")
    if name in removed:
        raise LakequeueError(
            f"broker {name!r}: was removed from this home, and its name is not given again"
        )
    if name in brokers.values() or group in {*brokers, name}:
        both = name if name in brokers.values() else group
        raise LakequeueError(f"broker {name!r}: {both!r} would be a broker and a group of brokers")
    within = names_within_others(vpns, [*brokers, name])
    if within:
        raise LakequeueError(f"broker {name!r}: {within[0].allowed}")
    if len(brokers) >= BROKERS_MAX:
        raise LakequeueError(f"broker {name!r}: there are {BROKERS_MAX} brokers, as many as may be")


def check_removed(name: str, to: str, brokers: Collection[str], removed: Collection[str]) -> None:
    """Raise LakequeueError where a home cannot do without this broker. to: the one that gets its
    local queues, "" where none is named; removed: names of brokers that were."""
    if name in removed:
        raise LakequeueError(f"broker {name!r}: was removed from this home before")
    if name not in brokers:
        known = ", ".join(map(repr, brokers))
        raise LakequeueError(f"broker {name!r}: is not of this home, whose brokers are {known}")
    stay = [broker for broker in brokers if broker != name]
    if not stay:
        raise LakequeueError(f"broker {name!r}: cannot be removed, for it is the home's only one")
    if to and to not in stay:
        allowed = ", ".join(map(repr, stay))
        raise LakequeueError(f"to: {to!r} – allowed are the brokers that stay: {allowed}")
