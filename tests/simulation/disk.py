"""Simulated disks; each of their operations is a step, at which faults happen.

`Disk` is in memory, reached as `sim://`. Files are whole or not there: a file appears when it is
closed, as on an object store. `Folder` is one of the machine, for tables in the format of Delta,
which its own library reads and writes. Neither has locks, so the table's log alone decides who
commits.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from tests.simulation import clock
from warehouse_agent.storage.backends import disk as backends_disk
from warehouse_agent.storage.backends import known
from warehouse_agent.storage.backends.interface import Backend, Change, ended
from warehouse_agent.storage.locks import FileLock

ROOT = "sim://warehouse"


class Disk(fs.FileSystemHandler):
    """Files by path. `step` is called before each operation: its name, and the path."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[bytes, float]] = {}
        self.folders: set[str] = set()
        self.step: Callable[[str, str], None] = lambda operation, path: None
        self.spoils: str | None = None  # what the next data file suffers, unnoticed
        self._written: dict[str, bytes] = {}  # the newest data file, by table

    def spoiled(self, path: str, data: bytes) -> bytes:
        """Return what is kept of a new file: its bytes as a rule.

        `misdirected`: those of the table's file before it; `garbled`: another value in one row.
        """
        if "/data-" not in path or "-shipped/" not in path:
            return data
        table = path.rsplit("/data-", 1)[0]
        before, self._written[table] = self._written.get(table), data
        what, self.spoils = self.spoils, None
        if what is None:
            return data
        self.step(what, path)
        if what == "misdirected":
            return before or data
        rows = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
        texts = ["garbled", *rows["a"].to_pylist()[1:]]
        at = rows.schema.get_field_index("a")
        out = io.BytesIO()
        pq.write_table(rows.set_column(at, rows.schema.field(at), [texts]), out)
        return out.getvalue()

    def put_new(self, path: str, data: bytes) -> bool:
        """Write a file unless there is one of this name; return True if it was written."""
        self.step("commit", path)
        if path in self.files:
            return False
        self._keep(path, data)
        self.step("committed", path)
        return True

    def held(self, path: str) -> bytes:
        """Return the bytes of a file, without a step; empty: there is none."""
        return self.files[path][0] if path in self.files else b""

    def replace(self, path: str, data: bytes) -> None:
        """Write a file, without a step."""
        self._keep(path, data)

    def _keep(self, path: str, data: bytes) -> None:
        self.files[path] = (data, clock.current().now_s)

    def _info(self, path: str) -> fs.FileInfo:
        if path in self.files:
            data, modified = self.files[path]
            at = datetime.fromtimestamp(modified, UTC)
            return fs.FileInfo(path, fs.FileType.File, size=len(data), mtime=at)
        below = path + "/"
        if path in self.folders or any(file.startswith(below) for file in self.files):
            return fs.FileInfo(path, fs.FileType.Directory)
        return fs.FileInfo(path, fs.FileType.NotFound)

    # What Arrow asks.

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def get_type_name(self) -> str:
        return "sim"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        for path in paths:
            self.step("look", path)
        return [self._info(path) for path in paths]

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        self.step("list", selector.base_dir)
        below = selector.base_dir + "/"
        found: set[str] = set()
        for path in (*self.files, *self.folders):
            if path.startswith(below):
                end = path.find("/", len(below))
                while end >= 0 and selector.recursive:
                    found.add(path[:end])
                    end = path.find("/", end + 1)
                found.add(path if end < 0 else path[:end])
        if not found and not selector.allow_not_found and selector.base_dir not in self.folders:
            raise FileNotFoundError(selector.base_dir)
        return [self._info(path) for path in sorted(found)]

    def create_dir(self, path: str, recursive: bool) -> None:
        self.folders.add(path)

    def delete_dir(self, path: str) -> None:
        below = path + "/"
        for file in sorted(file for file in self.files if file.startswith(below)):
            self.step("delete", file)  # a folder is not deleted at once
            self.files.pop(file, None)
        self.folders = {f for f in self.folders if f != path and not f.startswith(below)}

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        raise NotImplementedError

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def delete_file(self, path: str) -> None:
        self.step("delete", path)
        if self.files.pop(path, None) is None:
            raise FileNotFoundError(path)

    def move(self, src: str, dest: str) -> None:
        raise NotImplementedError

    def copy_file(self, src: str, dest: str) -> None:
        raise NotImplementedError

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        self.step("read", path)
        if path not in self.files:
            raise FileNotFoundError(2, "No such file", path)
        return pa.BufferReader(self.files[path][0])

    def open_output_stream(self, path: str, metadata: dict[str, str]) -> pa.NativeFile:
        self.step("open", path)
        return pa.PythonFile(_Written(self, path), mode="w")

    def open_append_stream(self, path: str, metadata: dict[str, str]) -> pa.NativeFile:
        raise NotImplementedError


class _Written(io.BytesIO):
    """A file that is kept when it is closed."""

    def __init__(self, disk: Disk, path: str) -> None:
        super().__init__()
        self._disk, self._path = disk, path

    def close(self) -> None:
        if not self.closed:
            data = self.getvalue()
            super().close()
            self._disk.step("write", self._path)
            self._disk._keep(self._path, self._disk.spoiled(self._path, data))


class Folder(Disk):
    """A folder of the machine, all of whose operations are steps."""

    def __init__(self) -> None:
        super().__init__()
        self._real = fs.LocalFileSystem()

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        for path in paths:
            self.step("look", path)
        return self._real.get_file_info(paths)

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        self.step("list", selector.base_dir)
        return sorted(self._real.get_file_info(selector), key=lambda info: info.path)

    def create_dir(self, path: str, recursive: bool) -> None:
        self.step("open", path)  # the store writes small files itself, after this
        self._real.create_dir(path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        self.step("delete", path)
        self._real.delete_dir(path)

    def delete_file(self, path: str) -> None:
        self.step("delete", path)
        self._real.delete_file(path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        self.step("read", path)
        return self._real.open_input_file(path)

    def held(self, path: str) -> bytes:
        there = Path(path)
        return there.read_bytes() if there.exists() else b""

    def replace(self, path: str, data: bytes) -> None:
        self._real.create_dir(path.rsplit("/", 1)[0], recursive=True)
        self._keep(path, data)

    def _keep(self, path: str, data: bytes) -> None:
        with self._real.open_output_stream(path) as out:
            out.write(data)


class _Stepped(backends_disk.Disk):
    """A disk each of whose operations is a step, without locks."""

    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self._disk, self.system = disk, fs.PyFileSystem(disk)

    def write_new(self, path: str, data: bytes, *, private: bool) -> bool:
        return _put_new(self._disk, path, data)

    def change(self, path: str, change: Change) -> None:
        _change(self._disk, path, change)

    def lock(self, path: str, name: str) -> AbstractContextManager[FileLock]:
        return nullcontext(FileLock())


class _InMemory(_Stepped):
    """The disk in memory, for `sim://`: files are written through it, and have no limit."""

    is_local = False

    def path(self, uri: str) -> str:
        return uri.removeprefix("sim://")

    def write(self, path: str, data: bytes, *, private: bool) -> None:
        with self.system.open_output_stream(path) as out:
            out.write(data)

    def append(
        self, path: str, line: bytes, bytes_max: int, shorten: Callable[[bytes], bytes]
    ) -> None:
        before = ended(self.read(path) or b"")
        before = shorten(before) if len(before) >= bytes_max else before
        self.write(path, before + line + b"\n", private=False)

    def remove_file(self, path: str, above: int) -> None:
        super().remove_file(path, 0)

    def disk(self, path: str) -> None:
        return None


def _put_new(disk: Disk, path: str, data: bytes) -> bool:
    """Write a new file; one of several writers does."""
    disk.create_dir(path.rsplit("/", 1)[0], recursive=True)
    disk.step("open", path)
    is_new = disk.get_file_info([path])[0].type is fs.FileType.NotFound
    if is_new:
        disk._keep(path, data)
    disk.step("write", path)
    return is_new


def _change(disk: Disk, path: str, change: Change) -> None:
    """Change a file under the condition that it is as it was read."""
    while True:
        disk.step("read", path)
        before = disk.held(path)
        if (data := change(before)) is None:
            return
        disk.step("write", path)
        if disk.held(path) == before:
            disk.replace(path, data)
            return


@contextmanager
def mounted(disk: Disk) -> Iterator[None]:
    """Give the product this disk for every place that its store has; its locks lock nothing."""
    backend: Backend = _Stepped(disk) if isinstance(disk, Folder) else _InMemory(disk)

    def backend_of(_: str) -> Backend:  # no mock, which would note each of very many calls
        return backend

    with mock.patch.object(known, "backend_of", backend_of):
        yield
