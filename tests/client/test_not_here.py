"""What this version does not have says so in a sentence, with what to do instead."""

from typing import Any

import lakequeue
import pytest


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("bridge", {"definition": {"name": "west-east"}}),
    ],
)
def test_H1_it_is_said_plainly(call: str, arguments: dict[str, Any]) -> None:
    with lakequeue.connect("memory://") as connection:
        with pytest.raises(lakequeue.LakequeueError, match=f"{call}: not supported by this"):
            getattr(connection.admin(), call)(**arguments)
