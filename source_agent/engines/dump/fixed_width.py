"""Dump files: fixed width: each line has the same number of characters, each column its own.

Values lose the blanks around them, text only those behind it. Lines of ASCII are cut all at once as
a matrix of bytes, others one by one in characters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
from driftline.errors import ConfigurationError

from source_agent.engines.dump.blocks import (
    Column,
    FileBlock,
    TextLines,
    nulls,
    refused,
    whole_rows,
)
from source_agent.engines.dump.formats import FileFormat

_NO_HEADER = "The first line of {name!r} is not a header with the names of {file} in their places."


def blocks(
    source: Iterator[bytes], format: FileFormat, wanted: Sequence[int], name: str
) -> Iterator[FileBlock]:
    """Yield the rows of a file of fixed width; see `delimited.blocks`."""
    ends = list(accumulate(format.widths))
    spans = [(end - width, end) for end, width in zip(ends, format.widths, strict=True)]
    header = format.header
    for lines in whole_rows(source, lambda data: data.rfind(b"\n") + 1, format, name):
        rest = _after_header(lines, format, spans, name) if header else lines
        header = False
        if rest.data:
            yield _block(rest, format, wanted, spans, name)


def _after_header(
    lines: TextLines, format: FileFormat, spans: Sequence[tuple[int, int]], name: str
) -> TextLines:
    first, _, rest = lines.data.partition(b"\n")
    text = first.decode().removesuffix("\r")
    if [text[start:end].strip() for start, end in spans] != list(format.names):
        raise ConfigurationError(
            _NO_HEADER.format(name=name, file=format.file),
            remedy="Correct `widths` and names in the format, or set header = false.",
            abroad="The header of its file is not what its format describes.",
        )
    return TextLines(rest, lines.first + 1, lines.count - 1)


def _block(
    lines: TextLines,
    format: FileFormat,
    wanted: Sequence[int],
    spans: Sequence[tuple[int, int]],
    name: str,
) -> FileBlock:
    data, rows = lines.data, lines.count
    if returns := data.count(b"\r"):
        if not returns == rows == data.count(b"\r\n"):
            raise refused(name, lines.first, "Line ends are mixed", "Write one kind of line end.")
        data = data.replace(b"\r\n", b"\n")
    width = spans[-1][1]
    chosen = [spans[at] for at in wanted]
    if data.isascii() and b"\0" not in data and len(data) == rows * (width + 1):
        matrix = np.frombuffer(data, np.uint8).reshape(rows, width + 1)
        if (matrix[:, -1] == ord("\n")).all():
            cells = [_cells(matrix, start, end) for start, end in chosen]
            return _stripped(cells, rows, lines, format, wanted)
    texts = data.decode().split("\n")[:-1]
    for number, text in enumerate(texts):
        if len(text) != width:
            raise refused(
                name,
                lines.first + number,
                f"A line has {len(text)} characters, and `widths` in {format.file} add up to"
                f" {width}",
                "Correct `widths`, or the file.",
            )
    cells = [[text[start:end].encode() for text in texts] for start, end in chosen]
    return _stripped(cells, rows, lines, format, wanted)


def _cells(matrix: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], start: int, end: int) -> Column:
    """Return one column of a matrix of bytes, without zero bytes, as bytes."""
    column = np.ascontiguousarray(matrix[:, start:end])
    cells: Column = column.view(f"S{end - start}").reshape(-1).tolist()
    return cells


def _stripped(
    cells: Sequence[Column], rows: int, lines: TextLines, format: FileFormat, wanted: Sequence[int]
) -> FileBlock:
    columns = []
    for at, column in zip(wanted, cells, strict=True):
        strip = bytes.rstrip if format.types[at].kind == "text" else bytes.strip
        columns.append(nulls([strip(value, b" ") for value in column], format.null))
    return FileBlock(rows, columns, lambda row: f"line {lines.first + row}")
