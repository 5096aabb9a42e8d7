"""A folder on a disk of this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from warehouse_agent.failpoints import WarehouseFailpoint
from warehouse_agent.storage.backends.interface import Change, DataSource, NewFile, ended
from warehouse_agent.storage.locks import FileLock, appended, forget_holder, take


class Disk:
    """Disks of this machine; paths are absolute."""

    is_local = True

    def __init__(self) -> None:
        self.system: fs.FileSystem = fs.LocalFileSystem()

    def path(self, uri: str) -> str:
        return uri.removeprefix("file://")  # nothing in it is escaped

    def read(self, path: str) -> bytes | None:
        with contextlib.suppress(FileNotFoundError):
            if self.system.get_file_info(path).type is fs.FileType.File:
                with self.system.open_input_stream(path) as source:
                    return bytes(source.readall())
        return None

    @contextlib.contextmanager
    def opened(self, path: str) -> Iterator[DataSource]:
        with self.system.open_input_file(path) as file:
            yield DataSource(file)

    def begun(self, path: str) -> NewFile:
        return _NewFile(self.system, path)

    def write(self, path: str, data: bytes, *, private: bool) -> None:
        self._write(path, data, private=private, is_new=False)

    def write_new(self, path: str, data: bytes, *, private: bool) -> bool:
        return self._write(path, data, private=private, is_new=True)

    def _write(self, path: str, data: bytes, *, private: bool, is_new: bool) -> bool:
        self.system.create_dir(path.rsplit("/", 1)[0], recursive=True)
        temporary = f"{path}.{uuid.uuid4().hex[:8]}.tmp"
        mode = 0o600 if private else 0o644
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with os.fdopen(handle, "wb") as out:
                out.write(data)
                WarehouseFailpoint.SMALL_FILE_WRITING.reach()
                out.flush()
                os.fsync(out.fileno())
            WarehouseFailpoint.SMALL_FILE_WRITTEN.reach()
            is_written = _named(temporary, path, is_new=is_new)
            WarehouseFailpoint.SMALL_FILE_NAMED.reach()
            _sync_folder(path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        return is_written

    def change(self, path: str, change: Change) -> None:
        if change(self.read(path) or b"") is None:  # no file is begun for nothing
            return
        self.system.create_dir(path.rsplit("/", 1)[0], recursive=True)
        with appended(path) as out:
            out.seek(0)
            if (data := change(out.read())) is not None:
                self.write(path, data, private=False)

    def append(
        self, path: str, line: bytes, bytes_max: int, shorten: Callable[[bytes], bytes]
    ) -> None:
        self.system.create_dir(path.rsplit("/", 1)[0], recursive=True)
        with appended(path) as out:
            if (size := out.seek(0, os.SEEK_END)) >= bytes_max:
                out.seek(0)
                self.write(path, shorten(ended(out.read())) + line + b"\n", private=False)
                return
            out.seek(max(size - 1, 0))
            cut = out.read(1) not in (b"", b"\n")
            out.write(b"\n" * cut + line + b"\n")

    def listed(self, path: str, *, recursive: bool) -> list[fs.FileInfo]:
        selector = fs.FileSelector(path, allow_not_found=True, recursive=recursive)
        return list(self.system.get_file_info(selector))

    def sizes(self, path: str, files: Collection[str]) -> dict[str, int]:
        found: dict[str, int] = {}
        for folder in sorted({file.rpartition("/")[0] for file in files}):
            for info in self.listed(f"{path}/{folder}".rstrip("/"), recursive=False):
                if info.type is fs.FileType.File:
                    found[f"{folder}/{info.base_name}".lstrip("/")] = info.size
        return {file: found[file] for file in files if file in found}

    def modified(self, path: str) -> datetime | None:
        mtime: datetime | None = self.system.get_file_info(path).mtime
        return mtime

    def make_folder(self, path: str) -> None:
        self.system.create_dir(path, recursive=True)

    def remove_folder(self, path: str) -> None:
        if self.system.get_file_info(path).type is fs.FileType.Directory:
            self.system.delete_dir(path)

    def remove_file(self, path: str, above: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.system.delete_file(path)
        with contextlib.suppress(OSError):  # a folder that is not empty
            for up in list(Path(path).parents)[:above]:
                up.rmdir()

    def answer(self, text: str) -> None:  # noqa: ARG002 - of object stores
        return None

    def delta_options(self) -> None:
        return None

    def disk(self, path: str) -> tuple[int, int] | None:
        there = next((p for p in (Path(path), *Path(path).parents) if p.exists()), Path(path))
        usage = shutil.disk_usage(there)
        return (usage.total, usage.free) if usage.total else None

    def lock(self, path: str, name: str) -> AbstractContextManager[FileLock]:
        return _locked(path, name)


class _NewFile:
    """A file of the disk that is being written, under its own name."""

    def __init__(self, system: fs.FileSystem, path: str) -> None:
        self._system, self._path = system, path
        self.out: pa.NativeFile = system.open_output_stream(path)
        self._is_finished = False

    def finish(self) -> int:
        size: int = self.out.tell()
        self.out.close()
        self._is_finished = True
        return size

    def abandon(self) -> None:
        if self._is_finished:
            return
        with contextlib.suppress(OSError):  # a disk that is full
            self.out.close()
        self._system.delete_file(self._path)


@contextlib.contextmanager
def _locked(path: str, name: str) -> Iterator[FileLock]:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with Path(path).open("a+") as handle:
        take(handle, name)
        try:
            yield FileLock()
        finally:
            forget_holder(handle)


def _named(temporary: str, path: str, *, is_new: bool) -> bool:
    """Give a file its name; return False, without the file, if `is_new` and there is one."""
    if is_new:
        try:
            os.link(temporary, path)
        except FileExistsError:
            os.unlink(temporary)
            return False
        except OSError:  # a disk without links
            if os.path.lexists(path):
                os.unlink(temporary)
                return False
        else:
            os.unlink(temporary)
            return True
    os.replace(temporary, path)
    return True


def _sync_folder(path: str) -> None:
    """Make a rename survive a power cut."""
    handle = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
