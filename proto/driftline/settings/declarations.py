"""Settings of the agents' TOML files: each is declared once, and files are read by that.

A class below `SettingsTable` declares the settings of one table as attributes: what its values are
(a `SettingKind`), its meaning, its default. An attribute of the class is the declaration; of a
table that was read, the value. References, schemas for editors and the comments of `init` are made
of the same declarations. `kinds` has the kinds that several tables use.

An unknown name is refused, with the nearest known one, so a misspelt limit never counts as no
limit. Each error names the file, the setting, what was expected and what was found.

Invariants: relative paths start at the file's folder, not at the working directory. A secret comes
from a file or the environment, never from a command line or a URL, and no message shows one.

Rejected: pydantic (a compiled wheel on the DBA's machine for a hundred settings).
"""

from __future__ import annotations

import difflib
import os
import re
import stat
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import date, time
from pathlib import Path
from typing import ClassVar, Final, Generic, NamedTuple, TypeVar, cast, overload

from driftline.errors import ConfigurationError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
S = TypeVar("S", bound="SettingsTable")

SECRET_BYTES_MAX = 4096  # a password file is one line; anything longer is the wrong file

_DURATION = re.compile("(?:([0-9]{1,6})d)?(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,6})s)?")
_UNITS_S: Final = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")

_KINDS: dict[type, str] = {
    str: "a string",
    bool: "true or false",
    int: "an integer",
    float: "a number",
    list: "a list",
    dict: "a table",
}


@dataclass(frozen=True, slots=True)
class SettingKind(Generic[T_co]):
    """The values that a setting can have, and how a file writes them.

    Attributes:
        label: the values in words, bounds included.
        schema: the same as JSON Schema; of a table, only its type.
        parse: returns what a value under a key of a table means, or raises ConfigurationError.
        unit: of a number.
        table: what declares the settings, if the value is a table of them.
        each: what the values are, if it is a table by free names; `called`: what references call
            such a name.
        wrong: values that `parse` refuses, for references, which show the errors.
    """

    label: str
    schema: Mapping[str, object]
    parse: Callable[[SettingsTable, str, object], T_co]
    unit: str = ""
    table: type[SettingsTable] | None = None
    each: SettingKind[object] | None = None
    called: str = ""
    wrong: tuple[object, ...] = ()

    def then(self, check: Callable[[SettingsTable, str, T_co], T]) -> SettingKind[T]:
        """Return this kind, with what `check` makes of a value in its place."""

        def parse(table: SettingsTable, key: str, value: object) -> T:
            return check(table, key, self.parse(table, key, value))

        return SettingKind(
            self.label,
            self.schema,
            parse,
            self.unit,
            self.table,
            self.each,
            self.called,
            self.wrong,
        )

    def required(self, meaning: str, when: str = "") -> Setting[T_co]:
        """Declare a setting that a file must have; `when`: if something else is so."""
        return Setting(self, meaning, when=when)

    def optional(self, meaning: str, unset: str = "none") -> Setting[T_co | None]:
        """Declare a setting that is None if the file lacks it; `unset` says what that means."""
        return Setting(self, meaning, unset=unset)

    def by_default(self, value: object, meaning: str) -> Setting[T_co]:
        """Declare a setting with a default, given as a file would have it."""
        return Setting(self, meaning, default=value)


@dataclass(frozen=True, slots=True, eq=False)
class Setting(Generic[T_co]):
    """A declared setting: an attribute of a class below `SettingsTable`, by whose name files know
    it.

    `meaning` begins with a clause that can stand alone, up to the first `;` or `.`; it may have
    links of Markdown. For `default`, `unset` and `when` see `SettingKind`: a setting that has
    neither of the first two is required.
    """

    kind: SettingKind[T_co]
    meaning: str
    default: object = None
    unset: str = ""
    when: str = ""
    name: str = field(init=False, default="")

    def __set_name__(self, owner: type[SettingsTable], name: str) -> None:
        object.__setattr__(self, "name", name)

    @overload
    def __get__(self, table: None, owner: type[SettingsTable]) -> Setting[T_co]: ...
    @overload
    def __get__(self, table: SettingsTable, owner: type[SettingsTable]) -> T_co: ...
    def __get__(
        self, table: SettingsTable | None, owner: type[SettingsTable]
    ) -> Setting[T_co] | T_co:
        """Return the value in a table, or the declaration of the class."""
        return self if table is None else self._value(table)

    @property
    def is_required(self) -> bool:
        """True if every file must have it."""
        return self.default is None and not self.unset and not self.when

    @property
    def plain_meaning(self) -> str:
        """The meaning without links."""
        return _LINK.sub(r"\1", self.meaning)

    @property
    def brief(self) -> str:
        """The clause with which the meaning begins."""
        return re.split(r"[;.](?: |$)", self.plain_meaning)[0]

    def line(self, value: str, note: str = "") -> str:
        """Return a line of a file: a value as the file has it, and what the setting means, or a
        note in its place."""
        return f"{f'{self.name} = {value}':<35} # {note or self.brief}"

    def _value(self, table: SettingsTable) -> T_co:
        value = table.written.get(self.name, self.default)
        if value is not None:
            return self.kind.parse(table, self.name, value)
        if self.unset:
            return cast("T_co", None)  # which `SettingKind.optional` says
        if self.kind.table is not None:
            name = table.below(self.name)
            raise ConfigurationError(
                f"There is no [{name}].", where=table.place(), remedy="Add the table."
            )
        message = f"The setting is missing; it is {self.kind.label}."
        raise table.error(self.name, message, f"Add `{self.name} = …`.")


@dataclass(frozen=True, slots=True)
class SettingsTable:
    """One table of a file. A class below this one declares the settings.

    To read an attribute raises ConfigurationError if the value has the wrong type, is out of bounds
    or is missing; to make a table, if it has a name that is not declared.
    """

    declared: ClassVar[Mapping[str, Setting[object]]] = {}  # by name, the class's own ones first

    file: Path
    name: str
    written: Mapping[str, object]

    def __init_subclass__(cls) -> None:
        settings: dict[str, Setting[object]] = {}
        for one in cls.__mro__:
            for name, value in vars(one).items():
                if isinstance(value, Setting):
                    settings.setdefault(name, value)
        assert not any(hasattr(SettingsTable, name) for name in settings), (
            "the name of an attribute"
        )
        cls.declared = settings

    def __post_init__(self) -> None:
        known = self.declared
        for key in self.written:
            if key not in known:
                raise self.error(key, f"There is no setting {key!r} here.", nearest(key, known))

    def place(self, key: str = "") -> str:
        """Return the place of a setting, such as `source.toml: server.listen`, or of the table."""
        dotted = ".".join(part for part in (self.name, key) if part)
        return f"{self.file.name}: {dotted}" if dotted else self.file.name

    def below(self, key: str) -> str:
        """Return the name of the table below `key`."""
        key = key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else f'"{key}"'
        return f"{self.name}.{key}" if self.name else key

    def error(self, key: str, message: str, remedy: str = "") -> ConfigurationError:
        """Return an error about the value of `key`."""
        return ConfigurationError(message, where=self.place(key), remedy=remedy)

    def has(self, key: str) -> bool:
        """Return True if the file has the setting."""
        assert key in self.declared, f"{key} is not declared"
        return key in self.written

    def typed(self, key: str, value: object, kind: type[T]) -> T:
        """Return a value of this type of TOML; raise ConfigurationError for one of another."""
        accepted = (int, float) if kind is float else (kind,)
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            # A text where a text, a list or a table belongs may be a secret, as a URL holds one.
            is_shown = kind in (bool, int, float) or not _has_text(value)
            actual = shown(value) if is_shown else kind_of(value)
            raise self.error(key, f"It must be {_KINDS[kind]}, not {actual}.")
        return cast("T", value)  # an int where a float was asked for


def read(path: Path, kind: type[S]) -> S:
    """Return the top level of a file; raise ConfigurationError if the file is missing, is not
    TOML, or holds a name that `kind` does not declare."""
    try:
        values = tomllib.loads(path.read_bytes().decode())
    except FileNotFoundError:
        raise ConfigurationError(
            f"There is no file {path}.",
            remedy="Name it with --config FILE, or write one with `init`.",
        ) from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"It is not UTF-8: byte {error.start} is no character.", where=path.name
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"It is not TOML: {error}.", where=path.name) from None
    except RecursionError:
        raise ConfigurationError("It is nested too deep.", where=path.name) from None
    return kind(path.absolute(), "", values)


def nearest(name: str, known: Collection[str]) -> str:
    """Return a sentence with the known name nearest to `name`, else with all of them."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"Known: {', '.join(sorted(known))}." if known else "None are known here."


def duration_s(text: str) -> int | None:
    """Return a duration, such as `2h`, `1h30m` or `0s`, in seconds; None: it is none."""
    match = _DURATION.fullmatch(text)
    if match is None or not text:
        return None
    return sum(int(a or 0) * b for a, b in zip(match.groups(), _UNITS_S.values(), strict=True))


def in_units(seconds: int) -> str:
    """Return a duration as a file has it."""
    parts = []
    for unit, size in _UNITS_S.items():
        amount, seconds = divmod(seconds, size)
        if amount:
            parts.append(f"{amount}{unit}")
    return "".join(parts) or "0s"


def password(file: Path | None, secret: str, where: str) -> str | None:
    """Return the password in a file, which others must not be able to read, else the one in
    DRIFTLINE_PASSWORD_<SECRET>. Raises ConfigurationError; `where`: who names the file."""
    if file is None:
        return os.environ.get(environment_name(secret))
    try:
        data, exposed = read_secret(file, SECRET_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigurationError(
            f"The password file {file} cannot be read: {error.strerror}.", where=where
        ) from None
    if exposed:
        raise ConfigurationError(
            f"The password file {file} {exposed}.", where=where, remedy=f"Run: chmod 600 {file}"
        )
    if len(data) > SECRET_BYTES_MAX:
        raise ConfigurationError(f"{file} holds more than {SECRET_BYTES_MAX} bytes.", where=where)
    try:
        return data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise ConfigurationError(f"The password in {file} is not UTF-8.", where=where) from None


def read_secret(path: Path, bytes_max: int = -1) -> tuple[bytes, str]:
    """Return the bytes of a secret file, and how others can read it ("" if they cannot). As with
    libpq's keys, only the owner may, and if that is root, also the file's group."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        data = file.read(bytes_max)
    refused = stat.S_IRWXO | stat.S_IRWXG
    if status.st_uid == 0:
        refused = stat.S_IRWXO | stat.S_IWGRP | stat.S_IXGRP
    mode = stat.S_IMODE(status.st_mode)
    exposed = f"is open to others than its owner (mode {mode:04o})" if mode & refused else ""
    return data, exposed


def resolve(file: Path, value: str) -> Path:
    """Return a path of a file: relative to the file's folder; `~` is the home folder.

    Raises ConfigurationError for one that no file can have.
    """
    if "\0" in value:
        raise ConfigurationError(f"{value!r} is no path: it holds a NUL.", where=file.name)
    try:
        return Path(os.path.normpath(file.parent / Path(value).expanduser()))
    except RuntimeError:
        raise ConfigurationError(
            f"{value!r} begins with the home folder of a user who has none.",
            where=file.name,
            remedy="Write the whole path.",
        ) from None


def environment_name(secret: str) -> str:
    """Return the name of the variable that may hold the password of `secret`."""
    return "DRIFTLINE_PASSWORD_" + re.sub(r"[^A-Z0-9]", "_", secret.upper())


def is_loopback(host: str) -> bool:
    """Return True if a host, as written in an address, is certainly this machine's loopback."""
    return host in {"localhost", "::1"} or re.fullmatch(r"127(\.\d{1,3}){3}", host) is not None


class Address(NamedTuple):
    """A host, without brackets, a port, and how a file has them: `[::1]:7443`."""

    host: str
    port: int
    text: str


def address_parts(value: str) -> Address | None:
    """Return the parts of `HOST:PORT`, or None for any other text."""
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:/\[\]\s]+):(\d{1,5})", value)
    if match is None or int(match[2]) > 65535:
        return None
    host = match[1].strip("[]")
    try:
        host.encode("idna")  # as the socket module does, which would raise the same
    except UnicodeError:
        return None
    return Address(host, int(match[2]), value)


def shown(value: object) -> str:
    """Return a value, and what it is, for an error."""
    text = as_toml(value)
    return f"{kind_of(value)} ({text if len(text) <= 40 else text[:39] + '…'})"


def _has_text(value: object) -> bool:
    """Return True if a value of TOML is a text, or holds one."""
    if isinstance(value, list | dict):
        return any(map(_has_text, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str)


def kind_of(value: object) -> str:
    """Return what a value is, without the value, for an error."""
    return _KINDS.get(type(value), f"a {type(value).__name__}")


def as_toml(value: object) -> str:
    """Return a value about as the file has it."""
    match value:
        case bool():
            return str(value).lower()
        case date() | time():  # a datetime is a date, too
            return value.isoformat()
        case list():
            return f"[{', '.join(map(as_toml, value))}]"
        case dict():
            return f"{{{', '.join(f'{k} = {as_toml(v)}' for k, v in value.items())}}}"
        case int():
            return hex(value) if value.bit_length() > 128 else str(value)  # str() has a limit
        case _:
            return repr(value)
