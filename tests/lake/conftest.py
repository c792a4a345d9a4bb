"""Small active sets for walks (R5)."""

from collections.abc import Iterator

import pytest
from lakequeue.definitions import definition
from lakequeue.definitions import definition_values as read


@pytest.fixture
def small_active_sets() -> Iterator[None]:
    """`target_queue_depth` from 1 on, instead of from 1000 on: walks are short."""
    with pytest.MonkeyPatch.context() as patch:
        key = "target_queue_depth"
        patch.setitem(definition._KEYS, key, (key, read.count(1)))
        yield
