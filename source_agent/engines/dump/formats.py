"""Dump files: the DBA's description of a file's columns and notation, a TOML file of its own.

Invariant: nothing of it is guessed. Columns and types are named, a value is NULL only if it is the
declared text, and what is not declared has the one default that docs/dba-guide.md gives.
"""

from __future__ import annotations

import codecs
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from driftline.errors import MalformedMessage
from driftline.settings import TomlTable, nearest, read
from driftline.types import DeclaredType, parse_type

_KEYS: Final = (
    "kind", "separator", "quote", "encoding", "null", "decimal", "true", "false", "header",
    "last_line_end", "columns", "widths", "escape",
)  # fmt: skip
_CSV_ONLY: Final = ("separator", "quote", "escape")
_TEXT_ONLY: Final = (
    *_CSV_ONLY, "encoding", "null", "decimal", "true", "false", "header", "last_line_end", "widths",
)  # fmt: skip
_SEPARATORS: Final = frozenset(",;|\t:!#$%&*/@^_~\x01\x1c\x1d\x1e\x1f")
_SIGNS: Final = (".", ",")
ESCAPES: Final = ("none", "postgresql", "mysql")
KINDS: Final = ("csv", "fixed", "parquet")


@dataclass(frozen=True, slots=True)
class Format:
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


def load(path: Path) -> Format:
    """Read a description. Raises ConfigurationError with the file, the key and what to do."""
    top = read(path, _KEYS)
    kind = top.text("kind", default="csv")
    if kind not in KINDS:
        raise top.error("kind", f"{kind!r} is no kind of file.", nearest(kind, KINDS))
    declared = top.text_map("columns")
    if not declared:
        raise top.error("columns", "No column is named.", 'Write [columns] and id = "int8", ….')
    if kind == "parquet":
        _refuse(top, _TEXT_ONLY, "Parquet says it itself")
    if kind == "fixed":
        _refuse(top, _CSV_ONLY, "a file of fixed width has none")
    if kind == "csv":
        _refuse(top, ("widths",), 'it is for kind = "fixed"')
    return Format(
        file=top.file.name,
        kind=kind,
        names=tuple(declared),
        types=tuple(_type(top, name, text) for name, text in declared.items()),
        separator=_character(top, "separator", ","),
        quote=_character(top, "quote", '"'),
        encoding=_encoding(top),
        null=_null(top),
        escape=_escape(top) if kind == "csv" else "none",
        decimal=_decimal(top),
        truth=_truth(top),
        header=_flag(top, "header", default=kind == "csv"),
        last_line_end=_flag(top, "last_line_end", default=True),
        widths=_widths(top, tuple(declared)) if kind == "fixed" else (),
    )


def _refuse(top: TomlTable, keys: tuple[str, ...], why: str) -> None:
    for key in keys:
        if top.has(key):
            raise top.error(key, f"It has no effect: {why}.", "Remove it.")


def _type(top: TomlTable, name: str, text: str) -> DeclaredType:
    try:
        return parse_type(text)
    except MalformedMessage as error:
        raise top.error(f"columns.{name}", error.message, "See docs/types.md.") from None


def _character(top: TomlTable, key: str, default: str) -> bytes:
    if key == "quote" and top.values.get(key) == "":
        return b""
    text = top.text(key, default=default)
    allowed = _SEPARATORS if key == "separator" else {'"', "'"}
    if text not in allowed:
        shown = ", ".join(sorted(ascii(c) for c in allowed))
        raise top.error(key, f"{text!r} is not allowed.", f"Write one of {shown}.")
    return text.encode()


def _encoding(top: TomlTable) -> str:
    name = top.text("encoding", default="utf-8")
    try:
        found = codecs.lookup(name).name
        io.TextIOWrapper(io.BytesIO(), encoding=found)  # refuses codecs of bytes, such as zlib
    except LookupError:
        raise top.error(
            "encoding", f"{name!r} is no encoding.", 'Write "utf-8", "cp1252" or "utf-16".'
        ) from None
    return found


def _null(top: TomlTable) -> bytes | None:
    text = top.values.get("null")
    if text == "":
        return b""
    if text is None:
        return None
    found = top.text("null")
    if found != found.strip() or "\n" in found or "\r" in found:
        raise top.error("null", "It has blanks at its ends, or a line break.")
    return found.encode()


def _escape(top: TomlTable) -> str:
    """Return how backslashes are read. A NULL that is an escape shows that there are others."""
    if top.values.get("null") == "\\N" and not top.has("escape"):
        raise top.error(
            "null",
            "A file with this NULL usually has other escapes behind backslashes, too, which would"
            " be read as they stand.",
            'Write escape = "postgresql" for COPY in text format, escape = "mysql" for OUTFILE and'
            ' mysqldump --tab, or escape = "none" if a backslash is always a backslash.',
        )
    found = top.text("escape", default="none")
    if found not in ESCAPES:
        raise top.error("escape", f"{found!r} is no kind of escapes.", nearest(found, ESCAPES))
    if found == "postgresql" and top.values.get("quote") != "":
        raise top.error("escape", "COPY in text format has no quotes.", 'Write quote = "".')
    if found == "mysql" and top.values.get("null", "\\N") != "\\N":
        raise top.error("null", "A NULL of MySQL is \\N.", 'Write null = "\\\\N".')
    return found


def _decimal(top: TomlTable) -> str:
    sign = top.text("decimal", default=".")
    if sign not in _SIGNS:
        raise top.error("decimal", f"{sign!r} is no decimal sign.", 'Write "." or ",".')
    return sign


def _truth(top: TomlTable) -> tuple[bytes, bytes]:
    yes, no = top.text("true", default="true"), top.text("false", default="false")
    if yes == no:
        raise top.error("false", f"`true` and `false` are both {yes!r}.")
    return yes.encode(), no.encode()


def _flag(top: TomlTable, key: str, *, default: bool) -> bool:
    return top.flag(key) if top.has(key) else default


def _widths(top: TomlTable, names: tuple[str, ...]) -> tuple[int, ...]:
    table = top.table("widths", names)
    for name in names:
        if not table.has(name):
            raise table.error(name, "The width of this column is missing.")
    return tuple(table.integer(name, default=0, least=1) for name in names)
