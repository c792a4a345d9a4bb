"""What no client that means well writes."""

from __future__ import annotations


class NoUtf8(str):
    """A header's name that is no text; kafka-python writes what this says of itself."""

    def encode(self, *_: str) -> bytes:
        return b"\xff\xfea"
