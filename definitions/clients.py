"""The sections `auth` and `clients` of a configuration.

With `auth: required` the engine accepts only commands that a client named here has signed. The file
never contains a key, only where to find it: ``{env: NAME}`` or ``{file: PATH}``
(`conf/client_keys.py` reads it).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from . import definition_values as read

AUTH = ("required", "none")
_PLACES = ("env", "file")


def client_name(value: object) -> str:
    """A client's name, which must fit into `NAME:KEY`."""
    name = read.queue_name(value)
    if ":" in name or name.startswith("#"):
        raise ValueError("must not contain ':' or begin with '#'")
    return name


def _key_place(value: object) -> tuple[str, str]:
    """Read the location of a key: ``{env: NAME}`` or ``{file: PATH}``."""
    if not (isinstance(value, Mapping) and len(value) == 1 and next(iter(value)) in _PLACES):
        raise ValueError("must be the key's location: {env: NAME} or {file: PATH}")
    ((place, at),) = value.items()
    return place, read.text(at)


class ClientEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A client. key: the location of its key, ``("env", NAME)`` or ``("file", PATH)``; admin: it
    has all rights in its VPN."""

    name: Annotated[str, client_name]
    vpn: Annotated[str, read.vpn_name] = "default"
    key: Annotated[tuple[str, str], _key_place]
    admin: Annotated[bool, read.boolean] = False


_KEYS = read.keys_of(ClientEntry)


def read_auth(value: object, report: read.ReportAt) -> bool:
    """The section `auth`."""
    if value is None or value == "none":
        return False
    if value != "required":
        report("", "auth", value, f"must be one of {', '.join(AUTH)}")
    return True


def read_clients(section: object, report: read.ReportAt) -> tuple[ClientEntry, ...]:
    """The section `clients`: a list with unique names in each VPN."""
    if section is None:
        return ()
    if not isinstance(section, list | tuple):
        report("", "clients", "…", "must be a list of clients, each with name and key")
        return ()
    found: dict[tuple[str, str], ClientEntry] = {}
    for index, mapping in enumerate(section):
        where = f"clients[{index}]"
        entry = _entry(mapping, where, report)
        if entry is None:
            continue
        if (entry.vpn, entry.name) in found:
            report(where, "name", entry.name, "is named already; it is unique in its VPN")
        found[entry.vpn, entry.name] = entry
    return tuple(found.values())


def _entry(mapping: object, where: str, report: read.ReportAt) -> ClientEntry | None:
    if not isinstance(mapping, Mapping):
        report(where, "client", "…", f"must be a mapping of keys: {', '.join(_KEYS)}")
        return None

    def report_key(key: str, value: object, allowed: str) -> None:
        report(where, key, "…", allowed)  # the value may be the key itself

    values = read.read_keys(mapping, _KEYS, report_key)
    for key in ("name", "key"):
        if mapping.get(key) is None:
            report(where, key, None, "is required")
    return ClientEntry(**values) if {"name", "key"} <= values.keys() else None
