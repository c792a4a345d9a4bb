"""Opens the lake: DuckDB over the Delta tables of a home, without Spark and without an engine.

`deltalake` reads the Delta log and returns the table's newest version as an Arrow dataset, from
which DuckDB reads only the data that a query needs. So a query sees one whole version of each
table, even while the engine writes. Decision 0024 explains why this is not Spark.

Arrow's own file systems read the files. With that of `deltalake`, which calls back into Python, a
query with a LIMIT leaves threads that read ahead; if Python ends meanwhile, a signal kills the
process.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..protocol.errors import LakequeueError, first_line
from ..protocol.folders import Folder, delta_options, files_of
from ..protocol.home_places import has_table, tables_place
from ..protocol.table_format import COLUMNS, DATE, refusal_of
from .views import create_views

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Lake
else:  # an optional package: `open_lake` reports if it is missing
    Lake = Any

TABLES = ("messages", "journal")
HISTORY = ("commands", "steps", "snapshots")  # only in homes with the real-time trigger
WHEN_WRITTEN = (
    "an engine with the trigger real-time writes it a minute after its start, unless "
    "lakequeue.history_interval_s is 0"
)
_LIST = re.compile(r"ARRAY<STRUCT<(.*?)>>")
_DECODED = re.compile(r"%[0-9A-Fa-f]{2}|\\")


class NoLake(LakequeueError):
    """The tables, or the packages that read them, are missing."""


def open_lake(home: Path | str) -> Lake:
    """Open a DuckDB connection with the views `messages`, `journal`, `queued`, `lifecycle`,
    `queues`, `consumers` and `changes` over the current tables of a home, and `commands`, `steps`
    and `snapshots`, which are empty until the engine has written them. Times are UTC.

    home: as for `lakequeue up --home`. Raises LakequeueError if it has no tables, if they cannot be
    read, or if `deltalake` and `duckdb` are not installed (extra `sql`).
    """
    tables = tables_of(home)
    try:
        import deltalake  # noqa: F401  (imported here, so that a missing package is reported first)
        import duckdb
    except ImportError as error:
        raise NoLake(
            f"SQL needs the Python package {error.name}: pip install deltalake duckdb"
        ) from error
    settings: dict[str, Any] = {
        "python_enable_replacements": False,  # an unknown name must not read a Python variable
        "autoinstall_known_extensions": False,
        "temp_directory": tempfile.gettempdir(),
    }
    connection = duckdb.connect(config=settings)
    connection.execute("SET TimeZone = 'UTC'")
    for name in TABLES + HISTORY:
        if name in TABLES or has_table(tables / name):
            _register(connection, name, _dataset(tables / name))
        else:
            connection.execute(f"CREATE TEMPORARY TABLE {name} ({_columns(name)})")
    create_views(connection.execute, "duckdb")
    return connection


def _register(connection: Lake, name: str, dataset: Any) -> None:
    """Register a table under its name. In a table of version 3 to which the engine has not yet
    added the missing columns, these are NULL."""
    none = f"(SELECT row.* FROM (SELECT NULL::STRUCT({_columns(name)}) AS row) WHERE false)"
    if set(connection.sql(f"FROM {none}").columns) <= set(dataset.schema.names):
        connection.register(name, dataset)
        return
    stored = f"{name}_as_stored"
    connection.register(stored, dataset)
    connection.execute(
        f"CREATE TEMPORARY VIEW {name} AS FROM {none} UNION ALL BY NAME FROM {stored}"
    )


def _columns(name: str) -> str:
    """A table's columns, with DuckDB's types."""
    text = COLUMNS[name].replace("`", '"').replace("TIMESTAMP", "TIMESTAMP WITH TIME ZONE")
    return _LIST.sub(lambda found: f"STRUCT({found[1].replace(': ', ' ')})[]", text)


def not_written(home: Path | str) -> dict[str, str]:
    """The tables of the history that a home does not have yet, with a sentence about each."""
    tables = tables_of(home)
    return {
        name: f"The home {home} has no table {name!r} yet: {WHEN_WRITTEN}"
        for name in HISTORY
        if not has_table(tables / name)
    }


def tables_of(home: Path | str) -> Folder:
    """The folder of a home's tables; raises NoLake if there is none."""
    tables = tables_place(Path(home).expanduser().absolute())
    try:
        missing = [name for name in TABLES if not has_table(tables / name)]
    except OSError as error:
        raise NoLake(f"The tables {tables} cannot be read: {first_line(error)}") from error
    if missing:
        raise NoLake(
            f"{tables} has no table {' and no table '.join(missing)}: is {home} the home of an "
            "engine that has written its tables? (lakequeue.tables_interval_s is not 0)"
        )
    return tables


def delta_table(table: Folder) -> Any:
    """The newest version of a Delta table. Raises NoLake for a path that `deltalake` changes."""
    import deltalake

    if isinstance(table, Path) and (found := _DECODED.search(str(table))):
        raise NoLake(
            f"SQL reads no path with {found[0]!r}; move the home while its engine is stopped"
        )
    return deltalake.DeltaTable(str(table), storage_options=delta_options(table))


def read_columns(table: Folder, columns: list[str]) -> pa.Table:
    """These columns of every row, without DuckDB. No rows if the table does not exist yet."""
    if not has_table(table):
        return pa.table({name: pa.array([]) for name in columns})
    return _dataset(table).to_table(columns=columns)


def _dataset(table: Folder) -> Any:
    from pyarrow.dataset import ParquetReadOptions

    try:
        found = delta_table(table)
        # Spark wrote times as INT96, which Arrow would read as nanoseconds: these end in 2262.
        reads = ParquetReadOptions(coerce_int96_timestamp_unit="us")
        dataset = found.to_pyarrow_dataset(filesystem=files_of(table), parquet_read_options=reads)
        dataset = _with_files_of_unknown_ends(dataset, found)
    except Exception as error:  # the files may be damaged in any way
        raise NoLake(f"The Delta table {table} cannot be read: {first_line(error)}") from error
    if problem := refusal_of(str(table), found.metadata().configuration):
        raise NoLake(problem)
    return dataset


def _with_files_of_unknown_ends(dataset: Any, table: Any) -> Any:
    """A dataset in which queries also find files whose statistics lack a minimum or maximum.

    Without this, `deltalake` makes Arrow compare with null, and a query that filters by the column
    misses the file. Earlier versions wrote such statistics for texts of more than 32 characters.
    """
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    files = pa.table(table.get_add_actions(flatten=True))
    unknown = pa.scalar(False)
    for name in files.column_names:
        if name.startswith("min."):
            nulls = files[name.replace("min.", "null_count.", 1)]
            is_empty = pc.fill_null(pc.equal(nulls, files["num_records"]), False)
            unknown = pc.or_(unknown, pc.and_not(pc.is_null(files[name]), is_empty))
    if not pc.any(unknown).as_py():
        return dataset
    rows = {row["path"]: row for row in files.filter(unknown).to_pylist()}
    fragments = []
    for fragment in dataset.get_fragments():
        if (row := rows.get(fragment.path)) is not None:
            day = row.get(f"partition.{DATE}")
            fragment = dataset.format.make_fragment(
                fragment.path, fragment.filesystem,
                None if day is None else ds.field(DATE) == ds.scalar(day),
            )  # fmt: skip
        fragments.append(fragment)
    return ds.FileSystemDataset(fragments, dataset.schema, dataset.format, dataset.filesystem)
