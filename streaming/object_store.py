"""What Spark needs for a home whose tables or checkpoints are on another file system.

The jars of an S3 store come from a list of their own (`conf/jars-s3.xml`); those of other stores
are the cluster's. And Spark's checkpoints must be written as such a store has it: the faster way of
`conf/spark.conf` renames a file over another, which only a local disk does; elsewhere the file of
the first try would stay when a batch is repeated, and be taken for the second's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from ..protocol.folders import S3A, Folder, RemoteFolder, s3_settings
from .jars import S3_XML, ensure_jars

MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
REPLACES = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
)


def object_store_jars(
    places: Iterable[Folder], progress: Callable[[str], None] | None = None
) -> list[Path]:
    """The jars beside the usual ones. Raises LakequeueError, as `ensure_jars`."""
    return ensure_jars(progress, S3_XML).spark if any(map(_on_s3, places)) else []


def place_settings(places: Iterable[Folder], checkpoints: Folder | None = None) -> dict[str, str]:
    """Spark's settings for these places, of which one may be that of the checkpoints."""
    found = s3_settings() if any(map(_on_s3, places)) else {}
    if isinstance(checkpoints, RemoteFolder):
        found[MANAGER] = REPLACES
    return found


def _on_s3(place: Folder) -> bool:
    return isinstance(place, RemoteFolder) and place.uri.startswith(f"{S3A}:")
