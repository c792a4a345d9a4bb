"""Small files of a home that save time at the next start. They may be lost."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...protocol.state_files import write_whole

log = logging.getLogger("lakequeue.engine")

CAPTURED, PORTS = "captured.json", "ports.json"


class HomeNotes:
    """The notes of the home at a path."""

    path: Path

    def captured(self) -> set[str]:
        """The captured topics that the engine read when it last ran. At each start the engine asks
        its brokers for the true list; this one saves a restart of the queries."""
        return set(self._kept(CAPTURED, []))

    def remember_captured(self, captured: Iterable[str]) -> None:
        """Keep the list for the next start."""
        write_json(self.path / CAPTURED, sorted(captured))

    def port(self, name: str) -> int:
        """The port that this home had before; 0 if it had none."""
        return int(self._kept(PORTS, {}).get(name, 0))

    def remember_port(self, name: str, port: int) -> None:
        """Remember a port, so that it is the same after a restart."""
        ports = self._kept(PORTS, {})
        if ports.get(name) != port:
            write_json(self.path / PORTS, {**ports, name: port})

    def _kept(self, name: str, nothing: Any) -> Any:
        """A note of this home, or `nothing` if it is missing or damaged."""
        file = self.path / name
        try:
            found = json.loads(file.read_text()) if file.exists() else nothing
        except ValueError as error:
            log.warning("%s is damaged (%s) and is rewritten", file, error)
            return nothing
        return found if isinstance(found, type(nothing)) else nothing


def write_json(file: Path, value: Any) -> None:
    """Write JSON whole or not at all."""
    write_whole(file, json.dumps(value).encode())
