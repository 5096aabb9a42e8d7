"""Kinds of values that settings of several tables have: how they are checked, bounds included.

A bound stands once, in the arguments of a kind: the check, its error, the reference's words and the
schema for editors are made of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import unquote_plus
from zoneinfo import ZoneInfo

from driftline.errors import MalformedMessage
from driftline.settings.declarations import (
    SettingKind,
    SettingsTable,
    address_parts,
    as_toml,
    duration_s,
    environment_name,
    in_units,
    nearest,
    resolve,
    shown,
)
from driftline.values.types import DeclaredType, parse_type

T = TypeVar("T")
U = TypeVar("U")
E = TypeVar("E", bound=Enum)
S = TypeVar("S", bound=SettingsTable)

# `user:password@` as SQLAlchemy reads it, and parameters in which drivers take passwords, also of a
# key file, of a wallet, or within a string of ODBC. They are named alike, and a new driver's too.
_USER_PASSWORD = re.compile(r"://[^:/]*:[^@]+@")
_PASSWORD_PARAMETER = re.compile(
    r"[?&;={]\s*[\w.-]*(?:pass|pwd|secret|token|credential)[\w.-]*\s*=", re.I
)
_NO_VALUE: Final = "Remove the line or give it a value."


def _text(table: SettingsTable, key: str, value: object) -> str:
    if not (text := table.typed(key, value, str)):
        raise table.error(key, "It is empty.", _NO_VALUE)
    return text


def _flag(table: SettingsTable, key: str, value: object) -> bool:
    return table.typed(key, value, bool)


def _path(table: SettingsTable, key: str, value: object) -> Path:
    return resolve(table.file, _text(table, key, value))


TEXT: Final = SettingKind("a string", {"type": "string", "minLength": 1}, _text, wrong=("",))
FLAG: Final = SettingKind("`true` or `false`", {"type": "boolean"}, _flag, wrong=("yes",))
PATH: Final = SettingKind("a path", TEXT.schema, _path, wrong=("",))


def integer(unit: str, *, least: int | None = None) -> SettingKind[int]:
    """Return the kind of integers that are at least `least`; None: any."""

    def parse(table: SettingsTable, key: str, value: object) -> int:
        number = table.typed(key, value, int)
        if least is not None and number < least:
            raise table.error(key, f"It must be at least {least}, not {as_toml(number)}.")
        return number

    if least is None:
        return SettingKind(f"an integer: {unit}", {"type": "integer"}, parse, unit, wrong=(1.5,))
    label = f"an integer: {unit}, at least {least:,}"
    schema = {"type": "integer", "minimum": least}
    return SettingKind(label, schema, parse, unit, wrong=(least - 1,))


def number(unit: str, *, most: float | None = None, why: str = "") -> SettingKind[float]:
    """Return the kind of positive finite numbers, up to `most`, for the reason `why`."""

    def parse(table: SettingsTable, key: str, value: object) -> float:
        parsed = table.typed(key, value, float)
        if not 0 < parsed < math.inf:
            raise table.error(key, f"It must be more than 0 and finite, not {as_toml(parsed)}.")
        if most is not None and parsed > most:
            raise table.error(key, why, f"Write at most {most:g}.")
        return parsed

    schema: dict[str, object] = {"type": "number", "exclusiveMinimum": 0}
    label = f"a number: {unit}, more than 0"
    if most is None:
        return SettingKind(label, schema, parse, unit, wrong=(0,))
    label = f"{label}, at most {most:,g}"
    return SettingKind(label, schema | {"maximum": most}, parse, unit, wrong=(0, int(2 * most)))


def or_word(
    kind: SettingKind[T], word: str, meant: U, what: str, remedy: str = ""
) -> SettingKind[T | U]:
    """Return a kind whose values may also be one word; `what` names the others in the error."""

    def parse(table: SettingsTable, key: str, value: object) -> T | U:
        if not isinstance(value, str):
            return kind.parse(table, key, value)
        if value != word:
            raise table.error(key, f'{value!r} is neither {what} nor "{word}".', remedy)
        return meant

    schema = {"anyOf": [kind.schema, {"const": word}]}
    label, wrong = f'{kind.label}; or `"{word}"`', (*kind.wrong[:1], word[:-1])
    return SettingKind(label, schema, parse, kind.unit, wrong=wrong)


def choice(kind: type[E]) -> SettingKind[E]:
    """Return the kind of the members of an enumeration, by their values."""
    return one_of({str(member.value): member for member in kind})


def one_of(known: Mapping[str, T]) -> SettingKind[T]:
    """Return the kind of values that have these names."""

    def parse(table: SettingsTable, key: str, value: object) -> T:
        text = _text(table, key, value)
        if text not in known:
            message = f"{text!r} is not one of {', '.join(known)}."
            raise table.error(key, message, nearest(text, known))
        return known[text]

    label = ", ".join(f'`"{name}"`' for name in known)
    wrong = next(iter(known))[:-1]
    assert wrong not in known, "it is to be a wrong one"
    return SettingKind(label, {"type": "string", "enum": list(known)}, parse, wrong=(wrong,))


def written(
    label: str,
    read: Callable[[str], T | None],
    *,
    lack: str,
    wrong: str,
    remedy: str = "",
    pattern: str = "",
    is_any: bool = False,
) -> SettingKind[T]:
    """Return the kind of texts that `read` understands; of others, such as `wrong`, the error says
    `lack`. All that it understands match `pattern`, for editors. With `is_any` it is asked about an
    empty text, too."""

    def parse(table: SettingsTable, key: str, value: object) -> T:
        text = table.typed(key, value, str) if is_any else _text(table, key, value)
        parsed = read(text)
        if parsed is None:
            raise table.error(key, f"{shown_text(text)} {lack}", remedy)
        return parsed

    schema = {"type": "string"} if is_any else dict(TEXT.schema)
    if pattern:
        schema["pattern"] = pattern
    return SettingKind(label, schema, parse, wrong=(wrong,))


ADDRESS: Final = written(
    "`HOST:PORT`",
    address_parts,
    lack="is not an address.",
    wrong="127.0.0.1",
    pattern=r"^\S+:\S{1,5}$",
    remedy="Write HOST:PORT, such as 127.0.0.1:7443; between two dots of HOST are 1 to 63 "
    "characters.",
)


def _zone(name: str) -> str | None:
    try:
        return ZoneInfo(name).key
    except (ValueError, OSError, LookupError):
        return None


ZONE: Final = written(
    "a time zone",
    _zone,
    lack="is no time zone.",
    wrong="Vienna",
    remedy='Write it like "Europe/Vienna" or "UTC".',
)
_DURATION: Final = "([0-9]{1,6}d)?([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$"


def duration(*, least: int = 1, most: int | None = None, why: str = "") -> SettingKind[int]:
    """Return the kind of durations such as `1h30m`, in seconds, up to `most` for the reason."""

    def parse(table: SettingsTable, key: str, value: object) -> int:
        text = _text(table, key, value)
        seconds = duration_s(text)
        if seconds is None or seconds < least:
            message = f"{text!r} is no duration."
            raise table.error(key, message, "Write it like 90s, 15m, 1h30m or 1d.")
        if most is not None and seconds > most:
            raise table.error(key, why, f"Write {in_units(most)} or less.")
        return seconds

    label = 'a duration such as `"15m"`'
    wrong = ["1 hour"] if least == 0 else ["1 hour", "0s"]
    if most is not None:
        label += f', at most `"{in_units(most)}"`'
        wrong.append(in_units(2 * most))
    pattern = f"^(?=.){_DURATION}" if least == 0 else f"^(?=.*[1-9]){_DURATION}"
    schema = {"type": "string", "pattern": pattern}
    return SettingKind(label, schema, parse, wrong=tuple(wrong))


def holds_password(url: str) -> bool:
    """Return True if a URL may hold a password, however it is escaped."""
    decoded = unquote_plus(unquote_plus(url))  # a string of ODBC is escaped within the URL
    return bool(_USER_PASSWORD.search(url) or _PASSWORD_PARAMETER.search(decoded))


def shown_text(text: str) -> str:
    """Return a text of a configuration for an error, in quotes; `It` for one that may hold a
    password, such as `s3://KEY:SECRET@bucket`."""
    return "It" if "@" in text or holds_password(text) else repr(text)


def url(secret: str) -> SettingKind[str]:
    """Return the kind of URLs, without a password, which is that of `secret`."""

    def parse(table: SettingsTable, key: str, value: object) -> str:
        text = _text(table, key, value)
        if holds_password(text):
            raise table.error(
                key,
                "The URL holds a password, which would end up in copies and logs of this file.",
                "Remove it from the URL and put it alone into a file named by `password_file`, "
                f"or into the environment variable {environment_name(secret)}. A TLS key must have "
                "no passphrase.",
            )
        return text

    return SettingKind("a URL", TEXT.schema, parse, wrong=("postgresql://me:secret@host/erp",))


def list_of(kind: SettingKind[T], label: str, *, least: int = 0) -> SettingKind[tuple[T, ...]]:
    """Return the kind of lists of different texts, each of this kind; with `least` 1, not empty."""

    def parse(table: SettingsTable, key: str, value: object) -> tuple[T, ...]:
        items = table.typed(key, value, list)
        if len(items) < least:
            raise table.error(key, "It is an empty list.", _NO_VALUE)
        for number, item in enumerate(items, start=1):
            if not isinstance(item, str) or not item:
                raise table.error(key, f"Item {number} must be a string, not {shown(item)}.")
            if items.count(item) > 1:
                raise table.error(key, f"{item!r} stands in the list twice.")
        return tuple(kind.parse(table, key, item) for item in items)

    schema = {"type": "array", "items": kind.schema, "uniqueItems": True, "minItems": least}
    wrong = [["id", "id"]] if kind is TEXT else [[one] for one in kind.wrong]
    return SettingKind(label, schema, parse, wrong=tuple(wrong if least == 0 else [[], *wrong]))


class _FreeTable(SettingsTable):
    """A table whose names are free."""

    def __post_init__(self) -> None:
        """Refuse no name."""


def map_of(kind: SettingKind[T], *, called: str = "NAME") -> SettingKind[dict[str, T]]:
    """Return the kind of tables by free names, in the order of the file."""

    def parse(table: SettingsTable, key: str, value: object) -> dict[str, T]:
        inner = _FreeTable(table.file, table.below(key), table.typed(key, value, dict))
        return {name: kind.parse(inner, name, one) for name, one in inner.written.items()}

    schema = {"type": "object"}
    return SettingKind("a table", schema, parse, each=kind, called=called, wrong=("yes",))


def table_of(declared: type[S]) -> SettingKind[S]:
    """Return the kind of the tables whose settings a class declares."""

    def parse(table: SettingsTable, key: str, value: object) -> S:
        return declared(table.file, table.below(key), table.typed(key, value, dict))

    return SettingKind("a table", {"type": "object"}, parse, table=declared, wrong=("yes",))


def _column_type(table: SettingsTable, key: str, value: object) -> DeclaredType:
    try:
        return parse_type(_text(table, key, value))
    except MalformedMessage as error:
        raise table.error(key, error.message, "See docs/types.md.") from None


COLUMN_TYPE: Final = SettingKind("a declared type", TEXT.schema, _column_type, wrong=("integer",))
