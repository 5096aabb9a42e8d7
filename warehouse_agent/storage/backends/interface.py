"""What a place of a warehouse promises, whatever it is: small files whole, by path; data files.

A small file is written whole or not at all, and of several writers of a new one exactly one
succeeds: on that alone correctness stands, and never on a lock. Data files are read and written
through a file system of Arrow. Every backend passes tests/warehouse_agent/storage/test_backends.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from warehouse_agent.storage.backends.answers import Answer

# Returns what a small file is to hold instead of its bytes, empty where there is none; None: it
# stays. It may be called again, with what others wrote meanwhile.
Change = Callable[[bytes], bytes | None]


class StoreError(OSError):
    """An object store refused a request, or did not answer; `remedy`: what to do about it."""

    def __init__(self, text: str, remedy: str = "") -> None:
        super().__init__(text)
        self.remedy = remedy


class ReplacedError(OSError):
    """A file was written again between two reads of it."""


class HeldLock(Protocol):
    """The lock of a fragment, while it is held."""

    def check(self) -> None:
        """Raise Locked if another command has taken it meanwhile. Raises OSError."""

    def stored_at(self) -> datetime:
        """Return a time since it was taken, by the clock of the storage. Raises OSError."""


@dataclass(frozen=True, slots=True)
class DataSource:
    """A Parquet file that is open.

    Attributes:
        file: its bytes.
        end: its footer, where opening it has read that; None: `file` is to be asked.
        fetch: gets ranges `(begin, end)` of its bytes, and holds them until it is called again,
            where each read is a request; None on disks. Raises OSError.
    """

    file: pa.NativeFile
    end: bytes | None = None
    fetch: Callable[[Sequence[tuple[int, int]]], None] | None = None

    @property
    def footer(self) -> pq.FileMetaData:
        """Return its footer. Raises OSError; ArrowException: there is none."""
        return pq.read_metadata(self.file if self.end is None else pa.BufferReader(self.end))


class NewFile(Protocol):
    """A data file that is being written to `out`. One that is dropped is not there: on a disk once
    `abandon` was called, in a bucket always."""

    out: pa.NativeFile

    def finish(self) -> int:
        """Close it, which makes it appear in a bucket; return its bytes. Raises OSError."""

    def abandon(self) -> None:
        """Remove what was written; nothing once it is finished. Raises OSError."""


class Backend(Protocol):
    """A disk or an object store. Paths are those of `path`; methods raise OSError (StoreError).

    Attributes:
        system: its file system, to read data files.
        is_local: a disk of this machine.
    """

    system: fs.FileSystem
    is_local: bool

    def path(self, uri: str) -> str:
        """Return the path of a URI, or of a path of the machine."""

    def read(self, path: str) -> bytes | None:
        """Return the bytes of a file; None if there is none."""

    def opened(self, path: str) -> AbstractContextManager[DataSource]:
        """Open a data file, which nobody writes again."""

    def begun(self, path: str) -> NewFile:
        """Begin a data file, in a folder that exists."""

    def write(self, path: str, data: bytes, *, private: bool) -> None:
        """Write a file whole or not at all; on disks only its owner can read a `private` one."""

    def write_new(self, path: str, data: bytes, *, private: bool) -> bool:
        """Write a file as `write`, unless there is one; return True if this call wrote it."""

    def change(self, path: str, change: Change) -> None:
        """Write what `change` makes of a file's bytes; what others write meanwhile is not lost.

        Raises OSError also if others change it again and again.
        """

    def append(
        self, path: str, line: bytes, bytes_max: int, shorten: Callable[[bytes], bytes]
    ) -> None:
        """Append a line; if the file has `bytes_max`, write `shorten` of its bytes first.

        One writer after the other does this. A line that was cut in the middle of its writing is
        ended first, so that it spoils no other.
        """

    def listed(self, path: str, *, recursive: bool) -> list[fs.FileInfo]:
        """Return what is in a folder; nothing without folder."""

    def sizes(self, path: str, files: Collection[str]) -> dict[str, int]:
        """Return the bytes of those files in folders of a folder that are there, by their paths
        relative to it."""

    def modified(self, path: str) -> datetime | None:
        """Return when a file was written; None if it is not there."""

    def make_folder(self, path: str) -> None:
        """Make a folder, where there are folders."""

    def remove_folder(self, path: str) -> None:
        """Remove a folder and its contents, if it exists."""

    def remove_file(self, path: str, above: int) -> None:
        """Remove a file, if it exists, and of the folders above it up to `above` empty ones."""

    def answer(self, text: str) -> Answer | None:
        """Return what an object store answered, from the text of an error; None: it is no such."""

    def delta_options(self) -> dict[str, str] | None:
        """Return the options by which delta-rs reaches the same place, with credentials as they are
        now; None on a disk. Raises ConfigurationError."""

    def disk(self, path: str) -> tuple[int, int] | None:
        """Return size and free bytes of the disk of a path; None if it has no such limit, or if its
        file system reports zeros, as FUSE mounts without statfs do."""

    def lock(self, path: str, name: str) -> AbstractContextManager[HeldLock]:
        """Hold the lock of a fragment. Raises Locked.

        Nothing may depend on it but the work that it saves, where storage has no locks.
        """


def ended(lines: bytes) -> bytes:
    """Return lines whose last one is ended."""
    return lines + b"\n" * (lines[-1:] not in (b"", b"\n"))
