"""Repairs a query's checkpoint before Spark reads it: after a power loss, or after a move.

    offsets/N   the offsets of batch N, written before it runs
    state/…/V   the state after batch V - 1: `V.changelog`, on top of an earlier `V.zip`
    commits/N   batch N is done

After a power loss the newest of these files may be empty or cut, and each start of Spark would fail
with a Java error. `set_back` goes back to the newest whole batch: it removes the damaged files and
all later ones that need them. Spark then repeats that batch, and the loop repeats the logged steps.
An object store writes a file whole or not at all, so it needs no repair.

Spark writes one absolute path into a stateful query's checkpoint, that of the state's schema, in
`<broker>/state/<operator>/_metadata/v2/<batch>`: a line with the version, then JSON. If the home
was moved, that path leads nowhere, and in a copy it leads to the original. `follow` corrects it.
Nothing else in a home depends on its path.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import zipfile
from collections.abc import Iterable
from pathlib import Path

from ...protocol.errors import LakequeueError
from ...protocol.file_sums import DAMAGED, damage_of, remove
from ...protocol.folders import Folder

log = logging.getLogger("lakequeue.engine")

METADATA = "metadata"
_STATE_FILE = re.compile(r"(\d+)\.(changelog|zip)")
_CHANGES, _WHOLE = "changelog", "zip"
_BLOCK, _BLOCK_HEAD = b"LZ4Block", 21  # its mark; with its kind (1 byte), sizes (8), checksum


def set_back(checkpoint: Path, number: str = "") -> str:
    """Set a query's checkpoint back as far as needed. Returns a description of the repairs, empty
    if there were none. number: the query's id, if known. Raises LakequeueError if no batch is
    whole."""
    done = []
    about = checkpoint / METADATA
    if about.exists() and (why := damage_of(about) or _damage_of_json(about)):
        done.append(f"{METADATA} {why}")
        remove(about)
        if number:
            about.write_text(json.dumps({"id": number}))
    while problem := _problem(checkpoint):
        file, why, batch = problem
        if batch < 0:
            raise LakequeueError(
                f"{checkpoint / file} {why}, and no earlier batch is whole: restore the checkpoint "
                "from a backup of the whole home, or make a new home from the tables with "
                f"`lakequeue rebuild --from {checkpoint.parent.parent} --home ANOTHER`"
            )
        done.append(f"{file} {why}")
        _forget(checkpoint, file, batch)
    return "; ".join(done)


def set_back_or_drop(checkpoint: Path) -> str:
    """Like `set_back`, for a query of tables: the tables record where to continue, so a checkpoint
    that cannot be used is removed."""
    try:
        fixed = [*checkpoint.glob("sources/*/[0-9]*"), *checkpoint.glob(METADATA)]
        for file in fixed:
            if why := damage_of(file):
                raise LakequeueError(f"{file.relative_to(checkpoint)} {why}")
        return set_back(checkpoint)
    except LakequeueError as error:
        shutil.rmtree(checkpoint)
        return f"{error}: it is recreated"


def _problem(checkpoint: Path) -> tuple[str, str, int] | None:
    """A file that keeps Spark from continuing: its name, its damage, and the batch that must run
    again; -1 if no batch can. None if all files are whole."""
    offsets, commits = _numbers(checkpoint / "offsets"), _numbers(checkpoint / "commits")
    for number in offsets[-1:-3:-1]:  # Spark reads these two
        if why := _damage_of_lines(checkpoint / f"offsets/{number}"):
            return f"offsets/{number}", why, number
    if commits and (why := _damage_of_lines(checkpoint / f"commits/{commits[-1]}")):
        return f"commits/{commits[-1]}", why, commits[-1]
    behind = commits[-1] + 1 if commits else offsets[-1] if offsets else 0
    for operator in sorted(checkpoint.glob("state/[0-9]*")):
        if about := _damage_of_operator(operator):
            file, why, can_do_without = about
            batch = behind if can_do_without or not commits else -1
            return str(file.relative_to(checkpoint)), why, batch
    for store in sorted(checkpoint.glob("state/[0-9]*/[0-9]*")):
        if found := _damage_of_state(store, behind):
            file, why, version = found
            can_run = version >= 0 and (version in offsets or version - 1 in commits)
            return str(file.relative_to(checkpoint)), why, version if can_run else -1
    return None


def _damage_of_operator(operator: Path) -> tuple[Path, str, bool] | None:
    """A damaged file about an operator, and whether Spark can do without it: it writes one at each
    start, and reads the newest."""
    if numbers := _numbers(operator / "_metadata/v2"):
        file = operator / f"_metadata/v2/{numbers[-1]}"
        if why := _damage_of_lines(file):
            return file, why, len(numbers) > 1
    for file in sorted(operator.glob(f"{SCHEMA}/*/[0-9]*")):
        if why := damage_of(file):
            return file, why, False
    return None


def _damage_of_state(store: Path, version: int) -> tuple[Path, str, int] | None:
    """The damage that keeps a version of the state from being loaded, and the newest version that
    can be loaded; -1: none."""
    files: dict[str, set[int]] = {_CHANGES: set(), _WHOLE: set()}
    for file in store.iterdir():
        if named := _STATE_FILE.fullmatch(file.name):
            files[named[2]].add(int(named[1]))
    if not any(files.values()):
        if version and not any(file.is_file() for file in store.iterdir()):
            return store, "is empty", -1
        return None  # another layout, chosen by the user: Spark reports what is wrong with it
    first: tuple[Path, str] | None = None
    for wanted in range(version, 0, -1):
        for base in (*sorted((n for n in files[_WHOLE] if n <= wanted), reverse=True), 0):
            bad = _damage_of_parts(store, base, wanted)
            if bad is None:
                return None if first is None else (*first, wanted)
            first = first or bad
    return None if first is None else (*first, 0 if 1 in files[_CHANGES] | files[_WHOLE] else -1)


def _damage_of_parts(store: Path, base: int, version: int) -> tuple[Path, str] | None:
    """The first damaged file among those that make a version from a base; None if all are whole."""
    if base:
        file = store / f"{base}.{_WHOLE}"
        if why := _damage_of_whole(store, file):
            return file, why
    for n in range(base + 1, version + 1):
        file = store / f"{n}.{_CHANGES}"
        if why := damage_of(file) or _damage_of_end(file):
            return file, why
    return None


def _damage_of_end(file: Path) -> str:
    """Whether Spark's default compression lacks its last block, which is empty. A power loss may
    also take a file's checksums."""
    with file.open("rb") as data:
        is_default = data.read(len(_BLOCK)) == _BLOCK
        data.seek(max(0, file.stat().st_size - _BLOCK_HEAD))
        end = data.read()
    ends = end.startswith(_BLOCK) and len(end) == _BLOCK_HEAD and not any(end[9:17])
    return DAMAGED if is_default and not ends else ""


def _damage_of_whole(store: Path, file: Path) -> str:
    """The damage of a state that was written whole: it lists RocksDB's files, most of them beside
    it."""
    if why := damage_of(file):
        return why
    try:
        with zipfile.ZipFile(file) as inside:
            metadata = inside.read(METADATA).decode().partition("\n")[2]
        for one in json.loads(metadata)["sstFiles"]:
            there = store / "SSTs" / one["dfsSstFileName"]
            if not there.exists() or there.stat().st_size != one["sizeBytes"]:
                return f"names {there.name}, which is missing or cut"
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError):
        return DAMAGED
    return ""


def _forget(checkpoint: Path, file: str, batch: int) -> None:
    """Let a batch run again: remove a damaged file and the files that need it."""
    remove(checkpoint / file)
    for number in _numbers(checkpoint / "commits"):
        if number >= batch:
            remove(checkpoint / f"commits/{number}")
    for number in _numbers(checkpoint / "offsets"):
        if number > batch:
            remove(checkpoint / f"offsets/{number}")
    for one in checkpoint.glob("state/[0-9]*/[0-9]*/*"):
        named = _STATE_FILE.fullmatch(one.name)
        if named and int(named[1]) > batch:
            remove(one)


def _damage_of_lines(file: Path) -> str:
    """The damage of a file of Spark's logs, which has a version line and JSON."""
    if why := damage_of(file):
        return why
    version, _, rest = file.read_text(errors="replace").partition("\n")
    lines = [line for line in rest.splitlines() if line != "-"]  # a source without an offset
    sound = version.startswith("v") and bool(lines) and all(map(_parses, lines))
    return "" if sound else DAMAGED


def _damage_of_json(file: Path) -> str:
    return "" if _parses(file.read_text(errors="replace")) else DAMAGED


def _parses(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _numbers(folder: Path) -> list[int]:
    names: Iterable[Path] = folder.iterdir() if folder.is_dir() else ()
    return sorted(int(file.name) for file in names if file.name.isdecimal())


STATE_METADATA = "*/state/*/_metadata/v2/*"
SCHEMA = "_stateSchema"
LOCAL = "file:"
DRAFT = "moved.draft"


def follow(checkpoint: Folder) -> int:
    """Correct the paths in the brokers' checkpoints, except in damaged files (see `set_back`).
    Returns the number of files that changed. Each is written whole or not at all. Raises OSError,
    and KeyError for files that are not Spark's."""
    if not isinstance(checkpoint, Path):
        return 0
    return sum(
        _follow(file, checkpoint / DRAFT)
        for file in checkpoint.glob(STATE_METADATA)
        if file.name.isdigit() and not _damage_of_lines(file)
    )


def _follow(file: Path, draft: Path) -> bool:
    """Correct the paths in one file; returns whether it changed. draft: a path in another folder,
    because Spark would read a draft beside the file as another batch's."""
    version, _, text = file.read_text().partition("\n")
    about = json.loads(text)
    operator = file.parents[2].absolute()
    follows = False
    for store in about["stateStoreInfo"]:
        paths = store["stateSchemaFilePaths"]
        store["stateSchemaFilePaths"] = [_here(path, operator) for path in paths]
        follows = follows or store["stateSchemaFilePaths"] != paths
    if not follows:
        return False
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)  # else Spark finds it damaged
    draft.write_text(f"{version}\n{json.dumps(about, separators=(',', ':'), ensure_ascii=False)}")
    draft.replace(file)
    return True


def _here(path: str, operator: Path) -> str:
    """Where a schema is now; the path as it was if that is the same file."""
    named = Path(path.removeprefix(LOCAL))
    here = operator / SCHEMA / path.rpartition(f"/{SCHEMA}/")[2]
    if not here.exists() or (named.exists() and named.samefile(here)):
        return path
    return f"{LOCAL}{here}"
