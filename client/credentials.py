"""A client's credentials, for engines that ask for signed commands: ``NAME:KEY``, given to
`connect`, or in the environment, or in a file that the environment names."""

from __future__ import annotations

import os
from pathlib import Path

from ..protocol import ConfigError
from ..protocol.signing import Credentials

KEY, KEY_FILE = "LAKEQUEUE_CLIENT_KEY", "LAKEQUEUE_CLIENT_KEY_FILE"


def credentials(key: str | None = None) -> Credentials | None:
    """What is given, or what the environment says; None: commands are not signed. Raises
    ConfigError."""
    if key is not None:
        return Credentials.parse(key)
    if text := os.environ.get(KEY):
        return Credentials.parse(text, KEY)
    file = os.environ.get(KEY_FILE)
    if not file:
        return None
    try:
        return Credentials.parse(Path(file).read_text(), KEY_FILE)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise ConfigError(f"{KEY_FILE}: {file} cannot be read: {why}") from error
