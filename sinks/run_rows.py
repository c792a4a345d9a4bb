"""A row for each message of a record (R1): what `decode_run` says, in Spark's SQL.

A record that holds a run is a row for each of its messages; one whose value is no run, whatever its
header says, is one row. Of the key and headers there is one copy. Every message of every queue
passes here, so these are expressions that Spark compiles, without functions on arrays: with these
the rows took three times as long. And `conv`, which alone takes a microsecond, is there once for
each message: it gives both bounds of a payload at once.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from ..protocol.messages import RUN_MAX
from ..protocol.table_format import NO_RUN

# Small, or none: whatever a header says, reckoning with it does not overflow.
_SAID = """CASE WHEN key IS NULL AND headers IS NULL
    AND lq RLIKE '"count"[ \\t\\r\\n]*:[ \\t\\r\\n]*[-0-9]'
    THEN try_cast(get_json_object(lq, '$.count') AS DOUBLE) END"""
_COUNT = "CASE WHEN said = floor(said) AND abs(said) <= 100 THEN said::int END"
# Each payload ends where the next begins: numbers whose bytes sort as they do.
_ENDS_RISE = " AND ".join(
    f"(count <= {n} OR substring(value, {4 * n - 3}, 4) <= substring(value, {4 * n + 1}, 4))"
    for n in range(1, RUN_MAX)
)
# How many messages it holds; NULL: it is no run.
_RUN = f"""CASE WHEN count BETWEEN 1 AND least({RUN_MAX}, length(value) div 4) AND {_ENDS_RISE}
    AND conv(hex(substring(value, 4 * count - 3, 4)), 16, 10)::bigint = length(value) - 4 * count
    THEN count END"""
# One that says that it is a run and is none stands there as it came (`NO_RUN`).
_FIRST = f"IF(run IS NULL AND said <> 0 AND said = floor(said), {NO_RUN}, 0)"
_ITEM = f"explode(sequence({_FIRST}, coalesce(run - 1, {_FIRST}))) AS item"
# Where it begins, in the upper half, and where it ends.
_BOUNDS = """CASE WHEN run IS NOT NULL
    THEN conv(hex(substring(value, greatest(4 * item - 3, 1), least(4 * item + 4, 8))),
        16, 10)::bigint
    END"""
_PAYLOAD = """CASE WHEN run IS NULL THEN value ELSE substring(value,
    (4 * run + (bounds >> 32) + 1)::int, ((bounds & 4294967295) - (bounds >> 32))::int) END"""


def run_rows(records: DataFrame) -> DataFrame:
    """`item` and `payload` instead of `value`. records: with `value`, `key`, `lq` and `headers`."""
    said = records.withColumn("said", f.expr(_SAID))
    counted = said.withColumn("count", f.expr(_COUNT)).withColumn("run", f.expr(_RUN))
    items = counted.select("*", f.expr(_ITEM))
    bounded = items.withColumn("bounds", f.expr(_BOUNDS))
    return bounded.withColumn("payload", f.expr(_PAYLOAD)).drop(
        "value", "said", "count", "run", "bounds"
    )
