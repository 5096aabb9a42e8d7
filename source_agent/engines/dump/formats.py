"""Dump files: the DBA's description of a file's columns and notation, a TOML file of its own.

Invariant: nothing of it is guessed. Columns and types are named, a value is NULL only if it is the
declared text, and what is not declared has the one default that docs/reference/dump-format.md
gives.
"""

from __future__ import annotations

import codecs
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from driftline.settings.declarations import SettingsTable, nearest, read
from driftline.settings.kinds import COLUMN_TYPE, FLAG, TEXT, integer, map_of, one_of, written
from driftline.values.types import DeclaredType

_CSV_ONLY: Final = ("separator", "quote", "escape")
_TEXT_ONLY: Final = (
    *_CSV_ONLY, "encoding", "null", "decimal", "true", "false", "header", "last_line_end", "widths",
)  # fmt: skip
_SEPARATORS: Final = frozenset(",;|\t:!#$%&*/@^_~\x01\x1c\x1d\x1e\x1f")
ESCAPES: Final = ("none", "postgresql", "mysql")
KINDS: Final = ("csv", "fixed", "parquet")


def _codec(name: str) -> str | None:
    try:
        codec = codecs.lookup(name).name
        io.TextIOWrapper(io.BytesIO(), encoding=codec)  # refuses codecs of bytes, such as zlib
    except (LookupError, ValueError):  # a name with a NUL
        return None
    return codec


def _null(text: str) -> bytes | None:
    is_plain = text == text.strip() and "\n" not in text and "\r" not in text
    return text.encode() if is_plain else None


class FormatTable(SettingsTable):
    """The notation of the files of a relation."""

    kind = one_of({kind: kind for kind in KINDS}).by_default(
        "csv",
        'how files are written; `"fixed"`: in fixed width, `"parquet"` needs'
        " `pip install '.[dump]'` and has only `columns` beside it",
    )
    columns = map_of(COLUMN_TYPE, called="COLUMN").required(
        "all columns of the file in its order, with [types](types.md#dump-files)"
    )
    separator = written(
        "one ASCII character",
        lambda text: text.encode() if text in _SEPARATORS else None,
        lack="is not allowed.",
        wrong="ab",
        pattern="^.$",
        remedy=f"Write one of {', '.join(sorted(map(ascii, _SEPARATORS)))}.",
    ).by_default(",", "CSV: the character between two values")
    quote = written(
        "one ASCII character",
        lambda text: text.encode() if text in {"", '"', "'"} else None,
        lack="is not allowed.",
        wrong="x",
        pattern="""^["']?$""",
        remedy='Write "\'" or \'"\', or "" for none.',
        is_any=True,
    ).by_default(
        '"',
        'CSV: the character around a value; `""` for none. Quotes within quotes are doubled; quoted'
        " values may hold line breaks",
    )
    escape = one_of({escape: escape for escape in ESCAPES}).optional(
        'how backslashes are read; `"postgresql"`: COPY in text format (separator tab,'
        ' `quote = ""`), `"mysql"`: `SELECT … INTO OUTFILE` and `mysqldump --tab` with their'
        " default `ESCAPED BY`, lines that end with LF and `CHARACTER SET utf8mb4` (or another"
        ' `encoding`), enclosed (`quote`) or not (`quote = ""`), `"none"`: a backslash is always a'
        " backslash. Other escapes are refused, and so are binary columns: deliver `HEX(c)`",
        '`"none"`; required with `null = "\\\\N"`',
    )
    widths = map_of(integer("characters", least=1), called="COLUMN").required(
        "fixed width: characters of each column; blanks around a value are cut, of text only those"
        " behind it",
        'with `kind = "fixed"`',
    )
    encoding = written(
        "a codec of Python",
        _codec,
        lack="is no encoding.",
        wrong="latin-99",
        remedy='Write "utf-8", "cp1252" or "utf-16".',
    ).by_default("utf-8", 'the encoding of texts; `"utf-8-sig"`: UTF-8 with a byte-order mark')
    null = written(
        "a string",
        _null,
        lack="has blanks at its ends, or a line break.",
        wrong=" ",
        pattern=r"^(\S([^\n\r]*\S)?)?$",
        is_any=True,
    ).optional(
        'the text of a NULL; a quoted text is never NULL, so `""` and nothing differ, as'
        " PostgreSQL's COPY writes them"
    )
    decimal = written(
        '`"."` or `","`',
        lambda text: text if text in {".", ","} else None,
        lack="is no decimal sign.",
        wrong=";",
        pattern="^[.,]$",
        remedy='Write "." or ",".',
    ).by_default(".", "the decimal sign; without separators of thousands")
    true = TEXT.by_default("true", "the text of a true value")
    false = TEXT.by_default("false", "the text of a false value")
    header = FLAG.optional(
        "the first line has exactly the names of `columns`", "`true`; fixed width: `false`"
    )
    last_line_end = FLAG.by_default(
        True, "the last line ends as all do; `false`: that of a whole file may lack its line end"
    )


@dataclass(frozen=True, slots=True)
class FileFormat:
    """The notation of a file. `names` and `types` are of its columns, in its order.

    `kind` is one of KINDS. `separator` is one ASCII character; `quote` one, or empty for none.
    `encoding` is a codec of Python. `null` is the text of a NULL, if there are any. `widths` are
    characters of each column (fixed width). `last_line_end`: the last line must end like all.
    `escape`, one of ESCAPES, says how backslashes are read.
    """

    file: str
    kind: str
    names: tuple[str, ...]
    types: tuple[DeclaredType, ...]
    separator: bytes = b","
    quote: bytes = b'"'
    encoding: str = "utf-8"
    null: bytes | None = None
    decimal: str = "."
    truth: tuple[bytes, bytes] = (b"true", b"false")
    header: bool = True
    last_line_end: bool = True
    widths: tuple[int, ...] = ()
    escape: str = "none"


def load(path: Path) -> FileFormat:
    """Read a description. Raises ConfigurationError with the file, the key and what to do."""
    top = read(path, FormatTable)
    kind = top.kind
    if not top.written.get("columns"):
        raise top.error("columns", "No column is named.", 'Write [columns] and id = "int8", ….')
    if kind == "parquet":
        _refuse(top, _TEXT_ONLY, "Parquet says it itself")
    if kind == "fixed":
        _refuse(top, _CSV_ONLY, "a file of fixed width has none")
    if kind == "csv":
        _refuse(top, ("widths",), 'it is for kind = "fixed"')
    header, declared = top.header, top.columns
    return FileFormat(
        file=top.file.name,
        kind=kind,
        names=tuple(declared),
        types=tuple(declared.values()),
        separator=top.separator,
        quote=top.quote,
        encoding=top.encoding,
        null=top.null,
        escape=_escape(top) if kind == "csv" else "none",
        decimal=top.decimal,
        truth=_truth(top),
        header=kind == "csv" if header is None else header,
        last_line_end=top.last_line_end,
        widths=_widths(top, tuple(declared)) if kind == "fixed" else (),
    )


def _refuse(top: FormatTable, keys: tuple[str, ...], why: str) -> None:
    for key in keys:
        if top.has(key):
            raise top.error(key, f"It has no effect: {why}.", "Remove it.")


def _escape(top: FormatTable) -> str:
    """Return how backslashes are read. A NULL that is an escape shows that there are others."""
    escape, null = top.escape, top.null
    if null == b"\\N" and escape is None:
        raise top.error(
            "null",
            "A file with this NULL usually has other escapes behind backslashes, too, which would"
            " be read as they stand.",
            'Write escape = "postgresql" for COPY in text format, escape = "mysql" for OUTFILE and'
            ' mysqldump --tab, or escape = "none" if a backslash is always a backslash.',
        )
    if escape == "postgresql" and top.quote:
        raise top.error("escape", "COPY in text format has no quotes.", 'Write quote = "".')
    if escape == "mysql" and null not in {None, b"\\N"}:
        raise top.error("null", "A NULL of MySQL is \\N.", 'Write null = "\\\\N".')
    return escape or "none"


def _truth(top: FormatTable) -> tuple[bytes, bytes]:
    yes, no = top.true, top.false
    if yes == no:
        raise top.error("false", f"`true` and `false` are both {yes!r}.")
    return yes.encode(), no.encode()


def _widths(top: FormatTable, names: tuple[str, ...]) -> tuple[int, ...]:
    widths = top.widths
    for name in widths:
        if name not in names:
            raise top.error(f"widths.{name}", "There is no such column.", nearest(name, names))
    for name in names:
        if name not in widths:
            raise top.error(f"widths.{name}", "The width of this column is missing.")
    return tuple(widths[name] for name in names)
