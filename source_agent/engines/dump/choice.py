"""Dump files: which file of a folder is read: the newest complete one; no I/O.

A file is complete if its marker exists and is not older than it (a dump of many tables may have one
for all), or if neither its content nor its name, owner or mode has changed for `settle_s`: its
mtime and its ctime are older. An mtime alone can be set by whoever writes the file (`cp -p`), a
ctime cannot.

A delivery is one file, or with `{part}` in the pattern all files that differ in that number alone.
Then one marker completes it, and its numbers must have no gap. Only the marker says which part is
the last, so `settle_s` does not do. A gap is refused, though Spark leaves one where a partition
other than the first was empty: it cannot be told from a part that was lost on its way.

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

from source_agent.engines.relations.shapes import Files

_TIME: Final = re.compile(r"\{([^{}]*)\}")
_DIRECTIVES: Final = {
    "%Y": r"\d{4}", "%m": r"\d\d", "%d": r"\d\d", "%H": r"\d\d", "%M": r"\d\d", "%S": r"\d\d",
    "%j": r"\d{3}",
}  # fmt: skip
_PART: Final = re.compile(r"(?i)(?<![a-z])part[-_.]?\d+|\d+[-_.]?of[-_.]?\d+")
_SLOT: Final = "DriftlineTimeSlot"  # letters, so that fnmatch keeps it as it is
_PART_SLOT: Final = "DriftlinePartSlot"
_PART_NUMBER: Final = r"(?<!\d)(?P<part>\d+)(?!\d)"
FILE: Final = "{file}"
PART: Final = "{part}"
PARTS_MAX: Final = 256  # of a delivery: each stays open, and a process often may open 1,024 files
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class CandidateFile:
    """A regular file whose name matches. Times are nanoseconds of the Unix epoch.

    `marked_ns` is the mtime of its marker, None if it has none.
    """

    name: str
    size: int
    mtime_ns: int
    ctime_ns: int
    marked_ns: int | None = None


@dataclass(frozen=True, slots=True)
class NamePattern:
    """A pattern of names; `time` is the notation of the time in a name, empty: it has none."""

    text: str
    names: re.Pattern[str]
    time: str = ""

    def delivery(self, name: str) -> str:
        """Return the name of a file without the number of its part: all of one are a delivery."""
        if PART not in self.text:
            return name
        begin, end = self._match(name).span("part")
        return name[:begin] + PART + name[end:]

    def part(self, name: str) -> int:
        """Return the number of a part."""
        return int(self._match(name)["part"])

    def marker(self, files: Files, name: str) -> str | None:
        """Return the name of the marker that completes a file, or None if it needs none."""
        if files.complete is None:
            return None
        marker = files.complete.replace(FILE, name)
        return (
            marker.replace(f"{{{self.time}}}", self._match(name)["time"]) if self.time else marker
        )

    def _match(self, name: str) -> re.Match[str]:
        found = self.names.fullmatch(name)
        assert found is not None, "a candidate matches"
        return found

    def matches(self, name: str) -> bool:
        """Return True if a file of this name belongs to the relation."""
        return self.names.fullmatch(name) is not None

    def instant(self, candidate: CandidateFile) -> int:
        """Return the time of a file's data, in ns: from its name if that has one, else its mtime.

        Raises:
            DatabaseRefused: the digits in its name are no time.
        """
        if not self.time:
            return candidate.mtime_ns
        match = self._match(candidate.name)
        try:
            moment = datetime.strptime(match["time"], self.time).replace(tzinfo=UTC)
        except ValueError:
            raise DatabaseRefused(
                f"The file {candidate.name!r} has no time {self.time!r} in its name:"
                f" {match['time']!r}.",
                remedy="Rename or remove the file, or correct `files`.",
                abroad="A file of it has no time in its name.",
            ) from None
        return (moment - _EPOCH) // timedelta(microseconds=1) * 1000


def pattern(files: Files, where: str) -> NamePattern:
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
    if PART in files.pattern:
        _check_parts(files, where)
    elif files.complete is not None and not _names_marker(files.complete, files.pattern):
        raise ConfigurationError(
            f"{files.complete!r} does not name a marker of each file.",
            remedy='Write it with the name of the file: complete = "{file}.done", or with the time'
            " in `files`. One name for many tables is for files that are called the same each"
            " time.",
            where=f"{where}: complete",
        )
    text = files.pattern.replace(PART, _PART_SLOT)
    times = _TIME.findall(text)
    if len(times) > 1:
        raise ConfigurationError(
            "A name has one time at most.", where=f"{where}: files", remedy="Remove one {…}."
        )
    regex = fnmatch.translate(_TIME.sub(_SLOT, text)).replace(_PART_SLOT, _PART_NUMBER)
    if not times:
        return NamePattern(files.pattern, re.compile(regex))
    digits = re.sub(r"%.|.", lambda m: _DIRECTIVES.get(m[0]) or re.escape(m[0]), times[0])
    named = re.findall(r"%.?", times[0])
    if len(set(named)) < len(named):
        raise ConfigurationError(
            f"{{{times[0]}}} names a part of the time twice.",
            remedy="Write each once, such as {%Y%m%d}.",
            where=f"{where}: files",
        )
    unknown = set(named) - set(_DIRECTIVES)
    if unknown or "%Y" not in times[0]:
        raise ConfigurationError(
            f"{{{times[0]}}} is no time of year, month and so on.",
            remedy=f"Write it with {', '.join(_DIRECTIVES)}, such as {{%Y%m%d}}.",
            where=f"{where}: files",
        )
    return NamePattern(
        files.pattern, re.compile(regex.replace(_SLOT, f"(?P<time>{digits})")), times[0]
    )


def _names_marker(complete: str, text: str) -> bool:
    """Return True if no marker of another delivery can complete a file of this pattern."""
    if FILE in complete:
        return complete != FILE
    times = _TIME.findall(text)
    if times:
        return f"{{{times[0]}}}" in complete and complete != text
    return not re.search(r"[*?[]", text) and complete != text


def _check_parts(files: Files, where: str) -> None:
    if files.pattern.count(PART) > 1:
        raise ConfigurationError(
            "A name has one number of a part at most.",
            where=f"{where}: files",
            remedy=f"Remove one {PART}; write * for other numbers.",
        )
    if not re.search(r"[*?{]", files.pattern.replace(PART, "")):
        raise ConfigurationError(
            "The parts of each delivery have the same names, so that one that is left from the"
            " delivery before would count.",
            remedy="Deliver with a time in the names, {%Y%m%d}, or with another name each time, *.",
            where=f"{where}: files",
        )
    if files.complete is None or FILE in files.complete:
        raise ConfigurationError(
            "Only a marker of the whole delivery says that its last part is there.",
            remedy='Write the name of one file that is written last: complete = "_SUCCESS", or with'
            ' the time in the names of parts: complete = "orders-{%Y%m%d}.done".',
            where=f"{where}: complete",
        )


def newest(
    candidates: Sequence[CandidateFile], files: Files, named: NamePattern, now_ns: int
) -> tuple[list[CandidateFile], int]:
    """Return the files of the newest complete delivery, and the time of its data, in ns.

    Args:
        candidates: every file whose name matches.
        files: what the DBA says of them.
        named: their pattern.
        now_ns: the time of the folder's clock, in ns.

    Raises:
        DatabaseUnavailable: none is complete yet.
        DatabaseRefused: two of one instant, a name without a time, parts of one delivery that are
            not declared, or of which one is missing.
    """
    if PART not in named.text:
        _refuse_parts(candidates, files)
    deliveries: dict[str, list[CandidateFile]] = {}
    for candidate in candidates:
        deliveries.setdefault(named.delivery(candidate.name), []).append(candidate)
    complete = {
        name: parts
        for name, parts in deliveries.items()
        if not any(_unfinished(c, files, named, now_ns) for c in parts)
    }
    if not complete:
        raise DatabaseUnavailable(
            _nothing(candidates, files, named, now_ns),
            remedy="Wait for the next delivery, or correct `files`, `complete` or `settle_s`.",
            abroad="No file of it is complete yet.",
        )
    dated = sorted((max(map(named.instant, parts)), name) for name, parts in complete.items())
    at, last = dated[-1]
    if len(dated) > 1 and dated[-2][0] == at:
        raise DatabaseRefused(
            f"The files {dated[-2][1]!r} and {last!r} are of one instant, {text_of(at)}.",
            remedy="Remove one, or name files by the time of their data: {%Y%m%d%H%M%S}.",
            abroad="Two files of it are of one instant.",
        )
    return _whole(complete[last], named, last), at


def _whole(parts: list[CandidateFile], named: NamePattern, delivery: str) -> list[CandidateFile]:
    """Return the parts of a delivery in order. Raises DatabaseRefused if one is missing."""
    if PART not in named.text:
        return parts
    ordered = sorted(parts, key=lambda c: (named.part(c.name), c.name))
    numbers = [named.part(c.name) for c in ordered]
    first = min(numbers[0], 1)
    wrong = [
        n
        for n, place in zip(numbers, range(first, first + len(numbers)), strict=True)
        if n != place
    ]
    if wrong:
        what = "twice" if numbers.count(wrong[0]) > 1 else "and not the one before"
        raise DatabaseRefused(
            f"The delivery {delivery!r} has part {wrong[0]} {what}.",
            remedy="Deliver it again, with parts numbered from 0 or 1 without a gap.",
        )
    if len(ordered) > PARTS_MAX:
        raise DatabaseRefused(
            f"The delivery {delivery!r} has {len(ordered)} parts, more than {PARTS_MAX}.",
            remedy="Deliver fewer, larger files.",
        )
    return ordered


def _refuse_parts(candidates: Sequence[CandidateFile], files: Files) -> None:
    """Raise DatabaseRefused if names differ in the number of a part alone."""
    known: dict[str, str] = {}
    for candidate in candidates:
        whole = _PART.sub("part", candidate.name)
        other = known.setdefault(whole, candidate.name)
        if other != candidate.name:
            raise DatabaseRefused(
                f"{other!r} and {candidate.name!r} look like parts of one delivery, and the newest"
                f" file of {files.pattern!r} would be read as the whole relation.",
                remedy=f"Write {PART} in `files` for the number, and a marker of the whole delivery"
                ' in `complete`, such as "_SUCCESS"; make `files` narrower if one of them is the'
                " whole.",
                abroad="Its files look like parts of one delivery.",
            )


def text_of(at_ns: int) -> str:
    """Return a time in ns as ISO 8601, UTC, to the millisecond."""
    moment = _EPOCH + timedelta(microseconds=at_ns // 1000)
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def _unfinished(candidate: CandidateFile, files: Files, named: NamePattern, now_ns: int) -> str:
    """Return why a file is not complete; empty: it is."""
    if files.complete is not None:
        name = named.marker(files, candidate.name)
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


def _nothing(
    candidates: Sequence[CandidateFile], files: Files, named: NamePattern, now_ns: int
) -> str:
    if not candidates:
        return f"No file matches {files.pattern!r}."
    last = max(candidates, key=lambda c: (c.mtime_ns, c.name))
    why = _unfinished(last, files, named, now_ns)
    return f"No file of {files.pattern!r} is complete yet. The last, {last.name!r}: {why}."
