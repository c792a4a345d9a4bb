"""Possible places of tables and checkpoints: this machine, or an object store."""

from __future__ import annotations

import json
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from lakequeue.lake import NoLake, tables_of
from lakequeue.lake.opening import delta_table
from lakequeue.protocol import ConfigError, LakequeueError, folders
from lakequeue.protocol.folders import RemoteFolder, delta_options, folder, s3_settings
from lakequeue.protocol.home_places import tables_place
from lakequeue.streaming.home.home_folder import HomeFolder
from lakequeue.streaming.jars import (
    JARS_XML,
    MANAGER,
    REPLACES,
    S3_XML,
    _expected,
    object_store_jars,
    place_settings,
)
from lakequeue.streaming.spark.spark_session import read_conf
from lakequeue.streaming.tables.table_care import disk_use
from s3_store import KEYS, bucket

__all__ = ["bucket"]


def test_a_path_or_a_file_uri_is_on_this_machine(tmp_path: Path) -> None:
    place = tmp_path / "with space"
    assert folder(str(place)) == folder(place.as_uri()) == folder(place) == place
    assert folder("tables").is_absolute()
    assert isinstance(folder("C:tables"), Path)  # one letter is no scheme


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ftp://host/folder", "is on an unknown file system; allowed are file:, s3a:"),
        ("s3a:/folder", "allowed is s3a://BUCKET/FOLDER"),
        ("s3a://lake/a/../b", "allowed is s3a://BUCKET/FOLDER"),
        ("s3a://lake/a?endpoint=b", "allowed is s3a://BUCKET/FOLDER"),
        ("file://elsewhere/folder", "allowed for a file is file:///an/absolute/path"),
        ("file:folder", "allowed for a file is file:///an/absolute/path"),
    ],
)
def test_an_invalid_place_is_refused_with_the_allowed_ones(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as error:
        folder(text)
    assert repr(text) in str(error.value)


def test_one_store_has_one_name() -> None:
    """Hadoop knows only `s3a:`, and everybody else `s3:`."""
    assert folder("s3://lake/home/") == folder("s3a://lake/home") == RemoteFolder("s3a://lake/home")


def test_a_folder_of_a_store_behaves_like_a_local_one(bucket: str, tmp_path: Path) -> None:
    for root in (tmp_path, folder(f"{bucket}/home")):
        for name in ("checkpoint/east/metadata", "checkpoint/west/metadata", "tables/a/_delta_log"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(b"12345")
        found = sorted(str(place) for place in root.glob("checkpoint/*/metadata"))
        assert found == [f"{root}/checkpoint/{name}/metadata" for name in ("east", "west")]
        assert not any(root.glob("checkpoint/*/commits/*"))
        assert not any((root / "none").glob("*"))
        assert any(root.glob("checkpoint/west/[a-m]*"))
        assert (root / "checkpoint").is_dir()
        assert not (root / "checkp").exists()
        assert (root / "checkpoint" / "east" / "metadata").read_text() == "12345"
        assert disk_use(root) == (15, 3)
        (root / "tables" / "a" / "_delta_log").unlink()
        assert not any(root.glob("tables/*/_delta_log"))
        with pytest.raises(OSError, match="none"):
            (root / "none").unlink()
    (root / "checkpoint").remove()
    assert not (root / "checkpoint").exists()
    (root / "checkpoint").remove()  # nothing is there any more


def test_a_home_remembers_where_its_parts_are(bucket: str, tmp_path: Path) -> None:
    """Q7: parts elsewhere also belong to the home, and none counts as missing."""
    home, places = tmp_path / "home", (f"{bucket}/tables", f"{bucket}/checkpoints")
    one = HomeFolder(home, *places)
    one.open("real-time")
    assert one.unwritable() == ""
    assert one.unwritable(one.tables) == ""
    (one.checkpoint / "broker-0" / "metadata").write_bytes(json.dumps({"id": "one"}).encode())
    (one.tables / "journal" / "_delta_log" / "0.json").write_bytes(b"{}")
    one.remember_checkpoints()
    again = HomeFolder(home)
    assert (str(again.tables), str(again.checkpoints)) == places
    assert again.problem("real-time") == ""
    assert not (home / "checkpoint").exists()
    (one.checkpoint / "broker-0" / "metadata").unlink()
    assert f"{bucket}/checkpoints/checkpoint/broker-0 is gone" in again.problem("real-time")


def test_a_home_refuses_another_place_for_its_parts(tmp_path: Path) -> None:
    home = tmp_path / "home"
    HomeFolder(home).open("real-time")
    (home / "tables" / "journal" / "_delta_log").mkdir(parents=True)
    (home / "checkpoint" / "broker-0").mkdir(parents=True)
    for number, name in enumerate(("tables", "checkpoints")):
        places = ["", ""]
        places[number] = str(tmp_path / "elsewhere")
        with pytest.raises(LakequeueError, match=rf"has its {name} in .*leave lakequeue\.{name} "):
            HomeFolder(home, *places).open("real-time")
    moved = HomeFolder(tmp_path / "other", (tmp_path / "there").as_uri())
    moved.open("real-time")
    assert tables_place(tmp_path / "other") == tmp_path / "there"
    # the same folder, written differently
    HomeFolder(tmp_path / "other", str(tmp_path / "there")).open("real-time")
    with pytest.raises(LakequeueError, match="has its tables in"):
        HomeFolder(tmp_path / "other", str(tmp_path / "elsewhere")).open("real-time")


def test_an_unreachable_store_is_not_an_empty_home(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    HomeFolder(tmp_path, f"{bucket}/tables").open("real-time")
    wrong = RemoteFolder("s3a://no-such-bucket/tables")
    assert "no-such-bucket/tables cannot be written" in HomeFolder(tmp_path).unwritable(wrong)
    with pytest.raises(NoLake, match="has no table messages and no table journal"):
        tables_of(tmp_path)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    folders._s3.cache_clear()
    with pytest.raises(NoLake, match=f"The tables {bucket}/tables cannot be read"):
        tables_of(tmp_path)


def test_deltas_own_library_reads_from_a_store(bucket: str) -> None:
    table = folder(f"{bucket}/tables/journal")
    rows = pa.table({"step": [1, 2]})
    deltalake.write_deltalake(str(table), rows, storage_options=delta_options(table))
    assert delta_table(table).to_pyarrow_table() == rows


def test_spark_gets_the_stores_address_and_no_secret(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = folder(f"{bucket}/x"), tmp_path
    said = place_settings((there, here), here)
    assert said == s3_settings()
    assert said["spark.hadoop.fs.s3a.endpoint"].startswith("http://127.0.0.1:")
    assert said["spark.hadoop.fs.s3a.endpoint.region"] == "us-east-1"
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in said.values()
    assert place_settings((here,), here) == {}
    assert object_store_jars((here,)) == []
    monkeypatch.delenv("AWS_ENDPOINT_URL")  # Amazon's own
    assert set(place_settings((there,))) == {"spark.hadoop.fs.s3a.endpoint.region"}


def test_a_remote_checkpoint_uses_a_manager_that_replaces_files() -> None:
    """The manager of `conf/spark.conf` keeps the first attempt's file where a rename is refused."""
    assert place_settings((), RemoteFolder("hdfs://host/x"))[MANAGER] == REPLACES
    assert read_conf()[MANAGER] != REPLACES


def test_the_jars_of_a_store_are_a_separate_list() -> None:
    usual, more = (_expected(Path("x"), wanted) for wanted in (JARS_XML, S3_XML))
    assert any(jar.name.startswith("hadoop-aws-3.5.0") for jar in more.spark)
    assert not {jar.name for jar in usual.spark} & {jar.name for jar in more.spark}
    assert more.broker == []
    text = S3_XML.read_text()
    assert text.count("<dependency ") == text.count('transitive="false"') == len(more.spark)
