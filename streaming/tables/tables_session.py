"""A Spark session to query the Delta tables, with a running engine or without one.

Spark needs Delta's jars, and accepts `delta.<path>` only with an absolute path; this module handles
both. A reader sees one whole version of a table, even while the engine writes.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from ...lake import HISTORY, TABLES, create_views, tables_of
from ...protocol.home_places import has_table
from ...protocol.table_format import COLUMNS
from ..jars import ensure_jars, object_store_jars, place_settings
from ..spark.spark_session import spark_session

CORES = 2  # an engine on this machine needs the other cores


def open_tables(home: Path | str) -> SparkSession:
    """A session with views of a home's tables (R1): `messages` and `journal`, those over them
    (`queued`, `lifecycle`, `queues`, `consumers`, `changes`), and `commands`, `steps` and
    `snapshots`, which are empty until the engine has written them.

    home: as for `lakequeue up --home`. Raises LakequeueError when it has no tables.
    """
    tables = tables_of(home)
    settings = {"spark.sql.warehouse.dir": str(Path(home).absolute() / "spark-warehouse")}
    jars = [*ensure_jars().spark, *object_store_jars((tables,))]
    spark = spark_session(
        "lakequeue-tables", master=f"local[{CORES}]", jars=jars,
        extra=settings | place_settings((tables,)),
    )  # fmt: skip
    for name in TABLES + HISTORY:
        if name in TABLES or has_table(tables / name):
            rows = spark.read.format("delta").load(str(tables / name))
        else:
            rows = spark.createDataFrame([], COLUMNS[name])
        rows.createOrReplaceTempView(name)
    create_views(spark.sql, "spark")
    return spark
