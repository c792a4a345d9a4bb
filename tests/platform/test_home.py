"""What a home folder must be before anything starts; no Kafka and no Spark are needed for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lakequeue.definitions import Configuration
from lakequeue.protocol.errors import LakequeueError
from lakequeue.state.broker import FORMAT
from lakequeue.streaming import Engine

NOBODY = "127.0.0.1:1"


def start(home: Path) -> str:
    """What the start says; it never comes further than to Kafka."""
    with pytest.raises(LakequeueError) as error:
        Engine(NOBODY, home, Configuration()).start()
    return str(error.value)


def test_the_version_is_written_whole(tmp_path: Path) -> None:
    assert NOBODY in start(tmp_path)
    assert json.loads((tmp_path / "lakequeue.json").read_text()) == {"format": FORMAT}
    assert [p.name for p in tmp_path.glob("*.draft")] == []
