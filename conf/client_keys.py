"""Reads clients' keys from the locations in the configuration. Keys are never shown."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from ..definitions import Configuration
from ..protocol import ConfigError, commands
from ..protocol.signing import derived, seal


def clients_command(configuration: Configuration, secret: bytes) -> bytes:
    """The command that gives brokers the clients with their keys, sealed with the home's secret.
    Raises ConfigError for a missing key."""
    known = []
    for client, key in zip(configuration.clients, client_keys(configuration), strict=True):
        sealed = seal(secret, client.vpn, client.name, key, secrets.token_bytes(16))
        known.append(commands.KnownClient(client.vpn, client.name, sealed, client.admin))
    command = commands.Clients(required=configuration.auth, clients=known)
    return commands.encode_command(command)


def client_keys(configuration: Configuration) -> list[bytes]:
    """The key of each client, from its location. Raises ConfigError for a missing key."""
    keys = []
    for client in configuration.clients:
        place, at = client.key
        where = f"clients: {client.name!r}: {place} {at!r}"
        keys.append(derived(_text(place, at, where), where))
    return keys


def _text(place: str, name: str, where: str) -> str:
    if place == "env":
        found = os.environ.get(name)
        if found is None:
            raise ConfigError(f"{where} – there is no such environment variable")
        return found
    try:
        return Path(name).read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(f"{where} – cannot be read: {why}") from error
