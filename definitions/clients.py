"""The sections `auth` and `clients` of a configuration.

With `auth: required` the engine accepts only commands that a client named here has signed. The file
never contains a key, only where to find it: ``{env: NAME}`` or ``{file: PATH}``
(`conf/client_keys.py` reads it).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from . import definition_values as read

Report = Callable[[str, str, object, str], None]

AUTH = ("required", "none")
_KEYS = ("name", "vpn", "key", "admin")
_PLACES = ("env", "file")


class ClientEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A client. place, key: where its key is; admin: it has all rights in its VPN."""

    name: str
    vpn: str = "default"
    place: str
    key: str
    admin: bool = False


def read_auth(value: object, report: Report) -> bool:
    """The section `auth`."""
    if value is None or value == "none":
        return False
    if value != "required":
        report("", "auth", value, f"must be one of {', '.join(AUTH)}")
    return True


def read_clients(section: object, report: Report) -> tuple[ClientEntry, ...]:
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


def _entry(mapping: object, where: str, report: Report) -> ClientEntry | None:
    if not isinstance(mapping, Mapping):
        report(where, "client", "…", f"must be a mapping of keys: {', '.join(_KEYS)}")
        return None
    before = len(mapping)
    values = {key: mapping[key] for key in _KEYS if mapping.get(key) is not None}
    if before != sum(key in _KEYS for key in mapping):
        other = next(key for key in mapping if key not in _KEYS)
        report(where, read.shown_key(other), "…", read.unknown_key(other, _KEYS))
        return None
    place = values.get("key")
    # The value is not shown, because somebody may have written the key itself.
    if not (isinstance(place, Mapping) and len(place) == 1 and next(iter(place)) in _PLACES):
        report(where, "key", "…", "must say where the key is: {env: NAME} or {file: PATH}")
        return None
    try:
        ((kind, at),) = place.items()
        return ClientEntry(
            name=client_name(values.get("name")), vpn=read.vpn_name(values.get("vpn", "default")),
            place=kind, key=read.text(at), admin=read.boolean(values.get("admin", False)),
        )  # fmt: skip
    except ValueError as error:
        report(where, "client", values.get("name"), str(error))
        return None


def client_name(value: object) -> str:
    """A client's name, which must fit into `NAME:KEY`."""
    name = read.queue_name(value)
    if ":" in name or name.startswith("#"):
        raise ValueError("must not contain ':' or begin with '#'")
    return name
