"""The section `brokers` of a configuration: their names, and the groups that they are in (Q5).

An entry is a name, or a mapping of `name` and `group`. A group is no broker: a queue may name
either, so no name is both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from . import definition_values as read

BROKERS_MAX = 64
DEFAULT_BROKER = "broker-0"
KEYS = ("name", "group")

Report = Callable[[str, str, object, str], None]


def read_brokers(section: object, report: Report) -> tuple[tuple[str, ...], dict[str, str]]:
    """The names, and the group of each that is in one; one default broker when there is no section.
    Reports problems as (place, key, value, what is allowed)."""
    if section is None:
        return (DEFAULT_BROKER,), {}
    if not isinstance(section, list | tuple) or not 1 <= len(section) <= BROKERS_MAX:
        report("", "brokers", section, f"must be a list of 1 to {BROKERS_MAX} broker names")
        return (DEFAULT_BROKER,), {}
    names: list[str] = []
    groups: dict[str, str] = {}
    for index, entry in enumerate(section):
        where = f"brokers[{index}]"
        about = entry if isinstance(entry, Mapping) else {"name": entry}
        for key in about:
            if key not in KEYS:
                report(where, read.shown_key(key), about[key], read.unknown_key(key, KEYS))
        name = _name(where, "name", about.get("name"), report)
        if name is None:
            continue
        if name in names:
            report(where, "name", name, "is given twice; each broker has one name")
        names.append(name)
        group = about.get("group")
        if group is not None and (read_group := _name(where, "group", group, report)):
            groups[name] = read_group
    for name, group in groups.items():
        if group in names:
            allowed = f"must not be a broker's name, as {group!r} is; a queue may name either"
            report(f"brokers[{names.index(name)}]", "group", group, allowed)
    return tuple(names), groups


def _name(where: str, key: str, value: object, report: Report) -> str | None:
    try:
        return read.broker_name(value)
    except ValueError as error:
        report(where, key, value, str(error))
        return None
