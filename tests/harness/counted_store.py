"""A store whose requests are counted, by what is done and by the kind of place.

Everything that the product asks of its file system in this process is counted where it would be a
request of an object store: a file that is opened is a read, a file or folder that is asked for a
head, a folder that is looked through a list. On a disk the store writes small files itself, so
those are counted at its own methods. What delta-rs and Spark ask for is theirs, and not counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import PurePath
from unittest import mock

import pyarrow as pa
from pyarrow import fs

from warehouse_agent.config.names import FRESHNESS
from warehouse_agent.storage.backends import known
from warehouse_agent.storage.backends.disk import Disk
from warehouse_agent.storage.delta_log import DeltaLog
from warehouse_agent.storage.store import KEPT, PRIVATE

# Kinds of places, by the folder below `_driftline`; others have its name.
_KINDS = {"fragments": "notes", "runs": "history", "schedule": "memory", "warehouse": "versions"}
_DATA = re.compile(r"data-[0-9a-f]+(-[a-z]+)?")
RECORDS = ("commands", "locks")  # kinds of the record of a running command, counted apart
FRESH = "freshness"  # kind of the table of freshness, counted apart
OPERATIONS = ("read", "head", "list", "write", "remove")


def kind_of(root: str, path: str) -> str:
    """Return the kind of the place that a path below the warehouse's folder is."""
    below = path.removeprefix(root).strip("/").split("/")
    if below[0] == PRIVATE and below[1:2] == [KEPT]:
        below = below[2:]
    if below[0] == PRIVATE:
        return _KINDS.get(below[1], below[1]) if len(below) > 1 else "all"
    if below[0] == FRESHNESS:
        return FRESH
    if len(below) > 1 and below[1] == DeltaLog.log:
        return "log"
    return "data" if len(below) > 1 and _DATA.fullmatch(below[1]) else "table"


@dataclass
class Counted:
    """Requests by operation and kind of place: `counted["read", "notes"]`."""

    root: str
    requests: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __getitem__(self, one: tuple[str, str]) -> int:
        return self.requests[one]

    def add(self, operation: str, path: str) -> None:
        """Count a request for a path of the machine."""
        assert operation in OPERATIONS
        self.requests[operation, kind_of(self.root, path)] += 1

    def at(self, kind: str) -> int:
        """Return the requests for a kind of place."""
        return sum(n for (_, where), n in self.requests.items() if where == kind)

    def of(self, operation: str) -> dict[str, int]:
        """Return the requests of an operation, by kind."""
        return {kind: n for (what, kind), n in sorted(self.requests.items()) if what == operation}


class _CountedFiles(fs.FileSystemHandler):
    """The machine's file system; each request is counted. Folders are made for nothing: object
    stores have none."""

    def __init__(self, counted: Counted, real: fs.LocalFileSystem) -> None:
        self._counted, self._real = counted, real

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def get_type_name(self) -> str:
        return "counted"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        for path in paths:
            self._counted.add("head", path)
        return self._real.get_file_info(paths)

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        self._counted.add("list", selector.base_dir)
        return self._real.get_file_info(selector)

    def create_dir(self, path: str, recursive: bool) -> None:
        self._real.create_dir(path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        self._counted.add("remove", path)
        self._real.delete_dir(path)

    def delete_file(self, path: str) -> None:
        self._counted.add("remove", path)
        self._real.delete_file(path)

    def open_input_stream(self, path: str) -> pa.NativeFile:
        self._counted.add("read", path)
        return self._real.open_input_stream(path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        self._counted.add("read", path)
        return self._real.open_input_file(path)

    def open_output_stream(self, path: str, metadata: dict[str, str]) -> pa.NativeFile:
        self._counted.add("write", path)
        return self._real.open_output_stream(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        raise NotImplementedError

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def move(self, src: str, dest: str) -> None:
        raise NotImplementedError

    def copy_file(self, src: str, dest: str) -> None:
        raise NotImplementedError

    def open_append_stream(self, path: str, metadata: dict[str, str]) -> pa.NativeFile:
        raise NotImplementedError


class _CountedDisk(Disk):
    """The machine's disks; each small file that is written is counted."""

    def __init__(self, found: Counted) -> None:
        super().__init__()
        self.system = fs.PyFileSystem(_CountedFiles(found, fs.LocalFileSystem()))
        self._found = found

    def write(self, path: str, data: bytes, *, private: bool) -> None:
        super().write(path, data, private=private)
        self._found.add("write", path)

    def write_new(self, path: str, data: bytes, *, private: bool) -> bool:
        is_written = super().write_new(path, data, private=private)
        self._found.add("write", path)
        return is_written

    def append(
        self, path: str, line: bytes, bytes_max: int, shorten: Callable[[bytes], bytes]
    ) -> None:
        super().append(path, line, bytes_max, shorten)
        self._found.add("write", path)


@contextmanager
def counted(root: str | PurePath) -> Iterator[Counted]:
    """Count the requests of this process for a warehouse on the machine's disk."""
    found = Counted(str(root))
    with mock.patch.object(known, "backend_of", return_value=_CountedDisk(found)):
        yield found
