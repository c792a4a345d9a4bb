"""What the benchmarks compute with."""

from __future__ import annotations

import pytest
from lakequeue.bench.harness import median
from lakequeue.protocol.errors import LakequeueError


def test_the_median_of_nothing_is_no_figure() -> None:
    assert median([3.0, 1.0, 2.0]) == 2.0
    with pytest.raises(LakequeueError, match="Nothing was measured"):
        median([])
