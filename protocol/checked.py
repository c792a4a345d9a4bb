"""Checks a command before it is sent: the engine must decode exactly the same command.

Most commands have no answer, so the client would not notice a refusal. It therefore decodes each
encoded command again with the engine's decoder. JSON changes some values: bytes become base64, a
time becomes text, NaN becomes null. The error names such a value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from .bounds import is_utf8, shown
from .commands import Command, decode_command
from .errors import ConfigError

COMMAND_BYTES_MAX = 8_000_000  # with its signature it must fit into one Kafka record
DEPTH_MAX = 100  # levels of nested values
_REFUSED = "not a command: "

_Command = TypeVar("_Command", bound=Command)


def _plain(value: object) -> str:
    """Encode a subclass of str, which msgspec refuses."""
    if isinstance(value, str):
        return str.__str__(value)
    raise NotImplementedError


_encoder = msgspec.json.Encoder(enc_hook=_plain)


def checked(command: _Command) -> _Command:
    """Return the command if the engine can read it. Raises ConfigError."""
    encode_checked(command)
    return command


def encode_checked(command: Command) -> bytes:
    """The record value of a command. Raises ConfigError with the field, the value and what is
    allowed."""
    try:
        value = _encoder.encode(command)
        same = decode_command(value) == command
    except (TypeError, ValueError, OverflowError, RecursionError, NotImplementedError) as error:
        _refuse_bad_values(command)
        raise ConfigError(str(error).removeprefix(_REFUSED)) from error
    if not same:
        _refuse_bad_values(command)
    if len(value) > COMMAND_BYTES_MAX:
        raise ConfigError(
            f"{command.__struct_config__.tag}: {len(value)} bytes – a command has at most "
            f"{COMMAND_BYTES_MAX} bytes"
        )
    return value


def _refuse_bad_values(command: Command) -> None:
    """Raise ConfigError for the first value that JSON lacks or changes."""
    for name in command.__struct_fields__:
        for where, value, why in _odd(name, getattr(command, name), 0):
            raise ConfigError(f"{where}: {shown(value)} – {why}")


def _odd(where: str, value: Any, depth: int) -> Iterator[tuple[str, object, str]]:
    """Yield each value that JSON lacks or changes: its path, the value, and what is allowed."""
    if depth > DEPTH_MAX:
        yield where, value, f"allowed are {DEPTH_MAX} levels of nested values"
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
            yield where, value, "allowed is valid Unicode text; this has an unpaired surrogate"
    elif isinstance(value, float):
        if not math.isfinite(value):
            yield where, value, "allowed are finite numbers"
    elif isinstance(value, bytes | bytearray | memoryview):
        yield where, value, "allowed is text (str), not bytes"
    elif value is not None and not isinstance(value, int):
        yield where, value, f"allowed are JSON values, not a {type(value).__name__}"
