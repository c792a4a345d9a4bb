"""Commands, checked by who says them: what the engine reads is what was meant, or an error says so.

Most commands are not answered. So what the engine would refuse must not be sent: nobody would hear,
and the client would have acted on it. A command is written and read again, with the decoder that
the engine uses. JSON would also take what it changes on the way: bytes become base64, a time a
text, not-a-number nothing at all. Such a value comes back as another, and is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from .bounds import is_utf8, shown
from .commands import Command, decode_command
from .errors import ConfigError

COMMAND_BYTES_MAX = 8_000_000  # it has to fit into one Kafka record, with its signature
DEPTH_MAX = 100  # of values within values
_REFUSED = "not a command: "

_Command = TypeVar("_Command", bound=Command)


def _plain(value: object) -> str:
    """What msgspec does not write by itself: of a class of its own, but text."""
    if isinstance(value, str):
        return str.__str__(value)
    raise NotImplementedError


_encoder = msgspec.json.Encoder(enc_hook=_plain)


def checked(command: _Command) -> _Command:
    """The command, once it is known that the engine can read it; raises ConfigError."""
    encode_checked(command)
    return command


def encode_checked(command: Command) -> bytes:
    """A command as its record value. Raises ConfigError that names the field, the value and what is
    allowed."""
    try:
        value = _encoder.encode(command)
        same = decode_command(value) == command
    except (TypeError, ValueError, OverflowError, RecursionError, NotImplementedError) as error:
        _refuse_odd(command)
        raise ConfigError(str(error).removeprefix(_REFUSED)) from error
    if not same:
        _refuse_odd(command)
    if len(value) > COMMAND_BYTES_MAX:
        raise ConfigError(
            f"{command.__struct_config__.tag}: {len(value)} bytes – allowed are "
            f"{COMMAND_BYTES_MAX} bytes in one command"
        )
    return value


def _refuse_odd(command: Command) -> None:
    """Raise ConfigError for the first value that JSON has not, or writes as another."""
    for name in command.__struct_fields__:
        for where, value, why in _odd(name, getattr(command, name), 0):
            raise ConfigError(f"{where}: {shown(value)} – {why}")


def _odd(where: str, value: Any, depth: int) -> Iterator[tuple[str, object, str]]:
    """Each such value within this one: where it is, it itself, and what is allowed."""
    if depth > DEPTH_MAX:
        yield where, value, f"allowed are {DEPTH_MAX} levels of values within values"
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from _odd(f"{where}.{name}", getattr(value, name), depth + 1)
    elif isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(key, str):
                yield from _odd(f"{where}, a key", key, depth + 1)
                yield from _odd(f"{where}.{key}", inner, depth + 1)
            else:
                yield f"{where}, a key", key, "allowed is text"
    elif isinstance(value, list | tuple):
        for at, inner in enumerate(value):
            yield from _odd(f"{where}[{at}]", inner, depth + 1)
    elif isinstance(value, str):
        if not is_utf8(value):
            yield where, value, "allowed is text that is UTF-8; this has half a surrogate"
    elif isinstance(value, float):
        if not math.isfinite(value):
            yield where, value, "allowed are numbers that are finite"
    elif isinstance(value, bytes | bytearray | memoryview):
        yield where, value, "allowed is text (str), not bytes"
    elif value is not None and not isinstance(value, int):
        yield where, value, f"allowed is what JSON has, not a {type(value).__name__}"
