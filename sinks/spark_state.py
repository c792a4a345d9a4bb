"""Reads the state of a broker's query from its checkpoint, beside the running query.

Spark's source `statestore` encodes a path twice: instead of a folder `a b` it would look for
`a%20b`. So such a folder is read through a link at another path. Executors on other machines do not
see the link, so a cluster's checkpoints need a path that nobody encodes.
"""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from ..protocol.errors import LakequeueError
from ..protocol.folders import Folder

_ENCODED = re.compile(r'[\s"#%<>?\[\\\]^`{|}]')  # by `java.net.URI`, in a path


def read_variable(
    spark: SparkSession, checkpoint: Folder, variable: str, options: Mapping[str, str]
) -> DataFrame:
    """The rows of a variable of the state. options: of the source."""
    reader: Any = spark.read.format("statestore").option("stateVarName", variable)
    return reader.options(**options).load(readable(checkpoint))


def check_place(checkpoints: Folder, is_local: bool) -> None:
    """Raise LakequeueError for a folder whose states Spark could not read. is_local: whether all
    executors are on this machine."""
    if _ENCODED.search(str(checkpoints)) and not (is_local and isinstance(checkpoints, Path)):
        raise LakequeueError(
            f"checkpoints: {str(checkpoints)!r} – allowed on a cluster or an object store is a "
            'path without spaces and "#%<>?[\\]^`{|}, because Spark reads no other; move '
            "the home while its engine is stopped, or set lakequeue.checkpoints"
        )


def readable(checkpoint: Folder) -> str:
    """The checkpoint at a path that Spark's source can read."""
    is_read = not isinstance(checkpoint, Path) or not _ENCODED.search(str(checkpoint))
    return str(checkpoint) if is_read else str(_link_to(checkpoint))


@cache
def _link_to(checkpoint: Path) -> Path:
    """A link to the folder, as long as this process lives."""
    place = tempfile.mkdtemp(prefix="lakequeue-")
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    link = Path(place) / "checkpoint"
    link.symlink_to(checkpoint)
    return link
