"""The jars of Spark's connectors and of the embedded Kafka, fetched once per user.

`conf/jars.xml` pins every jar; Ivy, which comes with PySpark, fetches them. So only PySpark and
Java must be installed. (`spark.jars.packages` reads all Maven poms, and fails if one is missing.)
The cache folder has the hash of the list in its name. `python -m lakequeue.streaming.jars` fills
the cache; `make` calls it.

A home on an S3 store also needs the jars of `conf/jars-s3.xml` (`object_store_jars`), and another
way to write checkpoints (`place_settings`): the fast one of `conf/spark.conf` renames a file over
another, which only a local disk allows. On another store the file of the first attempt would stay
when a batch is repeated. Jars for other stores must be installed on the cluster.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ..protocol.errors import LakequeueError
from ..protocol.folders import S3A, Folder, RemoteFolder, s3_settings
from .file_lock import locked

log = logging.getLogger("lakequeue.engine")

CONF = Path(__file__).resolve().parent.parent / "conf"
JARS_XML = CONF / "jars.xml"
S3_XML = CONF / "jars-s3.xml"  # only for homes that have something on an S3 store
JAVA_MAJOR_MIN = 17
VERSION_S_MAX = 60.0
FETCH_SECONDS_MAX = 900
_STAMP = "complete"
# Ivy prints this when it cannot reach a repository. It then calls every jar "not found".
_OFFLINE = re.compile(
    r"HttpClientHandler: .*(refused|timed out|unreachable|unknown|not known|resol|handshake|SSL)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Jars:
    """Where the jars are: ``spark`` for `spark.jars`, ``broker`` for the broker's class path."""

    spark: list[Path]
    broker: list[Path]


def cache_directory() -> Path:
    """The per-user cache: ``$LAKEQUEUE_CACHE``, else ``~/.cache/lakequeue``. Not created here."""
    chosen = os.environ.get("LAKEQUEUE_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "lakequeue"


def java_version(java: str | Path) -> int | None:
    """The major version of this ``java``, or None if it does not run or prints no version. Raises
    LakequeueError if it takes too long."""
    try:
        done = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=VERSION_S_MAX
        )
    except subprocess.TimeoutExpired as slow:
        raise LakequeueError(
            f"{java} did not print its version within {VERSION_S_MAX:g} s: the machine is too "
            "busy, or this Java hangs; try again, or point JAVA_HOME at another one"
        ) from slow
    except OSError:
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(found.group(1)) if found else None


def java_executable() -> Path:
    """The first Java of ``JAVA_HOME`` and ``PATH`` that is new enough. Warns if that of
    ``JAVA_HOME`` is not. Raises LakequeueError if there is none; the error lists the ones found.
    """
    seen: list[str] = []
    home = os.environ.get("JAVA_HOME")
    for candidate in (f"{home}/bin/java" if home else None, shutil.which("java")):
        if candidate is None:
            continue
        major = java_version(candidate)
        if major is not None and major >= JAVA_MAJOR_MIN:
            if seen:
                _warn(
                    f"JAVA_HOME: {seen[0]}, and Java {JAVA_MAJOR_MIN} or newer is needed; "
                    f"{candidate} is used instead"
                )
            return Path(candidate)
        seen.append(f"{candidate} is {f'version {major}' if major else 'not a working Java'}")
    found = "; ".join(dict.fromkeys(seen)) or "there is none in JAVA_HOME or on the PATH"
    raise LakequeueError(
        f"Java {JAVA_MAJOR_MIN} or newer is needed ({found}): install a JRE, for example "
        "`apt-get install openjdk-17-jre-headless`, or point JAVA_HOME at one."
    )


@functools.cache
def _warn(text: str) -> None:
    """Log a warning once: each start of Kafka and of Spark asks for Java."""
    log.warning(text)


def cached_jars(wanted: Path | None = None) -> Jars | None:
    """The jars of a list if the cache holds all of them, else None. Fetches nothing."""
    folder = _folder(wanted)
    jars = _expected(folder, wanted)
    try:
        complete = all(p.is_file() for p in (folder / _STAMP, *jars.spark, *jars.broker))
    except OSError:  # no access: `ensure_jars` reports it
        complete = False
    return jars if complete else None


def ensure_jars(progress: Callable[[str], None] | None = None, wanted: Path | None = None) -> Jars:
    """The jars, fetched if the cache lacks them (about 40 s the first time).

    wanted: the list, by default `conf/jars.xml`.
    progress: called with one line when a fetch starts and one when it is done; without it the
    lines go to standard error. Two processes at once are safe: the second waits for the first.
    Raises LakequeueError: no Java, no network, a revision that no repository holds, no space.
    """
    if (jars := cached_jars(wanted)) is not None:
        return jars
    java = java_executable()
    try:
        cache_directory().mkdir(parents=True, exist_ok=True)
        with locked(cache_directory() / "jars.lock"):
            if (jars := cached_jars(wanted)) is None:
                jars = _fetch(java, progress or _print_line, wanted or JARS_XML)
    except OSError as error:
        raise LakequeueError(
            f"The jar cache {cache_directory()} cannot be written ({error.strerror or error}): "
            "make room and give access there, or set LAKEQUEUE_CACHE to another directory."
        ) from error
    return jars


def _print_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _folder(wanted: Path | None = None) -> Path:
    digest = hashlib.sha256((wanted or JARS_XML).read_bytes()).hexdigest()
    return cache_directory() / f"jars-{digest[:16]}"


def _expected(folder: Path, wanted: Path | None = None) -> Jars:
    """The files that the list names, in its order (a class path has an order too)."""
    jars = Jars([], [])
    for item in ElementTree.parse(wanted or JARS_XML).getroot().iter("dependency"):
        name = f"{item.attrib['name']}-{item.attrib['rev']}.jar"
        if item.attrib.get("conf", "").startswith("spark"):
            jars.spark.append(folder / "spark" / name)
        else:
            jars.broker.append(folder / "broker" / name)
    return jars


def pyspark_folder() -> Path:
    """Where PySpark is installed. Raises LakequeueError if it is not."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise LakequeueError("pyspark is not installed: ask `lakequeue doctor`.")
    return Path(spec.submodule_search_locations[0])


def _ivy_command(java: Path, folder: Path, wanted: Path) -> list[str]:
    command = [str(java), "-cp", f"{pyspark_folder()}/jars/*", "org.apache.ivy.Main", "-warn"]
    if settings := os.environ.get("LAKEQUEUE_IVY_SETTINGS"):  # a company's own repository
        command += ["-settings", settings]
    command += ["-cache", str(cache_directory() / "ivy"), "-ivy", str(wanted)]
    return [*command, "-retrieve", f"{folder}/[conf]/[artifact]-[revision].[ext]", "-sync"]


def _fetch(java: Path, progress: Callable[[str], None], wanted: Path) -> Jars:
    folder = _folder(wanted)
    jars = _expected(folder, wanted)
    count = len(jars.spark) + len(jars.broker)
    progress(f"Fetching {count} jars ({wanted.name}, once, up to a minute) …")
    try:
        done = subprocess.run(
            _ivy_command(java, folder, wanted),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=FETCH_SECONDS_MAX,
        )
    except subprocess.TimeoutExpired as error:
        raise LakequeueError(
            f"The jars were not fetched within {FETCH_SECONDS_MAX} s: check the network and try "
            "again; what has arrived is kept."
        ) from error
    missing = [p.name for p in jars.spark + jars.broker if not p.is_file()]
    if done.returncode != 0 or missing:
        raise LakequeueError(_why(done.stdout + done.stderr, missing))
    (folder / _STAMP).touch()
    progress(f"Fetched {count} jars.")
    return jars


def _why(output: str, missing: list[str]) -> str:
    """One sentence from Ivy's pages of output."""
    if _OFFLINE.search(output):
        return (
            "The jars could not be fetched because no Maven repository answered: connect to the "
            "network (behind a proxy set JAVA_TOOL_OPTIONS=-Dhttps.proxyHost=…), or set "
            "LAKEQUEUE_CACHE to a cache that was filled elsewhere."
        )
    what = _unresolved(output) or ", ".join(missing[:3]) or "Ivy gave no reason"
    return (
        f"The jars could not be fetched ({what}): check the revisions in conf/, or name "
        "a repository that holds them with LAKEQUEUE_IVY_SETTINGS=<ivysettings.xml>."
    )


def _unresolved(output: str) -> str:
    found = re.findall(r"::\s+([\w.\-]+#[\w.\-]+;[\w.\-]+): ([\w ]+)", output)
    return "; ".join(dict.fromkeys(f"{name}: {why.strip()}" for name, why in found[:3]))


def main() -> int:
    """Fill the cache and print where it is. Returns 1, after an error line, if that fails. With the
    argument `s3`, also fetch the jars for an S3 store."""
    try:
        jars = ensure_jars()
        if "s3" in sys.argv[1:]:
            jars.spark.extend(ensure_jars(wanted=S3_XML).spark)
    except LakequeueError as error:
        _print_line(str(error))
        return 1
    print(f"{len(jars.spark)} jars for Spark and {len(jars.broker)} for the broker in {_folder()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())


MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
REPLACES = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
)


def object_store_jars(
    places: Iterable[Folder], progress: Callable[[str], None] | None = None
) -> list[Path]:
    """The additional jars for these places. Raises LakequeueError, as `ensure_jars`."""
    return ensure_jars(progress, S3_XML).spark if any(map(_on_s3, places)) else []


def place_settings(places: Iterable[Folder], checkpoints: Folder | None = None) -> dict[str, str]:
    """Spark's settings for these places. checkpoints: which of them holds the checkpoints."""
    found = s3_settings() if any(map(_on_s3, places)) else {}
    if isinstance(checkpoints, RemoteFolder):
        found[MANAGER] = REPLACES
    return found


def _on_s3(place: Folder) -> bool:
    return isinstance(place, RemoteFolder) and place.uri.startswith(f"{S3A}:")
