"""The files of staged frames of a fragment, and how far a load is by their names.

    _driftline/staging/<name>/<exchange>/exchange.json      what was compared, how many rows the
                                                            source expected, if all were asked for
    _driftline/staging/<name>/<exchange>/000001-4096.frames frames of 4,096 rows

So one list of the folder tells how many rows are staged, and no frame is read. Files of older
releases have no number of rows in their names.

Rejected: a note of the rows that is written with each file, which is a request more for each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from warehouse_agent.report import utc_at
from warehouse_agent.storage.store import PRIVATE, Store, StoredFile

FOLDER, NOTE, ENDING = "staging", "exchange.json", ".frames"
# In the note: the rows of the source, 0 if they are not known; when its first rows were staged; and
# why all rows of the source were asked for, null if they were not.
EXPECTED, BEGAN, COPIED = "rows_expected", "began", "copied"
SHARE_MAX = 0.99  # of a load that is not published: the source's estimate may be too low

_NAME = re.compile(r"\d{6,}-(\d{1,15})\.frames")


@dataclass(frozen=True, slots=True)
class StagedRows:
    """The rows that unfinished exchanges of a fragment staged.

    Rows that came in two exchanges, because they or others near them changed in between, count
    twice: of several exchanges, `rows` is the most that it may be.

    Attributes:
        rows: None: files of an older release, which does not tell, are among them.
        rows_expected: of the source, by its estimate; None: it had none.
        bytes: of the frames.
        at: when the newest file was written, ISO 8601 in UTC.
        exchanges: that staged them.
    """

    rows: int | None
    rows_expected: int | None
    bytes: int
    at: str
    exchanges: int = 1

    @property
    def share(self) -> float | None:
        """Return the share of the source's rows that is staged, less than 1; None: not known."""
        if self.rows is None or not self.rows_expected:
            return None
        return min(self.rows / self.rows_expected, SHARE_MAX)


def file_name(number: int, rows: int) -> str:
    """Return the name of the staged file of a number, counted from 1, that holds `rows` rows."""
    return f"{number:06d}-{rows}{ENDING}"


def number_of(name: str) -> int:
    """Return the number of a staged file of any release by its name; 0: it has none."""
    found = re.match(r"\d+", name)
    return 0 if found is None else int(found[0])


def rows_of(names: Iterable[str]) -> int | None:
    """Return the rows in staged files by their names; None: an older release wrote one of them."""
    found = [_NAME.fullmatch(name) for name in names if name.endswith(ENDING)]
    return sum(int(one[1]) for one in found if one) if all(found) else None


def frames_in(entries: Iterable[StoredFile]) -> list[StoredFile]:
    """Return the files of frames among files of staging folders."""
    return [entry for entry in entries if entry.place[-1].endswith(ENDING)]


def staged_of_load(store: Store, name: str) -> StagedRows | None:
    """Return what unfinished first loads of a fragment staged; None: nothing.

    One list, and the note of each exchange.
    """
    by_folder = dict[str, list[StoredFile]]()
    for entry in frames_in(store.walk(PRIVATE, FOLDER, name)):
        by_folder.setdefault(entry.place[3], []).append(entry)
    found, expected = list[StoredFile](), 0
    for folder, entries in by_folder.items():
        note = store.read_json(PRIVATE, FOLDER, name, folder, NOTE)
        if "recipe" in note and note.get("base_version") is None:
            found += entries
            told = note.get(EXPECTED)
            expected = max(expected, told if type(told) is int else 0)
    if not found:
        return None
    return StagedRows(
        rows_of(entry.place[-1] for entry in found),
        expected or None,
        sum(entry.size for entry in found),
        utc_at(max(entry.modified for entry in found).timestamp()),
        len({entry.place[3] for entry in found}),
    )
