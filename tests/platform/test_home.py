"""What a home folder must be before anything starts; no Kafka and no Spark are needed for it."""

from __future__ import annotations

import json
import resource
import shutil
import stat
from pathlib import Path

import pytest
from lakequeue.definitions import Configuration, parse_configuration
from lakequeue.definitions.as_commands import vpns_of
from lakequeue.protocol.errors import LakequeueError
from lakequeue.state import FORMAT
from lakequeue.streaming import Engine
from lakequeue.streaming.home import EPOCH_MAX, HomeFolder

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


def test_the_epoch_begins_in_every_vpns_commands() -> None:
    """Also in that of the default VPN, which only queues name."""
    queues = [{"name": "a", "message_type": "text"}]
    text = {"vpns": {"east": {}, "north": {}}, "queues": queues}
    assert vpns_of(parse_configuration(text)) == ["default", "east", "north"]


def test_a_home_of_before_epochs_gets_one(tmp_path: Path) -> None:
    (tmp_path / "lakequeue.json").write_text(json.dumps({"format": FORMAT}))
    home = HomeFolder(tmp_path)
    home.open()
    assert about(tmp_path) == {"format": FORMAT, "epoch": home.epoch}


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


def test_tables_may_be_begun_anew_before_anything_was_stored(tmp_path: Path) -> None:
    HomeFolder(tmp_path).open()
    assert HomeFolder(tmp_path).problem() == ""


def test_a_convenience_that_is_damaged_is_written_anew(tmp_path: Path) -> None:
    home = HomeFolder(tmp_path)
    home.open()
    for text in ("[", "7"):
        (tmp_path / "captured.json").write_text(text)
        (tmp_path / "ports.json").write_text(text)
        assert (home.captured(), home.port("metrics")) == (set(), 0)
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
