"""The conditions that a home folder must meet before anything starts; they need no Kafka and no
Spark."""

from __future__ import annotations

import json
import resource
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
from lakequeue.definitions import Configuration
from lakequeue.protocol.errors import LakequeueError
from lakequeue.protocol.home_places import ABOUT
from lakequeue.state import FORMAT
from lakequeue.streaming import Engine
from lakequeue.streaming.home.home_folder import EPOCH_MAX, HomeFolder

NOBODY = "127.0.0.1:1"


def start(home: Path) -> str:
    """The error of a start, which gets no further than to Kafka."""
    with pytest.raises(LakequeueError) as error:
        Engine(NOBODY, home, Configuration()).start()
    return str(error.value)


def opened(path: Path) -> HomeFolder:
    home = HomeFolder(path)
    home.open()
    return home


@pytest.fixture
def lived(tmp_path: Path, live: Any) -> HomeFolder:
    """A home in which an engine ran."""
    return live(tmp_path)


def about(home: Path) -> dict:
    return json.loads((home / ABOUT).read_text())


def test_each_home_has_one_random_epoch(tmp_path: Path) -> None:
    epochs = [opened(tmp_path / name).epoch for name in "abab"]
    assert epochs[:2] == epochs[2:]
    assert epochs[0] != epochs[1]
    assert all(0 < epoch <= EPOCH_MAX for epoch in epochs)


def test_a_home_without_an_epoch_gets_one(tmp_path: Path) -> None:
    (tmp_path / ABOUT).write_text(json.dumps({"format": FORMAT}))
    home = opened(tmp_path)
    assert about(tmp_path) == {"format": FORMAT, "epoch": home.epoch}


def test_a_home_that_cannot_be_created_is_reported_with_path_and_reason() -> None:
    with pytest.raises(LakequeueError) as refused:
        HomeFolder(Path("/proc/nowhere")).open()
    assert str(refused.value) == (
        "home /proc/nowhere cannot be used (/proc/nowhere: No such file or directory): make room "
        "and give access there, or choose another home"
    )


@pytest.mark.parametrize("damaged", ["{", "5", "[1]"])
def test_a_damaged_home_record_is_reported_with_its_file(tmp_path: Path, damaged: str) -> None:
    (tmp_path / ABOUT).write_text(damaged)
    with pytest.raises(
        LakequeueError, match=f"^home {tmp_path} cannot be used: {ABOUT} is damaged: "
    ):
        opened(tmp_path)


def test_a_used_home_starts_again(lived: HomeFolder) -> None:
    assert NOBODY in start(lived.path)
    assert about(lived.path) == {
        "format": FORMAT, "epoch": lived.epoch, "trigger": "real-time",
        "checkpoints": {"checkpoint": "one"},
    }  # fmt: skip


def test_the_checkpoints_of_several_queries(lived: HomeFolder) -> None:
    folder = lived.path / "checkpoint"
    (folder / "metadata").unlink()
    for name in ("west", "east"):
        (folder / name).mkdir()
        (folder / name / "metadata").write_text(json.dumps({"id": name}))
    lived.remember_checkpoints()
    assert lived.problem() == ""
    shutil.rmtree(folder / "east")
    assert "checkpoint/east is gone" in lived.problem()


@pytest.mark.parametrize("remembered", [True, False])
def test_a_missing_checkpoint_is_refused_with_the_remedy(
    lived: HomeFolder, remembered: bool
) -> None:
    if not remembered:  # by a version that did not record it; the tables show it
        (lived.path / ABOUT).write_text(json.dumps({"format": FORMAT}))
    shutil.rmtree(lived.path / "checkpoint")
    before = sorted(lived.path.rglob("*"))
    said = start(lived.path)
    for part in ("checkpoint is gone", "backup", str(lived.path / "tables")):
        assert part in said
    assert sorted(lived.path.rglob("*")) == before


def test_another_homes_checkpoint_is_refused(lived: HomeFolder) -> None:
    (lived.path / "checkpoint" / "metadata").write_text(json.dumps({"id": "two"}))
    assert "belongs to another home (it has the number two, not one)" in start(lived.path)


def test_a_checkpoint_without_its_home_is_refused(lived: HomeFolder) -> None:
    (lived.path / ABOUT).unlink()
    assert f"{ABOUT} is missing" in start(lived.path)
    assert not (lived.path / ABOUT).exists()


def test_a_checkpoint_belongs_to_its_trigger(tmp_path: Path, live: Any) -> None:
    home = live(tmp_path, trigger=None)  # of a version with one trigger only
    with pytest.raises(LakequeueError, match=r"with the trigger 'micro-batch'.*--trigger micro-b"):
        home.open("real-time")
    home.open("micro-batch")
    home.open()
    assert about(tmp_path)["trigger"] == "micro-batch"
    opened(tmp_path / "other").open("real-time")
    assert about(tmp_path / "other")["trigger"] == "real-time"


def test_a_damaged_cache_file_is_rewritten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = opened(tmp_path)
    for text in ("", '["or', "7"):
        (tmp_path / "captured.json").write_text(text)
        (tmp_path / "ports.json").write_text(text)
        assert (home.captured(), home.port("metrics")) == (set(), 0)
    assert caplog.text.count("captured.json is damaged") == 2
    home.remember_captured({"b", "a"})
    home.remember_port("metrics", 9400)
    assert (home.captured(), home.port("metrics")) == ({"a", "b"}, 9400)


def test_the_homes_secret_is_drawn_once_and_private(tmp_path: Path) -> None:
    home, other = opened(tmp_path), opened(tmp_path / "other")
    assert len(home.secret) == 32
    assert HomeFolder(tmp_path).secret == home.secret != other.secret
    assert HomeFolder(tmp_path).credentials == home.credentials
    assert home.credentials.key != other.credentials.key
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


def test_missing_disk_space_for_the_state_is_reported(tmp_path: Path, live: Any) -> None:
    """Also where there is some room, but not for a batch."""
    home = live(tmp_path / "home")
    before = sorted(home.path.rglob("*"))
    assert home.unwritable() == ""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, hard))
        found = home.unwritable()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert found == f"{home.path / 'checkpoint'} cannot be written (File too large)"
    assert sorted(home.path.rglob("*")) == before
    assert HomeFolder(tmp_path).unwritable() == ""  # no query has begun


# ------------------------------------------------------------ at another path

OPERATOR = Path("checkpoint/broker-0/state/0")
SCHEMA = OPERATOR / "_stateSchema/default/0_uuid"


def with_schema(home: Path, said: str) -> Path:
    """A broker's checkpoint as Spark writes it, with a schema, which its metadata names under the
    path `said`. Returns the metadata file."""
    metadata = home / OPERATOR / "_metadata/v2/0"
    for file in (metadata, home / SCHEMA):
        file.parent.mkdir(parents=True)
    (home / SCHEMA).touch()
    store = {"storeName": "default", "stateSchemaFilePaths": [f"{said}/default/0_uuid"]}
    about = {"operatorInfo": {"operatorId": 0}, "stateStoreInfo": [store]}
    metadata.write_text("v2\n" + json.dumps(about))
    metadata.with_name(".0.crc").touch()
    return metadata


@pytest.mark.parametrize("original", ["gone", "there"])
def test_a_home_may_be_moved_or_copied(tmp_path: Path, original: str, live: Any) -> None:
    """Its checkpoint names its own schema, not that of another home, or a missing file."""
    old, home = live(tmp_path / "old").path, tmp_path / "a new plåce"
    with_schema(old, f"file:{old / OPERATOR}/_stateSchema")
    (shutil.move if original == "gone" else shutil.copytree)(old, home)
    HomeFolder(home).open("real-time")
    metadata = home / OPERATOR / "_metadata/v2/0"
    version, text = metadata.read_text().split("\n")
    (store,) = json.loads(text)["stateStoreInfo"]
    assert (version, store["stateSchemaFilePaths"]) == ("v2", [f"file:{home / SCHEMA}"])
    assert [p.name for p in metadata.parent.iterdir()] == ["0"], "Spark would call it damaged"
    assert [*home.rglob("*.draft")] == []
    written = metadata.stat().st_mtime_ns
    HomeFolder(home).open("real-time")
    assert metadata.stat().st_mtime_ns == written


def test_a_home_at_its_old_path_is_left_unchanged(tmp_path: Path, live: Any) -> None:
    """Also where it is known by another name; a missing schema is reported by Spark."""
    home, link = live(tmp_path / "home").path, tmp_path / "link"
    link.symlink_to(home)
    metadata = with_schema(home, f"file:{link / OPERATOR}/_stateSchema")
    before = metadata.read_bytes()
    HomeFolder(home).open("real-time")
    (home / SCHEMA).unlink()
    HomeFolder(home).open("real-time")
    assert metadata.read_bytes() == before
    assert metadata.with_name(".0.crc").exists()


# ------------------------------------------------------------------- its Kafka


def test_an_accepted_new_kafka_becomes_the_homes_own(lived: HomeFolder) -> None:
    """The query that writes the tables starts anew there, and skips the rows that it has."""
    lived.require_kafka("first", NOBODY, False)
    (lived.path / "tables-checkpoint" / "offsets").mkdir(parents=True)
    lived.require_kafka("second", NOBODY, True)
    assert not (lived.path / "tables-checkpoint").exists()
    assert (lived.path / "checkpoint").exists()
    lived.require_kafka("second", NOBODY, False)
    with pytest.raises(LakequeueError, match=r"cluster second, .* is first: .*--accept-other-kaf"):
        lived.require_kafka("first", NOBODY, False)


def test_spark_keeps_the_offsets_of_micro_batches(tmp_path: Path, live: Any) -> None:
    home = live(tmp_path, "micro-batch")
    home.require_kafka("first", NOBODY, False)
    with pytest.raises(LakequeueError, match="cannot start over: keep its Kafka"):
        home.require_kafka("second", NOBODY, True)
    assert about(tmp_path)["kafka"] == "first"
