"""Signed commands: a client proves its identity with a key that only it and the engine have.

A signed command is one record: the word ``signed``, an HMAC-SHA256 in hex, a line of JSON, and the
unsigned command:

    signed 5f…c2 {"client":"app-1","session":"app-1-7","seq":17,"time":1700000000000,"broker":0}
    {"command":"ack","queue":"orders","ids":"1-5"}

The code covers the VPN, the line and the command, so a command cannot be changed or used for
another VPN or broker. ``session`` and ``seq`` make a command valid only once; ``time`` bounds how
long the broker must remember them (`state/commands/permissions.py`).

Keys are never stored in clear. The engine sends each key *sealed* with a secret of its home;
topics, state and tables contain only the sealed form.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

import msgspec

from .bounds import CANNOT_DECODE, Count, Name
from .errors import ConfigError
from .mesh_messages import BrokerNumber

WORD = b"signed "
KEY_CHARACTERS_MIN = 16
ENGINE_CLIENT = "#engine"  # the engine's own connections; no configuration can name it
_MAC = 64  # characters
_NONCE = 16


class Signature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The line of JSON in a signed command."""

    client: Name
    session: Name
    seq: Count
    time: Count
    broker: BrokerNumber


class Speaker(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A client whose signature is valid. admin: it has all rights in its VPN."""

    client: Name
    session: Name
    admin: bool = False


_decoder = msgspec.json.Decoder(Signature)
_encode = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class Credentials:
    """A client's name and key. The key is never shown."""

    client: str
    key: bytes = field(repr=False)

    @classmethod
    def parse(cls, text: str, where: str = "key") -> Credentials:
        """Parse ``name:key``. Raises ConfigError, which does not show the key."""
        client, colon, key = text.strip().rpartition(":")
        if not colon or not client:
            raise ConfigError(f"{where}: must be NAME:KEY, a client's name and its key")
        return cls(client, derived(key, where))


def derived(text: str, where: str) -> bytes:
    """The key derived from an operator's text. Raises ConfigError for a short text."""
    if len(text.strip()) < KEY_CHARACTERS_MIN:
        raise ConfigError(
            f"{where}: the key has fewer than {KEY_CHARACTERS_MIN} characters; make one with "
            "`openssl rand -hex 32`"
        )
    return hashlib.sha256(text.strip().encode()).digest()


def engines_key(secret: bytes) -> bytes:
    """The key of the engine's own connections."""
    return hmac.digest(secret, b"engine", "sha256")


def sign(credentials: Credentials, vpn: str, signature: Signature, command: bytes) -> bytes:
    """Sign a command; returns the record value."""
    signed_part = _encode(signature) + b"\n" + command
    return WORD + _mac(credentials.key, vpn, signed_part) + b" " + signed_part


def split(value: bytes) -> tuple[Signature, bytes, bytes, bytes] | None:
    """A record's signature, its code, the bytes that the code covers, and the command; None if it
    is not signed. Raises ValueError for an incomplete signature."""
    if not value.startswith(WORD):
        return None
    start = len(WORD) + _MAC
    code, signed_part = value[len(WORD) : start], value[start + 1 :]
    line, newline, command = signed_part.partition(b"\n")
    try:
        if not newline or value[start : start + 1] != b" ":
            raise ValueError("a line of JSON is missing")
        return _decoder.decode(line), code, signed_part, command
    except CANNOT_DECODE as error:
        raise ValueError(f"signature: cannot be read: {error}") from error


def is_signed(key: bytes, vpn: str, code: bytes, signed_part: bytes) -> bool:
    """Whether the code was made with this key."""
    return hmac.compare_digest(code, _mac(key, vpn, signed_part))


def _mac(key: bytes, vpn: str, signed_part: bytes) -> bytes:
    whole = b"\n".join((b"lakequeue", vpn.encode(), signed_part))
    return hmac.digest(key, whole, "sha256").hex().encode()


def seal(secret: bytes, vpn: str, client: str, key: bytes, nonce: bytes) -> bytes:
    """A key in its sealed form. nonce: 16 random bytes, different for each key."""
    return nonce + _mixed(secret, vpn, client, key, nonce)


def unseal(secret: bytes, vpn: str, client: str, sealed: bytes) -> bytes:
    """The key in a sealed form. A wrong secret gives a wrong key, not an error."""
    return _mixed(secret, vpn, client, sealed[_NONCE:], sealed[:_NONCE])


def _mixed(secret: bytes, vpn: str, client: str, key: bytes, nonce: bytes) -> bytes:
    pad = hmac.digest(secret, b"\n".join((b"seal", vpn.encode(), client.encode(), nonce)), "sha256")
    return bytes(a ^ b for a, b in zip(key, pad, strict=True))
