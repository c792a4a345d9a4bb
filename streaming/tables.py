"""A Spark session to look into the Delta tables with, beside the engine or without one.

Spark takes `delta.<path>` only for an absolute path, and Delta's jars have to be there: here both
are seen to. Whoever reads a Delta table sees one of its versions, whole, also while the engine
writes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..protocol.errors import LakequeueError
from .jars import ensure_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = ("messages", "journal")
CORES = 2  # an engine beside it needs the others


def open_tables(home: Path | str) -> SparkSession:
    """A session with the views `messages` and `journal` of a home's tables (R1).

    home: as for `lakequeue up --home`. Raises LakequeueError when it has no tables.
    """
    tables = Path(home).expanduser().absolute() / "tables"
    missing = [name for name in TABLES if not (tables / name / "_delta_log").is_dir()]
    if missing:
        raise LakequeueError(
            f"{tables} has no table {' and no table '.join(missing)}: is {home} the home of an "
            "engine that has written its tables? (lakequeue.tables_interval_s is not 0)"
        )
    from .spark import spark_session

    warehouse = {"spark.sql.warehouse.dir": str(tables.parent / "spark-warehouse")}
    spark = spark_session(
        "lakequeue-tables", master=f"local[{CORES}]", jars=ensure_jars().spark, extra=warehouse
    )
    for name in TABLES:
        spark.read.format("delta").load(str(tables / name)).createOrReplaceTempView(name)
    return spark
