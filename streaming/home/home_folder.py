"""The home: the folder with everything that must outlive the process, and the checks before a
start.

A home has the checkpoint (the queues themselves), the Delta tables, and `lakequeue.json`: the
format of the state, the home's *epoch*, the checkpoints of the last run, and the locations of
checkpoints and tables that are not in the home (`protocol.folders`). The epoch is a random number,
drawn when the home is created. Message ids are unique only within a home, so a command with ids has
the epoch, and the engine refuses commands about another home's messages.

Nothing can replace the checkpoint. If it is missing, Spark silently starts over: acknowledged
messages would be delivered again, and ids used twice. So the engine remembers the id that Spark
gave each checkpoint, and starts with no other.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ...definitions import DEFAULT_BROKER
from ...earlier.pages import FORMAT as EARLIER_FORMAT
from ...protocol.errors import LakequeueError
from ...protocol.folders import Folder, RemoteFolder, folder, remove
from ...protocol.home_places import (
    ABOUT,
    CHECKPOINTS,
    KAFKA,
    OF_TABLES,
    PLACES,
    TABLES,
    checkpoints_place,
    places_of,
    tables_place,
)
from ...protocol.journal import Journal
from ...protocol.signing import ENGINE_CLIENT, Credentials, engines_key
from ...protocol.state_files import (
    FOLDER,
    QUEUES,
    SUFFIX,
    state_file,
    write_state,
    write_whole,
)
from ...state import FORMAT
from .checkpoints import follow, set_back, set_back_or_drop
from .home_notes import HomeNotes, write_json

log = logging.getLogger("lakequeue.engine")

SECRET, SECRET_BYTES = "secret", 32
CHECKPOINT = "checkpoint"
REHOMED, LAST_RECORDS = "rehomed", "last-words"
TABLES_CHECKPOINT, HISTORY_CHECKPOINT = "tables-checkpoint", "history-checkpoint"
PROBE, PROBE_BYTES = ".probe", 1_000_000  # less room than this counts as a full disk
# Removed brokers: each one's number, and the topics, partitions and offsets up to which it had read
# its clients' records.
Removed = dict[str, tuple[int, list[tuple[str, int, int]]]]
Moves = list[tuple[str, str, str]]  # VPN, queue, broker where it is now
REAL_TIME = "real-time"  # only this trigger can load a rebuilt state
MICRO_BATCH = "micro-batch"  # the trigger of a home whose record has none: it was the only one
EPOCH_MAX = 2**53 - 1  # exact in every language that reads JSON numbers as floats
NUMBERS_MAX = 65_536  # a broker's number is the top 16 bits of its message ids
# Checkpoints of the engine's queries. That of the tables may be lost: the tables record where to
# continue.
_METADATA = ("metadata", "*/metadata")


class HomeFolder(HomeNotes):
    """One home. Call `open` first; it raises LakequeueError with what to do.

    tables, checkpoints: paths or URIs given by the user; empty: where the home has them.
    """

    def __init__(self, path: Path, tables: str = "", checkpoints: str = "") -> None:
        self.path = path
        given = {TABLES: tables, CHECKPOINTS: checkpoints}
        self._given = {name: str(folder(place)) for name, place in given.items() if place}
        places = places_of(path) | self._given
        self.tables = tables_place(path, places)
        self.checkpoints = checkpoints_place(path, places)
        self.epoch = 0  # set by `open`

    def open(self, trigger: str | None = None) -> None:
        """Prepare the folder, or refuse it.

        trigger: must be the one that wrote the checkpoint, which no other can read; None: not
        checked.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / TABLES).mkdir(exist_ok=True)  # its lock is here, wherever the tables are
            self._make_tables()
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            problem = self.problem(trigger)
            if problem:
                raise LakequeueError(problem)
            if follow(self.checkpoint):
                log.info("home %s was moved after its checkpoint was written", self.path)
            self._drop_rebuilt()
            self._drop_rehomed()
            about = self._record()
            self.epoch = about.get("epoch") or secrets.randbelow(EPOCH_MAX) + 1
            told: dict[str, Any] = {"format": about.get("format", FORMAT), "epoch": self.epoch}
            if trigger is not None:
                told["trigger"] = trigger
            if self._given:
                told[PLACES] = places_of(self.path) | self._given
            self._note(**told)
        except OSError as error:
            why = f"{error.filename or self.path}: {error.strerror or error}"
            raise LakequeueError(
                f"home {self.path} cannot be used ({why}): make room and give access there, or "
                "choose another home"
            ) from error
        except (ValueError, KeyError, AttributeError) as error:
            raise LakequeueError(f"home {self.path} cannot be used: {error}") from error

    def _make_tables(self) -> None:
        """A home that was used before can start without tables: the queues are not in them."""
        try:
            self.tables.mkdir(parents=True, exist_ok=True)
        except OSError:
            if not (self.path / ABOUT).exists():
                raise

    def problem(self, trigger: str | None = None) -> str:
        """Why this home must not be started, and what to do; empty if it may be. For an open home:
        why its queries must not be restarted. Changes nothing. Raises OSError and ValueError for
        unreadable files."""
        about = self._record()
        found = self._checkpoints()
        if self.epoch and about.get("epoch") != self.epoch:  # it was open, so it was there
            return (
                f"{self.path / ABOUT} is gone, or belongs to another home: restore the home as it "
                "was, and start again"
            )
        if not about:
            if not found:
                return ""
            return (
                f"{self.path / ABOUT} is missing beside {self.checkpoint}: it identifies the "
                "home; restore it, or use another --home"
            )
        if about["format"] not in (EARLIER_FORMAT, FORMAT):
            return (
                f"{self.path} was written by a version with state format {about['format']}; this "
                f"version reads {EARLIER_FORMAT} and {FORMAT}: use that version, or another --home"
            )
        if about["format"] == EARLIER_FORMAT and len(about.get("brokers", ())) > 1:
            return (
                f"{self.path} was written by a version with state format {EARLIER_FORMAT} and has "
                f"{len(about['brokers'])} brokers; this version reads that format of one broker "
                "only. Start the earlier version, remove brokers until one is left (`lakequeue "
                "brokers --remove NAME`), and stop it cleanly; then start this version and add "
                "them under other names (`lakequeue brokers --add NAME`)"
            )
        if moved := self._moved():
            return moved
        if found:
            before = about.get("trigger", MICRO_BATCH)
        else:  # micro-batches would begin with an empty state
            before = REAL_TIME if self._is_rebuilt() else trigger
        if trigger is not None and before != trigger:
            return (
                f"{self.path} was made with the trigger {before!r}, whose checkpoint {trigger!r} "
                f"cannot read: use --trigger {before}, or another --home"
            )
        for place, number in about.get("checkpoints", {}).items():
            if place not in found:
                return self._missing(f"{self.checkpoints / place} is gone")
            if found[place] != number:
                return self._missing(
                    f"{self.checkpoints / place} belongs to another home (it has the number "
                    f"{found[place]}, not {number})"
                )
        if not found and not self._is_rebuilt() and any(self.tables.glob("*/_delta_log")):
            return self._missing(f"{self.checkpoint} is gone")
        return ""

    @property
    def checkpoint(self) -> Folder:
        """The folder of the brokers' checkpoints."""
        return self.checkpoints / CHECKPOINT

    def _moved(self) -> str:
        """Why the home is refused: its tables or checkpoints are not where the settings say; empty
        if they are."""
        known, here = places_of(self.path), {TABLES: self.path / TABLES, CHECKPOINTS: self.path}
        sign = {TABLES: "*/_delta_log", CHECKPOINTS: f"{CHECKPOINT}/*"}
        for name, now in self._given.items():
            lived = any(here[name].glob(sign[name]))
            before = known.get(name, str(here[name]) if lived else now)
            if now != before:
                return (
                    f"{self.path} has its {name} in {before}, not in {now}: leave lakequeue.{name} "
                    "as it was, or use another --home"
                )
        return ""

    def unwritable(self, folder: Folder | None = None) -> str:
        """Why a folder cannot be written now, by default that of the checkpoint; empty if it
        can."""
        folder = folder or self.checkpoint
        if isinstance(folder, Path) and not folder.is_dir():
            folder = self.checkpoints  # no query has begun
        probe = folder / PROBE
        try:
            _try(probe)
        except OSError as error:
            return f"{folder} cannot be written ({error.strerror or error})"
        finally:
            with contextlib.suppress(OSError):
                probe.unlink()
        return ""

    def _missing(self, what: str) -> str:
        return (
            f"{what}: the queues were in it, and without it acknowledged messages would come "
            "again and ids be used twice. Restore it from a backup of the whole home, or build "
            "a new home from the tables with `lakequeue rebuild`. Or start over with an empty "
            "--home and a Kafka with fresh topics; all messages and events are still in "
            f"{self.tables}"
        )

    def remember_checkpoints(self) -> None:
        """Note the checkpoints of the running queries: from now on they may use no others. Their
        state now has this core's format, which earlier versions cannot read."""
        if self._record():
            self._note(checkpoints=self._checkpoints(), format=FORMAT)

    def _is_rebuilt(self) -> bool:
        """Whether the home has a state that was rebuilt from the tables and is not loaded yet."""
        return any(self.path.glob(f"{FOLDER}/*{SUFFIX}"))

    @property
    def secret(self) -> bytes:
        """The secret that seals clients' keys in the state. It is drawn once, and only the home's
        owner can read it. If it is lost, the next start needs the keys again. Raises
        LakequeueError."""
        file = self.path / SECRET
        try:
            if not file.exists():
                draft = file.with_suffix(".draft")
                draft.touch(0o600)
                with draft.open("wb") as drawn:
                    drawn.write(secrets.token_bytes(SECRET_BYTES))
                    drawn.flush()
                    os.fsync(drawn.fileno())
                draft.replace(file)
            return file.read_bytes()
        except OSError as error:
            raise LakequeueError(f"{file} cannot be used: {error.strerror or error}") from error

    @property
    def credentials(self) -> Credentials:
        """The credentials of the engine's own connections."""
        return Credentials(ENGINE_CLIENT, engines_key(self.secret))

    def require_kafka(self, cluster: str, address: str, accepts_other: bool) -> None:
        """Bind the home to this Kafka cluster, whose offsets it stores. Raises LakequeueError if it
        is bound to another one, unless accepts_other."""
        about = self._record()
        cluster = cluster or about.get(KAFKA, "")  # Kafka does not name its cluster
        known = about.get(KAFKA, cluster)
        if known != cluster and not accepts_other:
            raise LakequeueError(
                f"home {self.path} was on the Kafka cluster {known}, and at {address} is "
                f"{cluster}: give it its own Kafka, or start with --accept-other-kafka: the queues "
                "are kept with their messages, and the other Kafka's records in their topics are "
                "read from the beginning"
            )
        if accepts_other and about.get("trigger") == MICRO_BATCH:
            raise LakequeueError(
                "--accept-other-kafka: with the trigger 'micro-batch' Spark keeps the offsets, and "
                "cannot start over: keep its Kafka, or begin with a new home"
            )
        if accepts_other:
            for name in OF_TABLES:  # the tables record where to continue
                remove(self.checkpoints / name)
        self._note(**{KAFKA: cluster})

    def mend(self) -> None:
        """Set checkpoints that a power loss has damaged back to their newest whole batch. Only the
        one engine of this home may call it, before its queries start. Raises LakequeueError if
        there is no whole batch."""
        if not isinstance(self.checkpoints, Path):
            return
        for place, number in self._checkpoints().items():
            if done := set_back(self.checkpoints / place, number):
                log.warning(
                    "%s was damaged (%s): the query goes back to its newest whole batch, and "
                    "repeats what came after it", self.checkpoints / place, done,
                )  # fmt: skip
        for name in (TABLES_CHECKPOINT, HISTORY_CHECKPOINT):
            tables = self.checkpoints / name
            if tables.is_dir() and (done := set_back_or_drop(tables)):
                log.warning("%s was damaged: %s", tables, done)

    # ------------------------------------------------------------ rebuilt states (R3)

    def rebuilt(self, broker: str) -> str:
        """The file of a broker's rebuilt state, until a checkpoint has replaced it; empty if there
        is none."""
        named = self._record().get("rehomed", {}).get(broker)
        file = state_file(self.path, broker) if named is None else self.path / named
        return str(file) if file.is_file() else ""

    def rehome(
        self, states: Mapping[str, tuple[bytes, Mapping[str, bytes]]], brokers: dict[str, int],
        groups: Mapping[str, str], removed: Removed, last: list[Journal], moved: Moves,
    ) -> None:  # fmt: skip
        """Give the home these brokers, each with its first state: its loop's snapshot and pages.
        removed: the removed brokers; last: records that these still have to send; moved: queues
        with one host that have a new broker. The change is written whole or not at all (M4)."""
        about = self._record()
        at = int(about.get("rehomings", 0)) + 1
        named = {name: f"{REHOMED}/{at}/{name}{SUFFIX}" for name in states}
        for name, (snapshot, pages) in states.items():
            write_state(self.path / named[name], snapshot, sorted(pages.items()))
        kept = [one for one in [*self.last_records(), *last] if one.segments]
        write_whole(self.path / REHOMED / str(at) / LAST_RECORDS, msgspec.msgpack.encode(kept))
        gone = {name: {"number": number, "read": read} for name, (number, read) in removed.items()}
        self._note(
            brokers=brokers, numbers=self._numbers_with(brokers), groups=dict(groups), moved=moved,
            removed=about.get("removed", {}) | gone, rehomings=at, rehomed=named,
        )  # fmt: skip
        self._drop_rehomed()

    def moved(self) -> Moves:
        """The queues that the last change of brokers moved."""
        return [(vpn, queue, to) for vpn, queue, to in self._record().get("moved", [])]

    def last_records(self) -> list[Journal]:
        """Records that removed brokers still have to send. The engine sends them and then calls
        `forget_last_records`. A reader drops a journal record that comes twice."""
        file = self._rehomed() / LAST_RECORDS
        if not file.exists():
            return []
        return msgspec.msgpack.decode(file.read_bytes(), type=list[Journal])

    def forget_last_records(self) -> None:
        """Forget the last records of removed brokers, after all were sent."""
        (self._rehomed() / LAST_RECORDS).unlink(missing_ok=True)

    def _rehomed(self) -> Path:
        """The folder of the last change of brokers."""
        return self.path / REHOMED / str(self._record().get("rehomings", 0))

    def _drop_rehomed(self) -> None:
        """Remove states of earlier changes, or of a change that was not finished."""
        kept = self._rehomed()
        for place in kept.parent.glob("*"):
            if place != kept:
                shutil.rmtree(place, ignore_errors=True)

    def rebuilt_queues(self) -> list[tuple[str, str]]:
        """VPN and name of every queue in a rebuilt state."""
        if not self._is_rebuilt():
            return []
        found = json.loads((self.path / FOLDER / QUEUES).read_text())
        return [(vpn, queue) for vpn, queue in found]

    def _drop_rebuilt(self) -> None:
        """Remove rebuilt states that Spark has replaced with a committed state."""
        for file in self.path.glob(f"{FOLDER}/*{SUFFIX}"):
            broker = file.name.removesuffix(SUFFIX)
            if any(self.checkpoint.glob(f"{broker}/commits/[0-9]*")):
                file.unlink()

    def _record(self) -> dict[str, Any]:
        file = self.path / ABOUT
        try:
            return dict(json.loads(file.read_text())) if file.exists() else {}
        except (ValueError, TypeError) as error:
            raise ValueError(f"{ABOUT} is damaged: {error}") from error

    def _note(self, **news: Any) -> None:
        """Update the home's record if these values differ from it."""
        about = self._record()
        whole = {**about, **news}
        if whole != about:
            write_json(self.path / ABOUT, whole)

    def _checkpoints(self) -> dict[str, str]:
        """Each query's folder, relative to the home, and the id that Spark gave it."""
        known = self._record().get("checkpoints", {})
        found = {}
        for pattern in _METADATA:
            for file in self.checkpoint.glob(pattern):
                place = f"{CHECKPOINT}/{file.parent.name}" if "/" in pattern else CHECKPOINT
                try:
                    found[place] = str(json.loads(file.read_text())["id"])
                except (ValueError, KeyError, TypeError):  # damaged, see `mend`
                    found[place] = str(known.get(place, ""))
        return found

    # ------------------------------------------------------------ brokers

    def brokers(self, names: Iterable[str]) -> dict[str, int]:
        """The home's brokers with their numbers, and new ones of these names with the next numbers.
        A number is never used again, since message ids begin with it. Raises LakequeueError if no
        number is left. Writes nothing."""
        about = self._record()
        known: dict[str, int] = about.get("brokers", {})
        if not known:  # a home of one broker that did not store its name
            places = about.get("checkpoints", {})
            known = {p.partition("/")[2]: 0 for p in places if p.startswith(f"{CHECKPOINT}/")}
        asked = list(names)
        if known and asked == [DEFAULT_BROKER]:  # the configuration names none
            asked = []
        found, following = dict(known), max(self.numbers, len(known))
        for name in asked:
            if name not in found and name not in self.removed():
                found[name] = following
                following += 1
        if following > NUMBERS_MAX:
            raise LakequeueError(
                f"home {self.path}: all {NUMBERS_MAX} broker numbers are used: make a new home"
            )
        return found

    def require_brokers(self, names: Iterable[str]) -> None:
        """Raises LakequeueError if the home lacks one of these: a new broker is added while the
        home rests (M4)."""
        known = self.brokers(())
        new = [name for name in names if name not in known]
        if known and new:
            raise LakequeueError(
                f"brokers: {', '.join(map(repr, new))} – the home {self.path} has "
                f"{', '.join(map(repr, known))}: start the engine with these, and add others with "
                "`lakequeue brokers --add NAME`"
            )

    def removed(self) -> Removed:
        """The removed brokers."""
        found: dict[str, Any] = self._record().get("removed", {})
        return {
            name: (one["number"], [(topic, at, offset) for topic, at, offset in one["read"]])
            for name, one in found.items()
        }

    @property
    def numbers(self) -> int:
        """How many numbers brokers have had so far; 0: none, or one of a broker without a stored
        name."""
        return int(self._record().get("numbers", 0))

    def give_numbers(self, numbers: int) -> None:
        """Remember how many numbers brokers have had."""
        self._note(numbers=numbers)

    def _numbers_with(self, brokers: Mapping[str, int]) -> int:
        return max(self.numbers, *(number + 1 for number in brokers.values()))

    def groups(self, given: Mapping[str, str], brokers: Iterable[str]) -> dict[str, str]:
        """The group of each of these brokers, if it has one: as stored in the home, or as given for
        a new broker. Raises LakequeueError if a broker would change its group: the group's queues,
        with their messages, are on its brokers."""
        known: dict[str, str] = self._record().get("groups", {})
        numbered = self.brokers(())
        found = {}
        for name in brokers:
            before, now = known.get(name, ""), given.get(name, "")
            if name in numbered and name in given and now != before:
                was = f"in group {before!r}" if before else "in no group"
                raise LakequeueError(
                    f"broker {name!r}: group {now!r} – it is {was} in home {self.path}, and stays "
                    "there; add a broker with another name"
                )
            if group := before or now:
                found[name] = group
        return found

    def remember_brokers(
        self, brokers: dict[str, int], groups: Mapping[str, str] | None = None
    ) -> None:
        """Store the brokers with their numbers, and their groups."""
        told = {} if groups is None else {"groups": dict(groups)}
        self._note(brokers=brokers, numbers=self._numbers_with(brokers), **told)


def _try(probe: Folder) -> None:
    """Write a file of `PROBE_BYTES`. An object store is never full."""
    if isinstance(probe, RemoteFolder):
        probe.write_bytes(b"?")
        return
    with probe.open("wb") as file:
        file.write(bytes(PROBE_BYTES))
        os.fsync(file.fileno())
