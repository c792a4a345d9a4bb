"""Tables of a later version are refused when an engine starts, before there is a Spark (R1).

A table's properties stand in its log: in the newest commit that changed them, else in the
checkpoint that those before were folded into. Delta writes one every hundred commits, so there is
little to read. Who makes the tables asks once more (`sinks.delta_tables`): a table whose log cannot
be read this way is not refused here.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from ..lake.opening import TABLES
from ..protocol.errors import LakequeueError
from ..protocol.folders import Folder
from ..protocol.table_format import refusal_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_COMMIT, _CHECKPOINT = re.compile(r"(\d{20})\.json"), re.compile(r"(\d{20})\.checkpoint\.parquet")


def refuse_later_tables(tables: Folder) -> None:
    """Raise LakequeueError where one of the tables was written by a later version of lakequeue."""
    for name in TABLES:
        if problem := refusal_of(f"{tables}/{name}", properties_of(tables / name)):
            raise LakequeueError(problem)


def properties_of(table: Folder) -> dict[str, str]:
    """What a Delta table says of itself; nothing where there is none, or its log does not say."""
    return next((dict(about["configuration"]) for about in _metadata(table / "_delta_log")), {})


def _metadata(log: Folder) -> Iterator[dict[str, Any]]:
    """What a table's log says of it, the newest first."""
    files = {place.name: place for place in log.glob("*")}
    checkpoint = max(filter(_CHECKPOINT.fullmatch, files), default="")
    for name in sorted(filter(_COMMIT.fullmatch, files), reverse=True):
        if name[:20] <= checkpoint[:20]:
            break
        for line in files[name].read_text().splitlines():
            if (about := json.loads(line).get("metaData")) is not None:
                yield about
    if checkpoint:
        import pyarrow as pa
        import pyarrow.parquet as pq

        whole = pa.BufferReader(files[checkpoint].read_bytes())
        for about in pq.read_table(whole, columns=["metaData"])["metaData"].to_pylist():
            if about is not None:
                yield about
