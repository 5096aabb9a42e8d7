"""The folder of a report: written page by page, so that a reader never sees a half of one.

Each page is written under a new name, which then becomes its own. A manifest in the folder names
the pages: those of tables that are gone are removed, and nothing else is. A folder that is neither
empty nor a report is refused. One command writes a report at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from driftline.errors import Locked, UsageError

MANIFEST: Final = "driftline-report.json"
INDEX, TABLES = "index.html", "tables"
_PAGE = re.compile(rf"{re.escape(INDEX)}|{TABLES}/[A-Za-z0-9_][A-Za-z0-9_.-]*\.html")
_UNFINISHED: Final = ".unfinished"


@dataclass
class ReportFolder:
    """The folder of a report that is being written.

    Attributes:
        mode: of its files.
        before: pages of the report that was there.
    """

    path: Path
    mode: int
    before: frozenset[str] = frozenset()
    _written: set[str] = field(default_factory=set)

    def write(self, page: str, text: str) -> None:
        """Write a page, whole or not at all. Raises UsageError: it cannot be written."""
        assert _PAGE.fullmatch(page)
        self._written.add(page)
        self._put(page, text)

    def _put(self, name: str, text: str) -> None:
        place, unfinished = self.path / name, self.path / f"{name}{_UNFINISHED}"
        with _refused(place):
            unfinished.unlink(missing_ok=True)
            with os.fdopen(
                os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, self.mode), "wb"
            ) as out:
                out.write(text.encode("utf-8", "replace"))
            unfinished.replace(place)

    def begin(self, pages: frozenset[str]) -> None:
        """Note the pages that are to be written, before the first is."""
        with _refused(self.path):
            (self.path / TABLES).mkdir(exist_ok=True)
        self._note(self.before | pages)

    def end(self) -> None:
        """Remove pages of tables that are gone, and forget them."""
        for page in self.before - self._written:
            for gone in (page, f"{page}{_UNFINISHED}"):
                with _refused(self.path / gone):
                    (self.path / gone).unlink(missing_ok=True)
        self._note(frozenset(self._written))

    def _note(self, pages: frozenset[str]) -> None:
        self._put(MANIFEST, json.dumps({"pages": sorted(pages)}, indent=0) + "\n")


@contextlib.contextmanager
def opened(path: Path, *, private: bool) -> Iterator[ReportFolder]:
    """Make or take the folder of a report, and hold it.

    Args:
        private: only its owner can read what is written.

    Raises:
        UsageError: it is no folder, holds something else, or cannot be written.
        Locked: another command writes it.
    """
    with _refused(path):
        path.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    with contextlib.ExitStack() as held:
        held.callback(os.close, handle)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Locked(
                "Another command writes this report.", where=str(path), remedy="Try again later."
            ) from None
        yield ReportFolder(path, 0o600 if private else 0o644, _known(path))


def _known(path: Path) -> frozenset[str]:
    """Return the pages of the report in a folder; none of an empty one. Raises UsageError."""
    with _refused(path):
        if not any(path.iterdir()):
            return frozenset()
    try:
        listed = json.loads((path / MANIFEST).read_bytes())["pages"]
        return frozenset(page for page in listed if _PAGE.fullmatch(page))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        raise UsageError(
            "The folder is not empty, and holds no report.",
            where=str(path),
            remedy="Name a new or an empty folder: --output DIR.",
        ) from None


@contextlib.contextmanager
def _refused(path: Path) -> Iterator[None]:
    """Raise an error of the file system as a UsageError that names the file."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"The report cannot be written: {error.strerror or error}.",
            where=str(path),
            remedy="Name another folder, or free space there: --output DIR.",
        ) from error
