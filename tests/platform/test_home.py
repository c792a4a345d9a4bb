"""What a home folder must be before anything starts; no Kafka and no Spark are needed for it."""

from __future__ import annotations

import json
import resource
import shutil
import stat
from pathlib import Path

import pytest
from lakequeue.definitions import Configuration
from lakequeue.protocol.errors import LakequeueError
from lakequeue.protocol.home_places import ABOUT
from lakequeue.state import FORMAT
from lakequeue.streaming import Engine
from lakequeue.streaming.home.home_folder import EPOCH_MAX, HomeFolder

NOBODY = "127.0.0.1:1"


def start(home: Path) -> str:
    """What the start says; it never comes further than to Kafka."""
    with pytest.raises(LakequeueError) as error:
        Engine(NOBODY, home, Configuration()).start()
    return str(error.value)


def lived(path: Path, trigger: str | None = "real-time") -> HomeFolder:
    """A home in which an engine ran."""
    home = HomeFolder(path)
    home.open(trigger)
    (path / "checkpoint").mkdir()
    (path / "checkpoint" / "metadata").write_text(json.dumps({"id": "one"}))
    (path / "tables" / "journal" / "_delta_log").mkdir(parents=True)
    home.remember_checkpoints()
    return home


def about(home: Path) -> dict:
    return json.loads((home / "lakequeue.json").read_text())


def test_who_it_is_is_written_whole(tmp_path: Path) -> None:
    assert NOBODY in start(tmp_path)
    assert about(tmp_path)["format"] == FORMAT
    assert [p.name for p in tmp_path.glob("*.draft")] == []


def test_the_epoch_is_drawn_once_for_each_home(tmp_path: Path) -> None:
    epochs = []
    for name in ("a", "b", "a", "b"):
        home = HomeFolder(tmp_path / name)
        home.open()
        epochs.append(home.epoch)
    assert epochs[:2] == epochs[2:]
    assert epochs[0] != epochs[1]
    assert all(0 < epoch <= EPOCH_MAX for epoch in epochs)


def test_a_home_of_before_epochs_gets_one(tmp_path: Path) -> None:
    (tmp_path / "lakequeue.json").write_text(json.dumps({"format": FORMAT}))
    home = HomeFolder(tmp_path)
    home.open()
    assert about(tmp_path) == {"format": FORMAT, "epoch": home.epoch}


def test_a_home_that_cannot_be_made_says_where_and_why() -> None:
    with pytest.raises(LakequeueError) as refused:
        HomeFolder(Path("/proc/nowhere")).open()
    assert str(refused.value) == (
        "home /proc/nowhere cannot be used (/proc/nowhere: No such file or directory): make room "
        "and give access there, or choose another home"
    )


@pytest.mark.parametrize("damaged", ["{", "5", "[1]"])
def test_a_home_whose_record_is_damaged_names_the_file(tmp_path: Path, damaged: str) -> None:
    (tmp_path / ABOUT).write_text(damaged)
    with pytest.raises(
        LakequeueError, match=f"^home {tmp_path} cannot be used: {ABOUT} is damaged: "
    ):
        HomeFolder(tmp_path).open()


def test_a_home_that_lived_starts_again(tmp_path: Path) -> None:
    epoch = lived(tmp_path).epoch
    assert NOBODY in start(tmp_path)
    assert about(tmp_path) == {
        "format": FORMAT, "epoch": epoch, "trigger": "real-time",
        "checkpoints": {"checkpoint": "one"},
    }  # fmt: skip


def test_the_checkpoints_of_several_queries(tmp_path: Path) -> None:
    home = lived(tmp_path)
    (tmp_path / "checkpoint" / "metadata").unlink()
    for name in ("west", "east"):
        folder = tmp_path / "checkpoint" / name
        folder.mkdir()
        (folder / "metadata").write_text(json.dumps({"id": name}))
    home.remember_checkpoints()
    assert home.problem() == ""
    shutil.rmtree(tmp_path / "checkpoint" / "east")
    assert "checkpoint/east is gone" in home.problem()


@pytest.mark.parametrize("remembered", [True, False])
def test_a_checkpoint_that_is_gone_is_refused_with_what_to_do(
    tmp_path: Path, remembered: bool
) -> None:
    lived(tmp_path)
    if not remembered:  # by a version that did not note it; the tables tell
        (tmp_path / "lakequeue.json").write_text(json.dumps({"format": FORMAT}))
    shutil.rmtree(tmp_path / "checkpoint")
    before = sorted(tmp_path.rglob("*"))
    said = start(tmp_path)
    assert "checkpoint is gone" in said
    assert "backup" in said
    assert str(tmp_path / "tables") in said
    assert sorted(tmp_path.rglob("*")) == before


def test_another_homes_checkpoint_is_refused(tmp_path: Path) -> None:
    lived(tmp_path)
    (tmp_path / "checkpoint" / "metadata").write_text(json.dumps({"id": "two"}))
    assert "belongs to another home (it has the number two, not one)" in start(tmp_path)


def test_a_checkpoint_without_its_home_is_refused(tmp_path: Path) -> None:
    lived(tmp_path)
    (tmp_path / "lakequeue.json").unlink()
    assert "lakequeue.json is missing" in start(tmp_path)
    assert not (tmp_path / "lakequeue.json").exists()


def test_a_checkpoint_is_for_its_trigger(tmp_path: Path) -> None:
    home = lived(tmp_path, trigger=None)  # of a version that knew one
    with pytest.raises(LakequeueError, match=r"with the trigger 'micro-batch'.*--trigger micro-b"):
        home.open("real-time")
    home.open("micro-batch")
    home.open()
    assert about(tmp_path)["trigger"] == "micro-batch"
    other = HomeFolder(tmp_path / "other")
    other.open()
    other.open("real-time")
    assert about(tmp_path / "other")["trigger"] == "real-time"


def test_a_convenience_that_is_damaged_is_written_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = HomeFolder(tmp_path)
    home.open()
    for text in ("", '["or', "7"):
        (tmp_path / "captured.json").write_text(text)
        (tmp_path / "ports.json").write_text(text)
        assert (home.captured(), home.port("metrics")) == (set(), 0)
    assert caplog.text.count("captured.json is damaged") == 2
    home.remember_captured({"b", "a"})
    home.remember_port("metrics", 9400)
    assert (home.captured(), home.port("metrics")) == ({"a", "b"}, 9400)


def test_its_secret_is_drawn_once_and_its_owners(tmp_path: Path) -> None:
    home = HomeFolder(tmp_path)
    home.open()
    secret = home.secret
    assert len(secret) == 32
    assert HomeFolder(tmp_path).secret == secret == home.secret
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
    assert home.credentials == HomeFolder(tmp_path).credentials
    other = HomeFolder(tmp_path / "other")
    other.open()
    assert other.secret != secret
    assert other.credentials.key != home.credentials.key


def test_room_for_the_state(tmp_path: Path) -> None:
    """Also where there is some room, but not for a batch."""
    home = lived(tmp_path / "home")
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


def with_schema(checkpoint: Path, said: str) -> Path:
    """A broker's checkpoint as Spark writes it, whose schema is said to be there; its metadata."""
    operator = checkpoint / "broker-0" / "state" / "0"
    metadata, schema = operator / "_metadata" / "v2", operator / "_stateSchema" / "default"
    for folder in (metadata, schema):
        folder.mkdir(parents=True)
    (schema / "0_uuid").touch()
    store = {"storeName": "default", "stateSchemaFilePaths": [f"{said}/default/0_uuid"]}
    about = {"operatorInfo": {"operatorId": 0}, "stateStoreInfo": [store]}
    (metadata / "0").write_text("v2\n" + json.dumps(about))
    (metadata / ".0.crc").touch()
    return metadata / "0"


def schemas(metadata: Path) -> list[str]:
    version, text = metadata.read_text().split("\n")
    assert version == "v2"
    (store,) = json.loads(text)["stateStoreInfo"]
    return store["stateSchemaFilePaths"]


@pytest.mark.parametrize("original", ["gone", "there"])
def test_a_home_may_be_moved_or_copied(tmp_path: Path, original: str) -> None:
    """Its checkpoint names its own schema, not that of another home, or a file that is gone."""
    lived(tmp_path / "old")
    before = tmp_path / "old" / "checkpoint" / "broker-0" / "state" / "0" / "_stateSchema"
    with_schema(tmp_path / "old" / "checkpoint", f"file:{before}")
    home = tmp_path / "a new plåce"
    (shutil.move if original == "gone" else shutil.copytree)(tmp_path / "old", home)
    metadata = home / "checkpoint" / "broker-0" / "state" / "0" / "_metadata" / "v2" / "0"
    HomeFolder(home).open("real-time")
    now = home / "checkpoint" / "broker-0" / "state" / "0" / "_stateSchema" / "default" / "0_uuid"
    assert schemas(metadata) == [f"file:{now}"]
    assert [p.name for p in metadata.parent.iterdir()] == ["0"], "Spark would find it damaged"
    assert list(home.rglob("*.draft")) == []
    written = metadata.stat().st_mtime_ns
    HomeFolder(home).open("real-time")
    assert metadata.stat().st_mtime_ns == written


def test_a_home_that_is_where_it_was_is_left_alone(tmp_path: Path) -> None:
    """Also where it is known by another name; and a schema that is nowhere is Spark's to tell."""
    home = tmp_path / "home"
    lived(home)
    link = tmp_path / "link"
    link.symlink_to(home)
    said = f"file:{link}/checkpoint/broker-0/state/0/_stateSchema"
    metadata = with_schema(home / "checkpoint", said)
    before = metadata.read_bytes()
    HomeFolder(home).open("real-time")
    (
        home / "checkpoint" / "broker-0" / "state" / "0" / "_stateSchema" / "default" / "0_uuid"
    ).unlink()
    HomeFolder(home).open("real-time")
    assert metadata.read_bytes() == before
    assert (metadata.parent / ".0.crc").exists()


# ------------------------------------------------------------------- its Kafka


def test_a_home_stays_on_its_kafka(tmp_path: Path) -> None:
    home = lived(tmp_path)
    home.require_kafka("first", NOBODY, False)
    home.require_kafka("first", NOBODY, False)
    with pytest.raises(LakequeueError, match=r"cluster first, .* is second: .*--accept-other-kaf"):
        home.require_kafka("second", NOBODY, False)
    assert about(tmp_path)["kafka"] == "first"


def test_another_one_that_is_accepted_is_its_own_from_then_on(tmp_path: Path) -> None:
    """And what writes the tables begins anew there: what is in them already they know."""
    home = lived(tmp_path)
    home.require_kafka("first", NOBODY, False)
    (tmp_path / "tables-checkpoint" / "offsets").mkdir(parents=True)
    home.require_kafka("second", NOBODY, True)
    assert not (tmp_path / "tables-checkpoint").exists()
    assert (tmp_path / "checkpoint").exists()
    home.require_kafka("second", NOBODY, False)
    with pytest.raises(LakequeueError, match="first"):
        home.require_kafka("first", NOBODY, False)


def test_spark_keeps_the_offsets_of_micro_batches(tmp_path: Path) -> None:
    home = lived(tmp_path, "micro-batch")
    home.require_kafka("first", NOBODY, False)
    with pytest.raises(LakequeueError, match="rebuild"):
        home.require_kafka("second", NOBODY, True)
    assert about(tmp_path)["kafka"] == "first"
