"""Records that no well-meaning client writes."""

from __future__ import annotations


class NoUtf8(str):
    """A header's name that is no text; kafka-python writes its encoded form."""

    def encode(self, *_: str) -> bytes:
        return b"\xff\xfea"
