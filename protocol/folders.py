"""Folders for a home's tables and checkpoints, on this machine or on an object store.

A location is a path, or a URI of a file system that both Hadoop and Arrow support: ``file:``,
``s3a:`` (``s3:``), ``gs:``, ``abfss:``, ``hdfs:``. A local folder is a `pathlib.Path`. For all
others `RemoteFolder` has the methods of `Path` that are needed, with the same meaning, so callers
need not distinguish the two. Spark gets either as text.

Environment variables of Amazon's tools give access to an S3 store: ``AWS_ENDPOINT_URL``,
``AWS_REGION``, ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_SESSION_TOKEN``. Spark,
Arrow and Delta's library all read them, so no setting contains a secret.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from .errors import ConfigError

S3A, S3 = "s3a", "s3"  # the scheme's name in Hadoop, and everywhere else
SCHEMES = (S3A, S3, "gs", "abfss", "hdfs")
ENDPOINT, REGIONS = "AWS_ENDPOINT_URL", ("AWS_REGION", "AWS_DEFAULT_REGION")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")


@dataclass(frozen=True)
class RemoteFolder:
    """A folder or file on another file system. uri: as for Spark, without a `/` at its end. Raises
    OSError, as `pathlib` does."""

    uri: str

    def __str__(self) -> str:
        return self.uri

    def __truediv__(self, name: str) -> RemoteFolder:
        return RemoteFolder(f"{self.uri}/{name}")

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.uri.rpartition("/")[2]

    @property
    def parent(self) -> RemoteFolder:
        """The parent folder."""
        return RemoteFolder(self.uri.rpartition("/")[0])

    def exists(self) -> bool:
        """Whether the file exists, or anything below the folder."""
        from pyarrow.fs import FileType

        system, path = self._there()
        return bool(system.get_file_info(path).type != FileType.NotFound)

    is_dir = exists  # an object store has no real folders

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
        """Does nothing: folders appear with the files below them."""

    def glob(self, pattern: str) -> Iterator[RemoteFolder]:
        """The paths that match a pattern of one or more parts, separated by `/`."""
        head, _, rest = pattern.partition("/")
        found = [head]
        if "*" in head:
            names = sorted(info.base_name for info in self._inside(recursive=False))
            found = [name for name in names if fnmatch(name, head)]
        for name in found:
            place = self / name
            if rest:
                yield from place.glob(rest)
            elif "*" in head or place.exists():
                yield place

    def read_text(self) -> str:
        """The text of a file."""
        return self.read_bytes().decode()

    def read_bytes(self) -> bytes:
        """The bytes of a file."""
        system, path = self._there()
        with system.open_input_file(path) as file:
            return bytes(file.read())

    def write_bytes(self, data: bytes) -> None:
        """Write a file, completely or not at all."""
        system, path = self._there()
        with system.open_output_stream(path) as file:
            file.write(data)

    def unlink(self) -> None:
        """Remove a file."""
        system, path = self._there()
        system.delete_file(path)

    def remove(self) -> None:
        """Remove a folder and everything below it, if it exists."""
        system, path = self._there()
        with contextlib.suppress(FileNotFoundError):
            system.delete_dir(path)

    def move_to(self, place: RemoteFolder) -> None:
        """Move a file or a folder. A folder is copied, then removed."""
        from pyarrow.fs import FileType, copy_files

        (system, path), (there, target) = self._there(), place._there()
        if system.get_file_info(path).type == FileType.Directory:
            copy_files(path, target, source_filesystem=system, destination_filesystem=there)
            system.delete_dir(path)
        else:
            system.move(path, target)

    def files(self) -> dict[str, int]:
        """The files below the folder, by relative path, with their bytes."""
        _, path = self._there()
        inside = self._inside(recursive=True)
        return {i.path[len(path) :].lstrip("/"): i.size for i in inside if i.is_file}

    def _inside(self, recursive: bool) -> list[Any]:
        from pyarrow.fs import FileSelector

        system, path = self._there()
        selector = FileSelector(path, allow_not_found=True, recursive=recursive)
        return list(system.get_file_info(selector))

    def _there(self) -> tuple[Any, str]:
        """Arrow's file system, and the path in it."""
        from pyarrow.fs import FileSystem

        scheme, _, rest = self.uri.partition("://")
        if scheme == S3A:
            return _s3(), rest
        system, path = FileSystem.from_uri(self.uri)
        return system, str(path)


Folder = Path | RemoteFolder


def remove(place: Folder) -> None:
    """Remove a folder and everything below it, if it exists."""
    if isinstance(place, RemoteFolder):
        place.remove()
    else:
        shutil.rmtree(place, ignore_errors=True)


def files_below(place: Folder) -> dict[str, int]:
    """The files below a folder, by relative path, with their bytes."""
    if isinstance(place, RemoteFolder):
        return place.files()
    found = {}
    for at, _, names in os.walk(place):
        for name in names:
            file = os.path.join(at, name)
            with contextlib.suppress(FileNotFoundError):  # it was deleted meanwhile
                found[os.path.relpath(file, place)] = os.stat(file).st_size
    return found


def move(source: Folder, target: Folder) -> None:
    """Move a file or a folder within a file system."""
    if isinstance(source, RemoteFolder):
        assert isinstance(target, RemoteFolder)
        source.move_to(target)
    else:
        assert isinstance(target, Path)
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)


def folder(place: str | Path) -> Folder:
    """The folder that a path or a URI names. Raises ConfigError for anything else."""
    text = str(place)
    scheme = _SCHEME.match(text)
    if isinstance(place, Path) or scheme is None:
        return Path(text).expanduser().absolute()
    parts = urlsplit(text)
    if parts.scheme == "file":
        path = PurePosixPath(unquote(parts.path))
        if parts.netloc in ("", "localhost") and path.is_absolute():
            return Path(path)
        raise ConfigError(f"{text!r} – allowed for a file is file:///an/absolute/path")
    if parts.scheme not in SCHEMES:
        allowed = ", ".join(f"{name}:" for name in ("file", *SCHEMES))
        raise ConfigError(f"{text!r} – is on an unknown file system; allowed are {allowed}")
    if not parts.netloc or parts.query or parts.fragment or ".." in parts.path.split("/"):
        raise ConfigError(f"{text!r} – allowed is {parts.scheme}://BUCKET/FOLDER")
    scheme_name = S3A if parts.scheme == S3 else parts.scheme
    return RemoteFolder(f"{scheme_name}://{parts.netloc}{parts.path.rstrip('/')}")


def s3_settings() -> dict[str, str]:
    """Spark's settings for the S3 store that the environment names, without secrets."""
    found = {}
    if endpoint := os.environ.get(ENDPOINT):
        found["spark.hadoop.fs.s3a.endpoint"] = endpoint
        found["spark.hadoop.fs.s3a.path.style.access"] = "true"
        if endpoint.startswith("http:"):
            found["spark.hadoop.fs.s3a.connection.ssl.enabled"] = "false"
    if region := _region():
        found["spark.hadoop.fs.s3a.endpoint.region"] = region
    return found


def files_of(place: Folder) -> Any:
    """Arrow's file system with a folder as its root."""
    from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

    if isinstance(place, RemoteFolder):
        system, path = place._there()
        return SubTreeFileSystem(path, system)
    return SubTreeFileSystem(str(place), LocalFileSystem())


def delta_options(place: Folder) -> dict[str, str] | None:
    """The options of Delta's library besides the environment."""
    plain = os.environ.get(ENDPOINT, "").startswith("http:")
    return {"AWS_ALLOW_HTTP": "true"} if plain and isinstance(place, RemoteFolder) else None


def _region() -> str:
    return next((value for name in REGIONS if (value := os.environ.get(name))), "")


@cache
def _s3() -> Any:
    from pyarrow.fs import S3FileSystem

    given: dict[str, str] = {}
    if endpoint := os.environ.get(ENDPOINT):
        given["scheme"], _, given["endpoint_override"] = endpoint.rstrip("/").partition("://")
    if region := _region():
        given["region"] = region
    return S3FileSystem(**given)
