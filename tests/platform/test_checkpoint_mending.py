"""A checkpoint after a power loss returns to its newest whole batch (R1)."""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from lakequeue.protocol.errors import LakequeueError
from lakequeue.streaming.home.checkpoints import follow, set_back, set_back_or_drop

CHUNK = 512
LAST = 7  # the newest finished batch
STORE = "state/0/0"
BLOCK = b"LZ4Block".ljust(21, b"\0")
ABOUT, SCHEMA = "state/0/_metadata/v2", "state/0/_stateSchema/default/0_x"


def put(file: Path, data: bytes) -> None:
    """Write as Spark does on a local disk, with Hadoop's checksums."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    sums = [zlib.crc32(data[at : at + CHUNK]) for at in range(0, len(data), CHUNK)]
    head = b"crc\0" + struct.pack(">I", CHUNK)
    file.with_name(f".{file.name}.crc").write_bytes(head + struct.pack(f">{len(sums)}I", *sums))


def put_whole(store: Path, version: int) -> None:
    """A state that was written in full."""
    sst = f"{version:06}-x.sst"
    put(store / "SSTs" / sst, b"s" * 100)
    said = {"sstFiles": [{"localFileName": "1.sst", "dfsSstFileName": sst, "sizeBytes": 100}]}
    draft = store / "draft"
    with zipfile.ZipFile(draft, "w") as inside:
        inside.writestr("metadata", f"v1\n{json.dumps(said)}")
    put(store / f"{version}.zip", draft.read_bytes())
    draft.unlink()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Batches 3 to 7 are finished and 8 has begun; the state was written in full after 0 and 4."""
    place = tmp_path / "checkpoint" / "broker-0"
    put(place / "metadata", b'{"id":"a-number"}')
    for n in range(3, LAST + 1):
        put(place / f"commits/{n}", b'v1\n{"nextBatchWatermarkMs":0}')
    for n in range(3, LAST + 2):
        put(place / f"offsets/{n}", b'v1\n{"batchTimestampMs":1}\n{"offset":%d}' % n)
    for n in range(1, LAST + 2):
        put(place / STORE / f"{n}.changelog", BLOCK + b"rows" * 99 + BLOCK)
    for n in (1, 5):
        put_whole(place / STORE, n)
    for n in (0, 6):  # of two starts
        put(place / f"{ABOUT}/{n}", b'v2\n{"stateStoreInfo":[]}')
    put(place / SCHEMA, b"schema" * 100)
    return place


def numbers(place: Path, folder: str) -> list[int]:
    return sorted(int(f.name) for f in (place / folder).iterdir() if f.name.isdecimal())


def versions(place: Path) -> int:
    """The newest version of the state."""
    return max(int(f.stem) for f in (place / STORE).glob("[0-9]*.changelog"))


def test_R1_a_whole_checkpoint_is_left_as_it_is(checkpoint: Path) -> None:
    before = sorted(checkpoint.rglob("*"))
    assert set_back(checkpoint, "a-number") == ""
    assert sorted(checkpoint.rglob("*")) == before


def empty(file: Path) -> None:
    file.write_bytes(b"")
    file.with_name(f".{file.name}.crc").write_bytes(b"")


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:10])


def cut_without_sums(file: Path) -> None:
    """Truncate without checksums, as on file systems other than Hadoop's own."""
    cut(file)
    file.with_name(f".{file.name}.crc").unlink()


LOGS = [("offsets/8", 7, 7, 8), ("offsets/7", 6, 6, 7), ("commits/7", 6, 7, 7)]
CHANGES = [(f"{STORE}/8.changelog", 6, 7, 7), (f"{STORE}/7.changelog", 5, 6, 6)]
CASES = [
    *((harm, *case) for harm in (empty, cut, cut_without_sums) for case in LOGS),
    *((harm, *case) for harm in (empty, cut, cut_without_sums, Path.unlink) for case in CHANGES),
]  # fmt: skip
"""Of a file: what is done to it, and then the newest batch that is done, the newest that has begun,
and the newest version of the state."""


@pytest.mark.parametrize(("harm", "file", "done", "begun", "state"), CASES)
def test_R1_the_checkpoint_returns_to_the_newest_whole_batch(
    checkpoint: Path, harm: Callable[[Path], None], file: str, done: int, begun: int, state: int
) -> None:
    harm(checkpoint / file)
    assert file in set_back(checkpoint, "a-number")
    newest = [numbers(checkpoint, folder)[-1] for folder in ("commits", "offsets")]
    assert (*newest, versions(checkpoint)) == (done, begun, state)
    assert set_back(checkpoint) == "", "nothing is left to repair"


def test_R1_a_damaged_full_state_can_be_rebuilt_from_an_earlier_one(checkpoint: Path) -> None:
    store = checkpoint / STORE
    cut(store / "5.zip")
    assert f"{STORE}/5.zip" in set_back(checkpoint)
    assert numbers(checkpoint, "commits")[-1] == LAST, "no batch runs again"
    assert not (store / "5.zip").exists()
    empty(store / "SSTs" / "000001-x.sst")
    put_whole(store, 4)
    cut(store / "SSTs" / "000004-x.sst")
    assert "4.zip names 000004-x.sst, which is missing or cut" in set_back(checkpoint)


def test_R1_without_a_whole_batch_the_error_names_the_command(checkpoint: Path) -> None:
    for name in ("1.changelog", "2.changelog", "3.changelog", "4.changelog", "1.zip"):
        (checkpoint / STORE / name).unlink()
    cut(checkpoint / STORE / "5.zip")
    with pytest.raises(
        LakequeueError, match=r"5.zip is truncated or damaged.*`lakequeue rebuild --from"
    ):
        set_back(checkpoint)


@pytest.mark.parametrize("harm", [empty, cut, cut_without_sums])
def test_R1_the_description_of_the_last_start_may_be_lost(
    checkpoint: Path, harm: Callable[[Path], None]
) -> None:
    """Spark writes it at each start. No batch runs again; the previous start's says the same."""
    harm(checkpoint / ABOUT / "6")
    assert follow(checkpoint.parent) == 0
    assert f"{ABOUT}/6" in set_back(checkpoint, "a-number")
    assert numbers(checkpoint, ABOUT) == [0]
    assert numbers(checkpoint, "commits")[-1] == LAST


def clear(folder: Path) -> None:
    for file in folder.glob("*.*"):
        file.unlink()


@pytest.mark.parametrize(("harm", "file"), [(empty, f"{ABOUT}/0"), (empty, SCHEMA), (clear, STORE)])
def test_R1_what_describes_or_is_the_state_cannot_be_replaced(
    checkpoint: Path, harm: Callable[[Path], None], file: str
) -> None:
    cut(checkpoint / ABOUT / "6")
    harm(checkpoint / file)
    with pytest.raises(LakequeueError, match=rf"{file} is empty.*`lakequeue rebuild --from"):
        set_back(checkpoint)


def test_R1_a_query_without_a_finished_batch_starts_anew(tmp_path: Path) -> None:
    place = tmp_path / "checkpoint" / "broker-0"
    put(place / "offsets/0", b"")
    set_back(place)
    assert numbers(place, "offsets") == []
    put(place / "offsets/0", b"v1\n{}\n{}")
    put(place / "commits/0", b"v1\n{}")
    put(place / STORE / "1.changelog", b"")
    set_back(place)
    assert (numbers(place, "offsets"), numbers(place, "commits")) == ([0], [])


def test_R1_the_querys_id_is_restored(checkpoint: Path) -> None:
    empty(checkpoint / "metadata")
    assert "metadata" in set_back(checkpoint, "a-number")
    assert json.loads((checkpoint / "metadata").read_text()) == {"id": "a-number"}


def test_R1_a_query_of_tables_starts_anew_as_a_last_resort(checkpoint: Path) -> None:
    cut(checkpoint / "commits/7")
    assert "commits/7" in set_back_or_drop(checkpoint)
    assert numbers(checkpoint, "commits")[-1] == 6
    empty(checkpoint / "metadata")
    assert "recreated" in set_back_or_drop(checkpoint)
    assert not checkpoint.exists()
