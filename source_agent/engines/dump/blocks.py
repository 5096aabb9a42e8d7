"""Dump files: blocks of rows between a parser and the encoders, and what all text files share.

A parser cuts UTF-8 text where a row ends, and turns each piece into the columns that are wanted, as
bytes, with None for NULL. No line of Python runs per value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from driftline.errors import LimitExceeded, ValueDoesNotFit
from driftline.limits import ROW_BYTES_MAX

from source_agent.engines.dump.formats import FileFormat
from source_agent.engines.dump.streams import unfit_text

Column = list[Any]  # of bytes or None in text files, of what Arrow gives in Parquet


@dataclass(frozen=True, slots=True)
class FileBlock:
    """Some rows: `columns` in the order that was asked for, each with a value of every row.

    `place` returns where a row is in its file, such as `line 7`; `file` is the name of that.
    """

    rows: int
    columns: Sequence[Column]
    place: Callable[[int], str]
    file: str = ""

    def part(self, start: int, end: int) -> FileBlock:
        """Return the rows [start, end)."""
        return FileBlock(
            end - start,
            [column[start:end] for column in self.columns],
            lambda row: self.place(start + row),
            self.file,
        )


@dataclass(frozen=True, slots=True)
class TextLines:
    """Whole rows of a text file: `first` is their first line, `count` the number of their lines.

    `data` ends with a line end.
    """

    data: bytes
    first: int
    count: int


def nulls(column: Column, null: bytes | None) -> Column:
    """Return a column with None in place of the text of a NULL."""
    if null is None or null not in column:
        return column
    return [None if value == null else value for value in column]


def whole_rows(
    source: Iterator[bytes], cut: Callable[[bytes], int], format: FileFormat, name: str
) -> Iterator[TextLines]:
    """Yield a text in pieces that end where rows end.

    Args:
        source: UTF-8.
        cut: returns the end of the last whole row of some bytes, 0 if there is none.
        format: of the file.
        name: of the file.

    Raises:
        LimitExceeded: a row has no end.
        ValueDoesNotFit: text that is no UTF-8, or a last row without an end.
    """
    rest = b""
    line = 1
    held: list[bytes] = []
    size = 0
    for piece in source:
        held.append(piece)
        size += len(piece)
        if size < len(rest):
            continue  # a long row is looked at each time that it doubled, not with each piece
        data = b"".join((rest, *held))
        held, size = [], 0
        end = cut(data)
        if end:
            count = data.count(b"\n", 0, end)
            yield TextLines(_checked(data[:end], line, name), line, count)
            line += count
        rest = data[end:]
        if len(rest) > ROW_BYTES_MAX:
            raise LimitExceeded(
                f"The row of {name!r} that begins in line {line} has no end within"
                f" {ROW_BYTES_MAX:,} bytes.",
                remedy="A quote that is not closed, or a file without line ends?",
            )
    rest = b"".join((rest, *held))
    while end := cut(rest):
        count = rest.count(b"\n", 0, end)
        yield TextLines(_checked(rest[:end], line, name), line, count)
        line, rest = line + count, rest[end:]
    if rest:
        ended = _checked(_ended(rest, line, format, name), line, name)
        yield TextLines(ended, line, ended.count(b"\n"))


def _ended(rest: bytes, line: int, format: FileFormat, name: str) -> bytes:
    if format.last_line_end:
        last = line + rest.count(b"\n")
        raise ValueDoesNotFit(
            f"The last line of {name!r}, line {last}, has no end: the file may have been delivered"
            " in part, or a quote is not closed.",
            remedy=f"Deliver it again, or set last_line_end = false in {format.file} if its last"
            " line never has one.",
            details={"file": name},
        )
    return rest + b"\n"


def _checked(data: bytes, first: int, name: str) -> bytes:
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError as error:
            line = first + data.count(b"\n", 0, error.start)
            raise unfit_text(name, "utf-8", line, str(error)) from None
    return data


def refused(name: str, line: int, what: str, remedy: str) -> ValueDoesNotFit:
    """Return the error for a line that is not as its format says."""
    return ValueDoesNotFit(
        f"{what} (file {name!r}, line {line}).",
        remedy=remedy,
        details={"file": name, "line": str(line)},
    )
