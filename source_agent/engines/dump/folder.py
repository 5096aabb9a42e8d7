"""Dump files: the folder, and a delivery of it that stays the same while it is read.

Invariants: a file is opened below the folder's descriptor, by a name without folders and without
following links; only regular files are opened, and never waited for. Every read is at an offset of
its own, so several reads of one file do not disturb each other. What was read counts only if inode,
size and mtime are at the end what they were when the file was chosen.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from driftline.errors import DatabaseRefused, DatabaseUnavailable, SnapshotLost

from source_agent.engines.dump import choice
from source_agent.engines.dump.choice import CandidateFile
from source_agent.engines.relations.shapes import Files

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class DumpFile:
    """A chosen file, open for reading."""

    def __init__(self, folder: int, candidate: CandidateFile) -> None:
        self._folder, self.name = folder, candidate.name
        self.size = candidate.size
        self._descriptor = os.open(self.name, _FLAGS, dir_fd=folder)
        self._seen = _identity(os.fstat(self._descriptor))
        if self._seen[1:] != (candidate.size, candidate.mtime_ns, True):
            self.close()
            raise self._lost("changed while it was opened")

    def reader(self) -> io.BufferedReader:
        """Return the content from its beginning."""
        return io.BufferedReader(_Positional(self._descriptor), 1 << 18)

    def check(self) -> None:
        """Raise SnapshotLost if the file was replaced, removed or changed since it was chosen."""
        try:
            now = os.stat(self.name, dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            raise self._lost("was removed") from None
        if _identity(now)[0] != self._seen[0]:
            raise self._lost("was replaced")
        if _identity(now) != self._seen or _identity(os.fstat(self._descriptor)) != self._seen:
            raise self._lost("was changed")

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)

    def _lost(self, what: str) -> SnapshotLost:
        return SnapshotLost(
            f"The file {self.name!r} {what} while it was read.",
            abroad=f"The file {what} while it was read.",
        )


class Delivery:
    """The files of a relation, open for reading; `as_of`: the time of their data, ISO 8601, UTC.

    `present` returns the names of the files that belong to the delivery now.
    """

    def __init__(
        self,
        name: str,
        files: Sequence[DumpFile],
        as_of: str,
        present: Callable[[], Sequence[str]],
    ) -> None:
        self.files, self.as_of, self._present = files, as_of, present
        self.name = name if len(files) == 1 else f"{name} ({len(files)} parts)"
        self.size = sum(file.size for file in files)

    def check(self) -> None:
        """Raise SnapshotLost if a file changed since it was chosen, or a part was added."""
        for file in self.files:
            file.check()
        if len(self._present()) != len(self.files):
            raise SnapshotLost(f"Another part of {self.name!r} came while it was read.")

    def close(self) -> None:
        """Close the descriptors."""
        for file in self.files:
            file.close()


def _identity(status: os.stat_result) -> tuple[tuple[int, int], int, int, bool]:
    inode = (status.st_dev, status.st_ino)
    return inode, status.st_size, status.st_mtime_ns, stat.S_ISREG(status.st_mode)


class _Positional(io.RawIOBase):
    """The content of a descriptor, read at an offset of its own; closing it closes nothing."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._at = descriptor, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        ends = {
            os.SEEK_SET: 0,
            os.SEEK_CUR: self._at,
            os.SEEK_END: os.fstat(self._descriptor).st_size,
        }
        self._at = ends[whence] + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        count = os.preadv(self._descriptor, [buffer], self._at)
        self._at += count
        return count


class DeliveryFolder:
    """The folder of `database.url`, open until `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise DatabaseUnavailable(
                f"The folder {str(path)!r} cannot be opened: {error.strerror}.",
                remedy="Check database.url: an absolute path has four slashes,"
                " dump:////path/to/folder. The agent must be able to list it.",
                abroad="The folder of the files cannot be opened.",
            ) from None

    def close(self) -> None:
        """Close the folder's descriptor."""
        os.close(self._descriptor)

    def newest(self, files: Files, named: choice.NamePattern) -> Delivery:
        """Open the newest complete delivery of a relation.

        Raises:
            DatabaseUnavailable: none is complete yet, or it cannot be opened.
            DatabaseRefused: a link, a pipe or the like; two of one instant; a part is missing.
            SnapshotLost: it changed meanwhile.
        """
        with self._errors():
            candidates = list(self._candidates(files, named))
            parts, at = choice.newest(candidates, files, named, time.time_ns())
            name = named.delivery(parts[0].name)

            def present() -> Sequence[str]:
                names = filter(named.matches, os.listdir(self._descriptor))
                return [one for one in names if named.delivery(one) == name]

            opened: list[DumpFile] = []
            try:
                for candidate in parts:
                    opened.append(DumpFile(self._descriptor, candidate))
            except BaseException:
                for file in opened:
                    file.close()
                raise
            return Delivery(
                parts[0].name if len(parts) == 1 else name, opened, choice.text_of(at), present
            )

    def _candidates(self, files: Files, named: choice.NamePattern) -> Iterator[CandidateFile]:
        for name in sorted(os.listdir(self._descriptor)):
            if not named.matches(name):
                continue
            status = self._regular(name)
            if status is None:
                continue
            marker = named.marker(files, name)
            if marker == name:  # the marker of a whole delivery may match the pattern of its files
                continue
            marked = None if marker is None else self._regular(marker)
            yield CandidateFile(
                name,
                status.st_size,
                status.st_mtime_ns,
                status.st_ctime_ns,
                None if marked is None else marked.st_mtime_ns,
            )

    def _regular(self, name: str) -> os.stat_result | None:
        """Return the status of a regular file, None if there is none. Refuses everything else."""
        try:
            status = os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(status.st_mode):
            kind = next(
                (text for test, text in _KINDS if test(status.st_mode)), "not a regular file"
            )
            raise DatabaseRefused(
                f"{name!r} in {str(self.path)!r} is {kind}.",
                remedy="Put the file itself there, or make `files` narrower.",
                abroad=f"A file of it is {kind}.",
            )
        return status

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DatabaseUnavailable(
                f"A file in {str(self.path)!r} cannot be read: {error.strerror}.",
                remedy="The agent's account must be able to read the files that `files` names.",
                abroad="A file of it cannot be read.",
            ) from None


_KINDS = (
    (stat.S_ISLNK, "a symbolic link, and links are not followed"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
