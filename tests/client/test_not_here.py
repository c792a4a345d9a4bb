"""What this version does not have says so in a sentence, with what to do instead."""

from typing import Any

import lakequeue
import pytest


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("replay", {"queue": "orders", "since": "2026-11-21T10:00:00Z"}),
        ("move", {"queue": "orders", "to": "other", "dry_run": True}),
        ("edit", {"queue": "orders", "headers": {"k": "v"}, "ids": "17-23"}),
    ],
)
def test_R4_R6_it_is_said_plainly(call: str, arguments: dict[str, Any]) -> None:
    with lakequeue.connect("memory://") as connection:
        with pytest.raises(lakequeue.LakequeueError, match=f"{call}: not supported by this"):
            getattr(connection.admin(), call)(**arguments)
