"""Dump files: which file of a folder is read: the newest complete one; no I/O.

A file is complete if its marker exists and is not older than it, or if neither its content nor its
name, owner or mode has changed for `settle_s`: its mtime and its ctime are older. An mtime alone
can be set by whoever writes the file (`cp -p`), a ctime cannot.

Invariant: nothing is chosen by chance. Two complete files of one instant are refused.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from driftline.errors import ConfigurationError, DatabaseRefused, DatabaseUnavailable

from source_agent.engines.shapes import Files

_TIME: Final = re.compile(r"\{([^{}]*)\}")
_DIRECTIVES: Final = {
    "%Y": r"\d{4}", "%m": r"\d\d", "%d": r"\d\d", "%H": r"\d\d", "%M": r"\d\d", "%S": r"\d\d",
    "%j": r"\d{3}",
}  # fmt: skip
_PART: Final = re.compile(r"(?i)(?<![a-z])part[-_.]?\d+|\d+[-_.]?of[-_.]?\d+")
_SLOT: Final = "DriftlineTimeSlot"  # letters, so that fnmatch keeps it as it is
FILE: Final = "{file}"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A regular file whose name matches. Times are nanoseconds of the Unix epoch.

    `marked_ns` is the mtime of its marker, None if it has none.
    """

    name: str
    size: int
    mtime_ns: int
    ctime_ns: int
    marked_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern of names; `time` is the notation of the time in a name, empty: it has none."""

    text: str
    names: re.Pattern[str]
    time: str = ""

    def matches(self, name: str) -> bool:
        """Return True if a file of this name belongs to the relation."""
        return self.names.fullmatch(name) is not None

    def instant(self, candidate: Candidate) -> int:
        """Return the time of a file's data, in ns: from its name if that has one, else its mtime.

        Raises:
            DatabaseRefused: the digits in its name are no time.
        """
        if not self.time:
            return candidate.mtime_ns
        found = self.names.fullmatch(candidate.name)
        assert found is not None, "a candidate matches"
        try:
            moment = datetime.strptime(found["time"], self.time).replace(tzinfo=UTC)
        except ValueError:
            raise DatabaseRefused(
                f"The file {candidate.name!r} has no time {self.time!r} in its name:"
                f" {found['time']!r}.",
                remedy="Rename or remove the file, or correct `files`.",
            ) from None
        return (moment - _EPOCH) // timedelta(microseconds=1) * 1000


def pattern(files: Files, where: str) -> Pattern:
    """Return the pattern of a relation's files; `where` is the place for errors.

    Raises:
        ConfigurationError: it leaves the folder, or its time cannot be read.
    """
    for setting, text in (("files", files.pattern), ("complete", files.complete or "x")):
        if "/" in text or "\\" in text or "\0" in text or text in {".", ".."}:
            raise ConfigurationError(
                f"{text!r} is not the name of a file in the folder of `database.url`.",
                remedy="Write names without folders; a folder has an agent of its own.",
                where=f"{where}: {setting}",
            )
    if files.complete is not None and (FILE not in files.complete or files.complete == FILE):
        raise ConfigurationError(
            f"{files.complete!r} does not name a marker of each file.",
            remedy='Write it with the name of the file: complete = "{file}.done".',
            where=f"{where}: complete",
        )
    times = _TIME.findall(files.pattern)
    if len(times) > 1:
        raise ConfigurationError(
            "A name has one time at most.", where=f"{where}: files", remedy="Remove one {…}."
        )
    regex = fnmatch.translate(_TIME.sub(_SLOT, files.pattern))
    if not times:
        return Pattern(files.pattern, re.compile(regex))
    digits = re.sub(r"%.|.", lambda m: _DIRECTIVES.get(m[0]) or re.escape(m[0]), times[0])
    unknown = set(re.findall(r"%.?", times[0])) - set(_DIRECTIVES)
    if unknown or "%Y" not in times[0]:
        raise ConfigurationError(
            f"{{{times[0]}}} is no time of year, month and so on.",
            remedy=f"Write it with {', '.join(_DIRECTIVES)}, such as {{%Y%m%d}}.",
            where=f"{where}: files",
        )
    return Pattern(files.pattern, re.compile(regex.replace(_SLOT, f"(?P<time>{digits})")), times[0])


def newest(
    candidates: Sequence[Candidate], files: Files, named: Pattern, now_ns: int
) -> tuple[Candidate, int]:
    """Return the newest complete file and the time of its data, in ns.

    Args:
        candidates: every file whose name matches.
        files: what the DBA says of them.
        named: their pattern.
        now_ns: the time of the folder's clock, in ns.

    Raises:
        DatabaseUnavailable: none is complete yet.
        DatabaseRefused: two of one instant, a name without a time, or parts of one delivery.
    """
    _refuse_parts(candidates, files)
    complete = [c for c in candidates if not _unfinished(c, files, now_ns)]
    if not complete:
        raise DatabaseUnavailable(
            _nothing(candidates, files, now_ns),
            remedy="Wait for the next delivery, or correct `files`, `complete` or `settle_s`.",
        )
    dated = sorted((named.instant(c), c.name, c) for c in complete)
    at, _, found = dated[-1]
    if len(dated) > 1 and dated[-2][0] == at:
        raise DatabaseRefused(
            f"The files {dated[-2][1]!r} and {found.name!r} are of one instant, {text_of(at)}.",
            remedy="Remove one, or name files by the time of their data: {%Y%m%d%H%M%S}.",
        )
    return found, at


def _refuse_parts(candidates: Sequence[Candidate], files: Files) -> None:
    """Raise DatabaseRefused if names differ in the number of a part alone."""
    known: dict[str, str] = {}
    for candidate in candidates:
        whole = _PART.sub("part", candidate.name)
        other = known.setdefault(whole, candidate.name)
        if other != candidate.name:
            raise DatabaseRefused(
                f"{other!r} and {candidate.name!r} look like parts of one delivery, and the newest"
                f" file of {files.pattern!r} would be read as the whole relation.",
                remedy="Deliver a relation as one file, put together under a new name; make"
                " `files` narrower if one of them is the whole.",
            )


def text_of(at_ns: int) -> str:
    """Return a time in ns as ISO 8601, UTC, to the millisecond."""
    moment = _EPOCH + timedelta(microseconds=at_ns // 1000)
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def marker(files: Files, name: str) -> str | None:
    """Return the name of a file's marker, or None if it needs none."""
    return None if files.complete is None else files.complete.replace(FILE, name)


def _unfinished(candidate: Candidate, files: Files, now_ns: int) -> str:
    """Return why a file is not complete; empty: it is."""
    if files.complete is not None:
        name = marker(files, candidate.name)
        if candidate.marked_ns is None:
            return f"{name!r} does not exist"
        if candidate.marked_ns < candidate.mtime_ns:
            return f"{name!r} is older than the file"
        return ""
    changed = max(candidate.mtime_ns, candidate.ctime_ns)
    seconds = (now_ns - changed) / 1e9
    if seconds < (files.settle_s or 0):
        return f"it changed {max(seconds, 0):.0f} s ago, `settle_s` is {files.settle_s:g}"
    return ""


def _nothing(candidates: Sequence[Candidate], files: Files, now_ns: int) -> str:
    if not candidates:
        return f"No file matches {files.pattern!r}."
    last = max(candidates, key=lambda c: (c.mtime_ns, c.name))
    why = _unfinished(last, files, now_ns)
    return f"No file of {files.pattern!r} is complete yet. The last, {last.name!r}: {why}."
