"""The warehouse's folder, on a disk or in a bucket: places, small files, locks.

    <path>/<name>/                          the published Delta table of a fragment or a view
    <path>/driftline_freshness/             how fresh each table is (`freshness_table`)
    <path>/_driftline/kept/<name>/          the same, of a relation that only views need
    <path>/_driftline/warehouse/            the table of versions (`warehouse_versions`)
    <path>/_driftline/keys/<name>.key       the fragment key, 32 bytes, private
    <path>/_driftline/fragments/<name>.json notes between refreshes, which may be lost
    <path>/_driftline/staging/<name>/…      frames of unfinished exchanges, as received
    <path>/_driftline/changes/<name>/…      the change feed
    <path>/_driftline/executors/…           files of a check of Spark's executors, while it is made
    <path>/_driftline/conditions/…          that the store was checked, in buckets
    <path>/_driftline/locks/<name>          held while an agent works on the table
    <path>/_driftline/runs/<name>.jsonl     a line for every refresh, also for failed ones
    <path>/_driftline/metrics.json          counters of all tables, which may be lost
    <path>/_driftline/notified/<channel>.json  what was told, and what waits to be told

How bytes get there is the backend's matter (`backends`). This module does not interpret what it
stores.
"""

from __future__ import annotations

import contextlib
import errno
import json
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from driftline.errors import WarehouseUnavailable
from pyarrow import fs

from warehouse_agent.config import StorageSettings
from warehouse_agent.storage.backends import known, request_counts
from warehouse_agent.storage.backends.interface import (
    Backend,
    Change,
    DataSource,
    HeldLock,
    NewFile,
    ReplacedError,
    StoreError,
)
from warehouse_agent.storage.backends.request_counts import REQUESTS, Request

if TYPE_CHECKING:
    from warehouse_agent.config import WarehouseConfig
    from warehouse_agent.storage.backends.answers import Answer

PRIVATE = request_counts.PRIVATE
KEPT = request_counts.KEPT
_DRAWN = re.compile("\x1b\\[[0-9;]*m|[\u2190-\u21ff\u2500-\u257f]")  # colours, arrows, lines
_FULL = re.compile(rf"No space left|os error {errno.ENOSPC}\b|Errno {errno.ENOSPC}\b")
_UNTOUCHED = "Check space and permissions; the last published version is untouched."
# Left free on a disk when rows are staged: the smaller of these bytes and a fiftieth of the disk.
RESERVE_BYTES = 64 << 20
RESERVE_SHARE = 50
END_BYTES = 1 << 16  # of a file of lines that is read from its end, at a time


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file: folders and name below the warehouse's folder, size in bytes, time of writing."""

    place: tuple[str, ...]
    size: int
    modified: datetime


@dataclass(frozen=True)
class Store:
    """The warehouse's folder. `root` is an absolute local path or a URI.

    `kept`: names of tables that lie below `_driftline/kept`, because only views need them.
    `storage`: how a bucket is reached.
    """

    root: str
    kept: frozenset[str] = frozenset()
    storage: StorageSettings | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.storage is not None:
            known.learn({self.root: self.storage})

    @classmethod
    def of(cls, config: WarehouseConfig) -> Store:
        """Return the folder of a configured warehouse."""
        kept = (f.name for f in config.fragments.values() if f.is_kept)
        return cls(config.path, frozenset(kept), config.storage)

    @property
    def backend(self) -> Backend:
        """Return the disk or the bucket of the folder. Raises ConfigurationError."""
        return known.backend_of(self.root)

    def folder(self, name: str) -> str:
        """Return the folder of a table, relative to the warehouse, with `/`."""
        return "/".join(self._placed(name))

    @property
    def is_local(self) -> bool:
        """Return True if the folder is on a disk of this machine."""
        return "://" not in self.root or self.root.startswith("file://")

    @property
    def has_locks(self) -> bool:
        """Return True if nobody else writes while a lock is held; elsewhere the table's log alone
        decides, because a holder may lose its lock without noticing."""
        return self.is_local

    def uri(self, *parts: str) -> str:
        """Return a place as a URI, for tasks."""
        joined = "/".join([self.root.rstrip("/"), *self._placed(*parts)])
        return joined if "://" in joined else "file://" + joined

    def table(self, name: str) -> str:
        """Return the table folder of a fragment as a path, or as a URI if it is not local."""
        joined = f"{self.root.rstrip('/')}/{self.folder(name)}"
        return joined.removeprefix("file://") if self.is_local else joined

    @property
    def delta_options(self) -> dict[str, str] | None:
        """Return the options by which delta-rs reaches the tables; None on a disk.

        Raises:
            ConfigurationError: the credentials that are configured are not there.
        """
        return self.backend.delta_options()

    def count(self, name: str, asked: Mapping[Request, int]) -> None:
        """Count requests that delta-rs makes for a table in a bucket."""
        if not self.is_local:
            for kind, number in asked.items():
                REQUESTS.made(f"{self._at(name)}/", kind, number)

    def requests(self, name: str) -> dict[str, int] | None:
        """Return how many requests this process made for a table since it was asked last, by kind;
        None on a disk."""
        return None if self.is_local else REQUESTS.taken(self.backend.path(self.root), name)

    def answer(self, error: Exception) -> Answer | None:
        """Return what an object store answered, if an error of delta-rs has it; None: else."""
        return self.backend.answer(str(error))

    def write(self, data: bytes, *parts: str, private: bool = False) -> None:
        """Write a small file, whole or not at all; on disks only its owner can read a `private`
        one."""
        path = self._at(*parts)
        with file_errors("written", path, len(data)):
            self.backend.write(path, data, private=private)

    def write_new(self, data: bytes, *parts: str, private: bool = False) -> bool:
        """Write a small file as `write`, unless there is one; return True if it was written.

        One of several writers succeeds.
        """
        path = self._at(*parts)
        with file_errors("written", path, len(data)):
            return self.backend.write_new(path, data, private=private)

    def change(self, change: Change, *parts: str) -> None:
        """Write what `change` makes of a small file; what others write meanwhile is not lost.

        change: called again if others changed the file meanwhile.
        """
        path = self._at(*parts)
        with file_errors("written", path):
            self.backend.change(path, change)

    def append_line(
        self, line: str, *parts: str, bytes_max: int, shorten: Callable[[bytes], bytes]
    ) -> None:
        """Append a line to a file; if it has `bytes_max`, write `shorten` of its bytes first.

        A line that was cut in the middle of its writing is ended, so that it spoils no other. One
        process after the other does this.
        """
        path = self._at(*parts)
        with file_errors("written", path, len(line) + 1):
            self.backend.append(path, line.encode(), bytes_max, shorten)

    def refuse_full(self, size: int, *parts: str) -> None:
        """Raise WarehouseUnavailable if `size` bytes more would use the reserve of the disk.

        The reserve is for other users of the disk. Storage that is no disk has no such limit.
        """
        refuse_full_disk(self.uri(*parts), size)

    def disk(self, *parts: str) -> tuple[int, int] | None:
        """Return size and free bytes of the disk of a place; None without a disk.

        Also None if the file system reports zeros, like FUSE mounts without statfs.
        """
        path = self._at(*parts)
        with file_errors("written", path):
            return self.backend.disk(path)

    def make_folder(self, *parts: str) -> None:
        """Make a folder for files that tasks write; a task that outlives its job finds none."""
        path = self._at(*parts)
        with file_errors("made", path):
            self.backend.make_folder(path)

    def read(self, *parts: str) -> bytes | None:
        """Return the bytes of a file, None if it does not exist."""
        path = self._at(*parts)
        with file_errors("read", path):
            return self.backend.read(path)

    def lines_backwards(self, *parts: str) -> Iterator[bytes]:
        """Yield the lines of a file from the last to the first; read only what is asked for."""
        path, last = self._at(*parts), None
        with file_errors("read", path), contextlib.suppress(FileNotFoundError):
            try:
                for line in _backwards(self.backend, path):
                    last = line or last
                    yield line
            except ReplacedError:  # by more lines, perhaps fewer old ones: go on before the last
                lines = (self.backend.read(path) or b"").split(b"\n")
                if last is not None:
                    lines = lines[: lines.index(last)] if last in lines else []
                yield from reversed(lines)

    def read_json(self, *parts: str) -> dict[str, object]:
        """Return a small JSON file that may be lost; empty if it is not there or damaged."""
        return json_of(self.read(*parts) or b"")

    def files(self, *parts: str) -> list[tuple[str, int]]:
        """Return name and size of every file in a folder, sorted by name; none without folder."""
        _, infos = self._listed(*parts)
        return sorted((i.base_name, i.size) for i in infos if i.type is fs.FileType.File)

    def folders(self, *parts: str) -> list[str]:
        """Return the names of the folders in a folder, sorted."""
        _, infos = self._listed(*parts)
        return sorted(i.base_name for i in infos if i.type is fs.FileType.Directory)

    def sizes(self, name: str, files: Collection[str]) -> dict[str, int]:
        """Return the bytes of those files of a table that are there, by their paths in it."""
        path = self._at(name)
        with file_errors("listed", path):
            return self.backend.sizes(path, files)

    def walk(self, *parts: str) -> list[StoredFile]:
        """Return every file in a folder and in the folders below it, sorted by place.

        If the storage does not say when a file was written, it counts as written now.
        """
        path, infos = self._listed(*parts, recursive=True)
        now, files = datetime.now(UTC), []
        for info in infos:
            if info.type is fs.FileType.File:
                below = info.path.removeprefix(path).strip("/").split("/")
                files.append(StoredFile((*parts, *below), info.size, info.mtime or now))
        return sorted(files, key=lambda file: file.place)

    def modified(self, *parts: str) -> datetime | None:
        """Return when a file was written; None if it is not there, or the storage does not say."""
        path = self._at(*parts)
        with file_errors("read", path):
            return self.backend.modified(path)

    def _listed(self, *parts: str, recursive: bool = False) -> tuple[str, list[fs.FileInfo]]:
        """Return the path of a folder, and what is in it."""
        path = self._at(*parts)
        with file_errors("listed", path):
            return path, self.backend.listed(path, recursive=recursive)

    def remove(self, *parts: str) -> None:
        """Remove a folder and its contents, if it exists."""
        path = self._at(*parts)
        with file_errors("removed", path):
            self.backend.remove_folder(path)

    def remove_file(self, *parts: str) -> None:
        """Remove a file, if it exists, and on disks the folders that it leaves empty."""
        path = self._at(*parts)
        stays = 3 if parts[0] == PRIVATE else 1  # _driftline/changes/<name>, or <name>
        with file_errors("removed", path):
            self.backend.remove_file(path, max(len(parts) - 1 - stays, 0))

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[HeldLock]:
        """Hold a fragment's lock. Its file says who holds it.

        On object stores it is a courtesy (`backends.lease`): a holder that does nothing for long
        loses it, and the table's log alone decides who commits.

        Raises:
            Locked: another agent has it; the error says which one, since when.
            WarehouseUnavailable: the storage gives no locks.
        """
        path = self._at(PRIVATE, "locks", name)
        with contextlib.ExitStack() as held:
            with file_errors("locked", path):
                lock = held.enter_context(self.backend.lock(path, name))
            yield lock

    def _placed(self, *parts: str) -> tuple[str, ...]:
        """Return the folders of a place whose first part may be the name of a table."""
        return (PRIVATE, KEPT, *parts) if parts and parts[0] in self.kept else parts

    def _at(self, *parts: str) -> str:
        """Return the path of a place."""
        return "/".join([self.backend.path(self.root).rstrip("/"), *self._placed(*parts)])


def refuse_full_disk(uri: str, size: int = 0) -> None:
    """Raise WarehouseUnavailable if `size` bytes more at a place would use the disk's reserve."""
    backend = known.backend_of(uri)
    path = backend.path(uri)
    with file_errors("written", path):
        disk = backend.disk(path)
    if disk is None:
        return
    total, free = disk
    reserve = min(RESERVE_BYTES, total // RESERVE_SHARE)
    if free < size + reserve:
        raise WarehouseUnavailable(
            f"The disk of {path} is nearly full: {size + reserve:,} bytes are needed, a reserve of"
            f" {reserve:,} among them, and {free:,} are free.",
            remedy="Free space there; what arrived is kept, and the last published version is"
            " untouched.",
        )


def _backwards(backend: Backend, path: str) -> Iterator[bytes]:
    """Yield the lines of a file from the last to the first, a part of it at a time. Raises OSError;
    ReplacedError: it was written again meanwhile."""
    with backend.system.open_input_file(path) as source:
        begin, rest = source.size(), b""
        while begin:
            end, begin = begin, max(begin - END_BYTES, 0)
            source.seek(begin)
            rest, *lines = (source.read(end - begin) + rest).split(b"\n")
            yield from reversed(lines)
        yield rest


def json_of(data: bytes) -> dict[str, object]:
    """Return the object of a small JSON file; empty if it is empty or damaged."""
    with contextlib.suppress(ValueError, RecursionError):
        loaded = json.loads(data or b"{}")
        if isinstance(loaded, dict):
            return loaded
    return {}


def one_line(error: Exception) -> str:
    """Return an error's text as one line without colours: delta-rs draws a tree of causes."""
    return " ".join(_DRAWN.sub(" ", str(error)).split()).rstrip(".")


@contextlib.contextmanager
def file_errors(verb: str, path: str, needed: int | None = None) -> Iterator[None]:
    """Raise an OSError as WarehouseUnavailable, which says that `path` cannot be `verb`.

    needed: bytes to be written, for the message about a full disk.
    """
    try:
        yield
    except OSError as error:
        why = full_disk(path, needed) if error.errno == errno.ENOSPC else error.strerror or error
        raise WarehouseUnavailable(
            f"{path} cannot be {verb}: {why}.",
            remedy=error.remedy if isinstance(error, StoreError) else _UNTOUCHED,
        ) from error


def not_logged(
    store: Store,
    error: Exception,
    what: str,
    folder: str,
    needed: int,
    *,
    where: str,
    remedy: str = _UNTOUCHED,
) -> WarehouseUnavailable:
    """Return the error of a write by delta-rs that failed: what an object store answered, with its
    remedy; or the error of a disk as one line, of a full one with folder, needed and free bytes.

    Args:
        what: failed, without a dot.
        folder: of the table, as `Store.table`.
        needed: bytes of the commit, roughly.
        remedy: if it is no answer of an object store.
    """
    if (found := store.answer(error)) is not None:
        why, remedy = found.text, found.remedy
    elif _FULL.search(str(error)):
        why = f"{folder} cannot be written: {full_disk(folder, needed)}"
    else:
        why = one_line(error)
    return WarehouseUnavailable(f"{what}: {why}.", where=where, remedy=remedy)


def full_disk(path: str, needed: int | None = None) -> str:
    """Return why nothing more can be written at a path: the bytes that are needed and free.

    Both may seem to suffice: a file takes whole blocks, and some of a disk is for its owner alone.
    """
    there = next((p for p in (Path(path), *Path(path).parents) if p.exists()), Path("/"))
    asked = "" if needed is None else f"{needed:,} bytes are needed, and "
    return f"No space left on device: {asked}{shutil.disk_usage(there).free:,} are free"


def located(uri: str) -> tuple[fs.FileSystem, str]:
    """Return file system and path of a URI of `Store.uri`; for executors, which have no Store.

    Raises:
        ConfigurationError: as `known.backend_of`.
    """
    backend = known.backend_of(uri)
    return backend.system, backend.path(uri)


def data_source(uri: str) -> AbstractContextManager[DataSource]:
    """Open a data file by its URI. Raises ConfigurationError as `located`; OSError."""
    backend = known.backend_of(uri)
    return backend.opened(backend.path(uri))


class HeldSources:
    """Open data files that a step reads several times: those of buckets are read once, whole.

    They are held up to `bytes_max`; the others, and files of disks, are opened as by `data_source`.
    One thread uses it.
    """

    def __init__(self, sizes: Mapping[str, int], bytes_max: int) -> None:
        """Begin with no file; `sizes`: bytes of each file, by its URI."""
        self._sizes, self._left = sizes, bytes_max
        self._held: dict[str, bytes] = {}

    def __call__(self, uri: str) -> AbstractContextManager[DataSource]:
        """Open a file by its URI. Raises as `data_source`."""
        if (data := self._held.get(uri)) is None:
            backend, size = known.backend_of(uri), self._sizes[uri]
            if backend.is_local or size > self._left:
                return data_source(uri)
            if (data := backend.read(backend.path(uri))) is None:
                raise FileNotFoundError(2, "No such file", uri)
            self._held[uri] = data
            self._left -= max(size, len(data))
        return nullcontext(DataSource(pa.BufferReader(data)))


def begun(uri: str) -> NewFile:
    """Begin a data file by its URI. Raises ConfigurationError as `located`; OSError."""
    backend = known.backend_of(uri)
    return backend.begun(backend.path(uri))


def read_at(uri: str) -> bytes:
    """Return the bytes of a file by its URI.

    Raises:
        WarehouseUnavailable: the file cannot be read.
    """
    system, path = located(uri)
    with file_errors("read", path), system.open_input_stream(path) as source:
        return bytes(source.readall())
