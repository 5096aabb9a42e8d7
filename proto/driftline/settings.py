"""Strict reading of the two agents' TOML files.

The reader of a table lists its keys. An unknown key is refused, with the nearest known one, so a
misspelt limit never counts as no limit. Each error names the file, the key, what was expected and
what was found. `config` of either agent puts the values into frozen dataclasses.

Invariants: relative paths start at the file's folder, not at the working directory. A secret comes
from a file or the environment, never from a command line or a URL, and no message shows one.

Rejected: pydantic (a compiled wheel on the DBA's machine for forty keys).
"""

from __future__ import annotations

import difflib
import math
import os
import re
import stat
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date, time
from pathlib import Path
from typing import Final, TypeVar

from driftline.errors import ConfigurationError

T = TypeVar("T")

SECRET_BYTES_MAX = 4096  # a password file is one line; anything longer is the wrong file

# `user:password@` as SQLAlchemy reads it, and the query parameters in which drivers take passwords.
URL_PASSWORDS: Final = (
    *("password", "passwd", "pwd", "passfile"),
    *("sslpassword", "ssl_key_password"),  # of a key file
)
_URL_PASSWORD = re.compile(rf"://[^:/]*:[^@]+@|[?&;](?:{'|'.join(URL_PASSWORDS)})=", re.I)

_DURATION = re.compile("(?:([0-9]{1,6})d)?(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,6})s)?")
_UNITS_S = (86_400, 3600, 60, 1)

_KINDS: dict[type, str] = {
    str: "a string",
    bool: "true or false",
    int: "an integer",
    float: "a number",
    list: "a list",
    dict: "a table",
}


def read(path: Path, keys: Collection[str]) -> TomlTable:
    """Return the top level of a file; raise ConfigurationError if the file is missing, is not
    TOML, or holds a key that is not among `keys`."""
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
    return TomlTable(path.absolute(), "", values, keys)


def nearest(name: str, known: Collection[str]) -> str:
    """Return a sentence with the known name nearest to `name`, else with all of them."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"Known: {', '.join(sorted(known))}." if known else "None are known here."


@dataclass(frozen=True, slots=True)
class TomlTable:
    """One table of a file, which may hold only `keys`; None allows any.

    Getters raise ConfigurationError if a value has the wrong type, is out of bounds or is missing.
    """

    file: Path
    name: str
    values: Mapping[str, object]
    keys: Collection[str] | None

    def __post_init__(self) -> None:
        if self.keys is None:
            return
        for key in self.values:
            if key not in self.keys:
                raise self.error(key, f"There is no setting {key!r} here.", nearest(key, self.keys))

    def where(self, key: str = "") -> str:
        """Return the place of a key, such as `source.toml: server.listen`, or of the table."""
        dotted = ".".join(part for part in (self.name, key) if part)
        return f"{self.file.name}: {dotted}" if dotted else self.file.name

    def error(self, key: str, message: str, remedy: str = "") -> ConfigurationError:
        """Return an error about the value of `key`."""
        return ConfigurationError(message, where=self.where(key), remedy=remedy)

    def has(self, key: str) -> bool:
        """Return True if the file has the key."""
        return key in self.values

    def text(self, key: str, *, default: str | None = None) -> str:
        """Return a string; it is required if there is no default."""
        value = self.optional_text(key)
        value = default if value is None else value
        if value is None:
            raise self.error(key, "The setting is missing; it is a string.", f"Add `{key} = …`.")
        return value

    def optional_text(self, key: str) -> str | None:
        """Return a string that is not empty, or None."""
        value = self._get(key, str)
        if value == "":
            raise self.error(key, "It is empty.", "Remove the line or give it a value.")
        return value

    def flag(self, key: str) -> bool:
        """Return a truth value, False by default."""
        return bool(self._get(key, bool))

    def integer(self, key: str, *, default: int, least: int | None) -> int:
        """Return an integer that is at least `least`; None: any."""
        value = self._get(key, int)
        if value is not None and least is not None and value < least:
            raise self.error(key, f"It must be at least {least}, not {value}.")
        return default if value is None else value

    def optional_number(self, key: str) -> float | None:
        """Return a positive finite number, or None."""
        value = self._get(key, float)
        if value is not None and not 0 < value < math.inf:
            raise self.error(key, f"It must be more than 0 and finite, not {value:.15g}.")
        return value

    def number(self, key: str, *, default: float) -> float:
        """Return a positive finite number."""
        value = self.optional_number(key)
        return default if value is None else value

    def number_or(self, key: str, word: str, *, default: float) -> float | None:
        """Return a positive finite number, or None if the value is this word."""
        if isinstance(self.values.get(key), str):
            if self._get(key, str) != word:
                raise self.error(key, f'It must be a number or "{word}".')
            return None
        return self.number(key, default=default)

    def texts(self, key: str) -> tuple[str, ...] | None:
        """Return a list of different strings, none of them empty, or None."""
        value = self._get(key, list)
        if value is None:
            return None
        for number, item in enumerate(value, start=1):
            if not isinstance(item, str) or not item:
                raise self.error(key, f"Item {number} must be a string, not {_shown(item)}.")
            if value.count(item) > 1:
                raise self.error(key, f"{item!r} stands in the list twice.")
        return tuple(value)

    def text_map(self, key: str) -> dict[str, str]:
        """Return a table of strings by free names."""
        table = self.table(key, None, required=False)
        return {name: table.text(name) for name in table.values}

    def path(self, key: str) -> Path:
        """Return a path, as `resolve` reads it."""
        return resolve(self.file, self.text(key))

    def optional_path(self, key: str) -> Path | None:
        """Return a path, as `resolve` reads it, or None."""
        value = self.optional_text(key)
        return None if value is None else resolve(self.file, value)

    def table(self, key: str, keys: Collection[str] | None, *, required: bool = True) -> TomlTable:
        """Return the table below `key`. If it is missing, return an empty one, or raise
        ConfigurationError if it is required."""
        value = self._get(key, dict)
        if value is None and required:
            raise ConfigurationError(
                f"There is no [{self._below(key)}].", where=self.where(), remedy="Add the table."
            )
        return TomlTable(self.file, self._below(key), value or {}, keys)

    def tables(self, key: str, keys: Collection[str]) -> dict[str, TomlTable]:
        """Return the tables `[key.NAME]` by NAME, in the order of the file."""
        outer = self.table(key, None, required=False)
        return {name: outer.table(name, keys) for name in outer.values}

    def password(self, key: str, secret: str) -> str | None:
        """Return the password in the file that `key` names, which others must not be able to read,
        else the one in DRIFTLINE_PASSWORD_<SECRET>."""
        path = self.optional_path(key)
        if path is None:
            return os.environ.get(environment_name(secret))
        try:
            data, exposed = read_secret(path, SECRET_BYTES_MAX + 1)
        except OSError as error:
            message = f"The password file {path} cannot be read: {error.strerror}."
            raise self.error(key, message) from None
        if exposed:
            raise self.error(key, f"The password file {path} {exposed}.", f"Run: chmod 600 {path}")
        if len(data) > SECRET_BYTES_MAX:
            raise self.error(key, f"{path} holds more than {SECRET_BYTES_MAX} bytes.")
        try:
            return data.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise self.error(key, f"The password in {path} is not UTF-8.") from None

    def url(self, key: str, secret: str) -> str:
        """Return a URL; one with a password in it is refused."""
        value = self.text(key)
        if _URL_PASSWORD.search(value):
            raise self.error(
                key,
                "The URL holds a password, which would end up in copies and logs of this file.",
                "Remove it from the URL and put it alone into a file named by `password_file`, "
                f"or into the environment variable {environment_name(secret)}. A TLS key must have "
                "no passphrase.",
            )
        return value

    def _below(self, key: str) -> str:
        key = key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else f'"{key}"'
        return f"{self.name}.{key}" if self.name else key

    def _get(self, key: str, kind: type[T]) -> T | None:
        assert self.keys is None or key in self.keys, f"{key} is read but not listed"
        value = self.values.get(key)
        if value is None:
            return None
        accepted = (int, float) if kind is float else (kind,)
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            raise self.error(key, f"It must be {_KINDS[kind]}, not {_shown(value)}.")
        return value  # type: ignore[return-value]  # an int where a float was asked for


def duration_s(text: str) -> int | None:
    """Return a duration, such as `2h`, `1h30m` or `0s`, in seconds; None: it is none."""
    found = _DURATION.fullmatch(text)
    if found is None or not text:
        return None
    return sum(int(a or 0) * b for a, b in zip(found.groups(), _UNITS_S, strict=True))


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


def split_address(table: TomlTable, key: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT` under `key`; IPv6 is written `[::1]:7443`."""
    value = table.text(key)
    found = address_parts(value)
    if found is None:
        raise table.error(
            key,
            f"{value!r} is not an address.",
            "Write HOST:PORT, such as 127.0.0.1:7443; between two dots of HOST are 1 to 63 "
            "characters.",
        )
    return found


def address_parts(value: str) -> tuple[str, int] | None:
    """Return host, without brackets, and port of `HOST:PORT`, or None for any other text."""
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:/\[\]\s]+):(\d{1,5})", value)
    if match is None or int(match[2]) > 65535:
        return None
    host = match[1].strip("[]")
    try:
        host.encode("idna")  # as the socket module does, which would raise the same
    except UnicodeError:
        return None
    return host, int(match[2])


def _shown(value: object) -> str:
    kind = _KINDS.get(type(value), f"a {type(value).__name__}")
    text = _as_toml(value)
    return f"{kind} ({text if len(text) <= 40 else text[:39] + '…'})"


def _as_toml(value: object) -> str:
    """Return a value about as the file has it."""
    match value:
        case bool():
            return str(value).lower()
        case date() | time():  # a datetime is a date, too
            return value.isoformat()
        case list():
            return f"[{', '.join(map(_as_toml, value))}]"
        case dict():
            return f"{{{', '.join(f'{k} = {_as_toml(v)}' for k, v in value.items())}}}"
        case int():
            return hex(value) if value.bit_length() > 128 else str(value)  # str() has a limit
        case _:
            return repr(value)
