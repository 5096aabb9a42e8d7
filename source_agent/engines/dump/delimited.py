"""Dump files: CSV (RFC 4180), with a separator, quotes and line ends that are checked.

Rows without quotes are split all at once: each line end becomes a field of its own, and if every
field in its place is one, each row has the right number of fields. Rows with quotes are matched one
by one with a pattern of the whole row. So a NULL is told from a quoted text that looks like one.

MySQL puts a backslash before a separator, a quote and a line end that belong to a value. Such a
sequence becomes one byte that no text in UTF-8 has, the rows are split as others, and the values
get their characters back. There every line end without a backslash ends a row.

Invariant: what is neither is refused with its line; no byte of a file is skipped.
Rejected: `csv` of Python, which cannot tell "" from nothing, takes stray quotes as they are, and is
slower. Arrow's CSV, which guesses less than most and still needs Arrow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from driftline.arrays import Integers
from driftline.errors import ConfigurationError, ValueDoesNotFit
from driftline.limits import COLUMNS_MAX

from source_agent.engines.dump.blocks import (
    Column,
    FileBlock,
    TextLines,
    nulls,
    refused,
    whole_rows,
)
from source_agent.engines.dump.formats import FileFormat

_MIXED: Final = "Line ends are mixed: some are CR LF"
_ESCAPE: Final = re.compile(rb"\\(.?)", re.DOTALL)
_ESCAPED: Final = {
    b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v",
    b"\\": b"\\",
}  # fmt: skip
# What MySQL's escapes stand for while rows are split: bytes that no text in UTF-8 has. A value
# that is `_NULL_MARK` alone is a NULL.
_SEPARATOR_MARK, _QUOTE_MARK, _END_MARK = b"\xf9", b"\xfa", b"\xfb"
_CR_MARK, _NULL_MARK, _BACKSLASH_MARK = b"\xfc", b"\xfd", b"\xfe"
_OF_MYSQL: Final = {  # doubled backslashes first: each that is left then begins another escape
    b"\\": _BACKSLASH_MARK, b"0": b"\0", b"b": b"\b", b"n": _END_MARK, b"r": _CR_MARK,
    b"t": b"\t", b"Z": b"\x1a", b"N": _NULL_MARK, b"\n": _END_MARK, b"\r": _CR_MARK,
}  # fmt: skip
_ONE_END: Final = "Write the file with one kind of line end."


def blocks(
    source: Iterator[bytes], format: FileFormat, wanted: Sequence[int], name: str
) -> Iterator[FileBlock]:
    """Yield the rows of a CSV file; the header, if there is one, is checked and left out.

    Args:
        source: the text in UTF-8, in pieces.
        format: of the file.
        wanted: the numbers of the columns, from 0, in the order in which they are returned.
        name: of the file.

    Raises:
        ConfigurationError: another header.
        ValueDoesNotFit, LimitExceeded: a row that is none.
    """
    parser = _Parser(format, wanted, name)
    is_first = format.header
    for lines in whole_rows(source, parser.cut, format, name):
        rest = parser.after_header(lines) if is_first else lines
        is_first = False
        if rest.data:
            yield parser.block(rest)
    if is_first:
        raise ValueDoesNotFit(
            f"The file {name!r} is empty: it has no header.",
            remedy="Deliver it again; a table without rows is a header alone.",
        )


class _Parser:
    def __init__(self, format: FileFormat, wanted: Sequence[int], name: str) -> None:
        self._format, self._wanted, self._name = format, wanted, name
        self._fields = len(format.names)
        self._row = _row_pattern(format, self._fields)
        self._end = b""  # the file's line end: that of its first line
        self._null, self._is_mysql = format.null, format.escape == "mysql"
        if self._is_mysql:
            self._null = _NULL_MARK if format.null else None
            own = {format.separator: _SEPARATOR_MARK}
            if format.quote:
                own[format.quote] = _QUOTE_MARK
            if format.separator == b"\t":
                own[b"t"] = _SEPARATOR_MARK
            self._marks = {**_OF_MYSQL, **own}
            of = (_SEPARATOR_MARK, _QUOTE_MARK, _END_MARK, _CR_MARK, _BACKSLASH_MARK)
            given = (format.separator, format.quote or b'"', b"\n", b"\r", b"\\")
            self._given = bytes.maketrans(b"".join(of), b"".join(given))

    def cut(self, data: bytes) -> int:
        """Return the end of the last row: behind a line end with an even number of quotes."""
        if self._is_mysql:
            return _last_end(data)
        quote = self._format.quote
        at = data.rfind(b"\n")
        if not quote or at < 0 or data.count(quote, 0, at) % 2 == 0:
            return at + 1
        return int(_row_ends(data, quote)[-1:].sum())

    def after_header(self, lines: TextLines) -> TextLines:
        """Check the header, and return the rows behind it."""
        data = lines.data
        end = data.index(b"\n") + 1
        if self._format.quote and data.count(self._format.quote, 0, end) % 2:
            end = int(_row_ends(data, self._format.quote)[0])
        header = self._without_end(data[:end], lines.first)
        names = _generic_fields(header, self._format)
        if names != list(self._format.names):
            raise _other_header(names, self._format, self._name)
        count = data.count(b"\n", 0, end)
        return TextLines(data[end:], lines.first + count, lines.count - count)

    def block(self, lines: TextLines) -> FileBlock:
        """Return the columns of some rows."""
        if not self._is_mysql:
            return self._split(lines)
        block = self._split(self._marked(lines))
        has_marks = b"\\" in lines.data or b"\r" in lines.data
        return self._given_back(block) if has_marks else block

    def _marked(self, lines: TextLines) -> TextLines:
        """Return rows with marks in place of MySQL's escapes and of carriage returns."""
        data = lines.data
        if b"\\" in data:
            for one, mark in self._marks.items():
                data = data.replace(b"\\" + one, mark)
            if (at := data.find(b"\\")) >= 0:
                raise refused(
                    self._name,
                    lines.first + _line_ends(data[:at]),
                    f"A backslash is in front of {data[at + 1 : at + 2]!r}, which MySQL does not"
                    " write",
                    'Set `escape` in the format as the file is written; "none" if a backslash is'
                    " one.",
                )
        data = data.replace(b"\r", _CR_MARK)
        rows = data.count(b"\n")
        if data.count(_CR_MARK + b"\n") == rows:
            raise refused(
                self._name,
                lines.first,
                "Every row ends with a carriage return: the line's, or the last column's",
                "Write the file with LINES TERMINATED BY '\\n', and another column last.",
            )
        return TextLines(data, lines.first, rows)

    def _given_back(self, block: FileBlock) -> FileBlock:
        """Return a block with the characters of its values in place of marks."""
        for column in block.columns:
            if _NULL_MARK in b"".join(filter(None, column)):
                row = next(row for row, v in enumerate(column) if v and _NULL_MARK in v)
                raise refused(
                    self._name,
                    int(block.place(row).removeprefix("line ")),
                    "A value holds \\N beside other text, or `null` is not set",
                    'Write null = "\\\\N", or deliver it again.',
                )
        given = self._given
        columns = [[v and v.translate(given) for v in column] for column in block.columns]
        return replace(block, columns=columns)

    def _split(self, lines: TextLines) -> FileBlock:
        data = lines.data
        if self._format.quote and self._format.quote in data:
            return self._quoted(lines)
        self._note_end(data)
        if self._end == b"\r\n":
            if not lines.count == data.count(b"\r\n") == data.count(b"\r"):
                raise self._mixed(lines)
        elif b"\r" in data:
            raise self._mixed(lines)
        return self._plain(lines)

    def _plain(self, lines: TextLines) -> FileBlock:
        separator, width = self._format.separator, self._fields + 1
        rows = lines.count
        if lines.data.count(separator) != rows * (self._fields - 1):  # before there are millions
            raise self._wrong_number(lines)
        fields = lines.data.replace(self._end, separator + b"\n" + separator).split(separator)
        ends = fields[self._fields :: width]
        if len(fields) != rows * width + 1 or ends.count(b"\n") != rows:
            raise self._wrong_number(lines)
        del fields[-1]
        columns = [nulls(fields[at::width], self._null) for at in self._wanted]
        if self._format.escape == "postgresql" and b"\\" in lines.data:
            columns = [self._unescaped(column, lines) for column in columns]
        if _END_MARK in lines.data:
            return FileBlock(
                rows, columns, _places(lines.data.splitlines(keepends=True), lines.first)
            )
        return FileBlock(rows, columns, lambda row: f"line {lines.first + row}")

    def _unescaped(self, column: Column, lines: TextLines) -> Column:
        """Return the texts of a column of PostgreSQL's COPY; the server writes no other escapes."""
        try:
            return [
                v and (_ESCAPE.sub(lambda m: _ESCAPED[m[1]], v) if b"\\" in v else v)
                for v in column
            ]
        except KeyError as error:
            at = next(i for i, v in enumerate(column) if v and not _is_escaped(v))
            raise refused(
                self._name,
                lines.first + at,
                f"A backslash is in front of {error.args[0]!r}, which COPY does not write",
                'Set `escape` in the format as the file is written; "none" if a backslash is one.',
            ) from None

    def _quoted(self, lines: TextLines) -> FileBlock:
        records = list(_records(lines.data, self._format.quote))
        quote, null = self._format.quote, self._null
        twice = quote * 2
        rows: list[list[bytes | None]] = []
        line = lines.first
        for record in records:
            match = self._row.fullmatch(self._without_end(record, line))
            if match is None:
                raise self._unmatched(record, line)
            groups = match.groups()
            row: list[bytes | None] = []
            for at in self._wanted:
                inner, plain = groups[2 * at], groups[2 * at + 1]
                if inner is None:
                    row.append(None if plain == null else plain)
                else:
                    row.append(inner.replace(twice, quote) if twice in inner else inner)
            rows.append(row)
            line += _line_ends(record)
        columns: list[Column] = [list(column) for column in zip(*rows, strict=True)]
        return FileBlock(len(rows), columns, _places(records, lines.first))

    def _note_end(self, data: bytes) -> None:
        if not self._end:
            at = data.index(b"\n")
            self._end = b"\r\n" if data[at - 1 : at] == b"\r" else b"\n"

    def _without_end(self, record: bytes, line: int) -> bytes:
        if not self._end:  # of the record, not of a line within it
            self._end = b"\r\n" if record.endswith(b"\r\n") else b"\n"
        if record.endswith(b"\r\n") != (self._end == b"\r\n"):
            raise refused(self._name, line + record.count(b"\n") - 1, _MIXED, _ONE_END)
        return record[: -len(self._end)]

    def _mixed(self, lines: TextLines) -> ValueDoesNotFit:
        is_cr = self._end == b"\r\n"
        for number, line in enumerate(lines.data.splitlines(keepends=True)):
            if line.endswith(b"\r\n") != is_cr or line.count(b"\r") != is_cr:
                return refused(self._name, lines.first + number, _MIXED, _ONE_END)
        raise AssertionError("some line has another end")

    def _wrong_number(self, lines: TextLines) -> ValueDoesNotFit:
        number = lines.first
        for line in lines.data.split(self._end):
            fields = line.count(self._format.separator) + 1
            if fields != self._fields:
                return self._number(fields, number)
            number += 1 + line.count(_END_MARK)
        raise AssertionError("some line has another number of fields")

    def _number(self, fields: int, line: int) -> ValueDoesNotFit:
        shown = str(fields) if fields <= COLUMNS_MAX else f"more than {COLUMNS_MAX:,}"
        return refused(
            self._name,
            line,
            f"A row has {shown} fields, and {self._format.file} names {self._fields} columns",
            "Quote values that hold the separator, or correct the format.",
        )

    def _unmatched(self, record: bytes, line: int) -> ValueDoesNotFit:
        fields = _generic_fields(self._without_end(record, line), self._format)
        if fields is not None and len(fields) != self._fields:
            return self._number(len(fields), line)
        return refused(
            self._name,
            line,
            "A row has a quote inside of a value that is not quoted, or text behind a closing"
            " quote, or a carriage return outside of quotes",
            "Quote the value and double its quotes, or set `quote` in the format.",
        )


def _last_end(data: bytes) -> int:
    """Return the end of the last row of MySQL: behind a line end that no backslash escapes."""
    if b"\\\n" in data:
        data = data.replace(b"\\\\", b"..").replace(b"\\\n", b"..")
    return data.rfind(b"\n") + 1


def _line_ends(record: bytes) -> int:
    return record.count(b"\n") + record.count(_END_MARK)


def _is_escaped(value: bytes) -> bool:
    return all(escape in _ESCAPED for escape in _ESCAPE.findall(value))


def _row_ends(data: bytes, quote: bytes) -> Integers:
    """Return the ends of rows, int64: behind line ends with an even number of quotes before them.

    A carriage return alone ends no line. A value in quotes may have millions of lines.
    """
    codes = np.frombuffer(data, np.uint8)
    quotes = np.cumsum(codes == ord(quote), dtype=np.uint8)  # its last bit does not overflow
    is_end = codes == ord("\n")
    is_end &= quotes % 2 == 0
    ends: Integers = np.flatnonzero(is_end) + 1
    return ends


def _records(data: bytes, quote: bytes) -> Iterator[bytes]:
    """Yield rows with their ends."""
    start = 0
    for end in _row_ends(data, quote).tolist():
        yield data[start:end]
        start = end
    assert start == len(data), "rows are whole"


def _field(format: FileFormat) -> str:
    separator, quote = (re.escape(c.decode()) for c in (format.separator, format.quote))
    plain = f"([^{separator}{quote}\\r\\n]*)"
    if not format.quote:
        return f"()(?!)|{plain}"
    return f"{quote}([^{quote}]*(?:{quote}{quote}[^{quote}]*)*){quote}|{plain}"


def _row_pattern(format: FileFormat, fields: int) -> re.Pattern[bytes]:
    """Return the pattern of a row: for each field a group if it is quoted, and one if not."""
    separator = re.escape(format.separator.decode())
    return re.compile(separator.join([f"(?:{_field(format)})"] * fields).encode())


def _generic_fields(row: bytes, format: FileFormat) -> list[str] | None:
    """Return the fields of a row of any number of them, None if it is no row.

    No more than one beyond COLUMNS_MAX: a line behind a lost quote may have millions.
    """
    one = re.compile(f"(?:{_field(format)})({re.escape(format.separator.decode())}|\\Z)".encode())
    texts: list[str] = []
    at, behind = 0, format.separator
    while behind and len(texts) <= COLUMNS_MAX:
        match = one.match(row, at)
        if match is None:
            return None
        inner, plain, behind = match.groups()
        text = plain if inner is None else inner.replace(format.quote * 2, format.quote)
        texts.append(text.decode())
        at = match.end()
    return texts


def _places(records: Sequence[bytes], first: int) -> Callable[[int], str]:
    def place(row: int) -> str:
        before = sum(map(_line_ends, records[:row]))
        return f"line {first + before}"

    return place


def _other_header(names: list[str] | None, format: FileFormat, name: str) -> ConfigurationError:
    header = names or []
    pairs = zip(header, format.names, strict=False)
    what = f"{len(header)} names instead of {len(format.names)}"
    for number, (theirs, ours) in enumerate(pairs, start=1):
        if theirs != ours:
            what = f"column {number} is {theirs[:60]!r} instead of {ours!r}"
            break
    return ConfigurationError(
        f"The header of {name!r} is not what {format.file} describes: {what}.",
        remedy=f"If the columns changed, change {format.file} and tell the data engineer; check"
        " `separator` and `encoding`.",
        abroad="The header of its file is not what its format describes.",
    )
