"""Strict reading of the two agents' TOML files.

A typed reader over `tomllib`: what a table may hold is said once, where it is read; a key that is
not in that list is refused with the nearest one that is, so that a misspelt limit never passes for
no limit. Every refusal says the file, the key, what was expected and what stands there.

Invariants: relative paths are those of the file's folder, never of the working directory. A secret
comes from a file or the environment, never from a command line or a URL, and no message shows one.

This is not a schema language: it returns values, and `configure` of either agent puts them into
frozen dataclasses. Rejected: pydantic (a compiled wheel on the DBA's machine for forty keys).
"""

from __future__ import annotations

import difflib
import os
import re
import stat
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from driftline.errors import ConfigurationError

T = TypeVar("T")

SECRET_BYTES_MAX = 4096  # a password file is one line; anything longer is the wrong file
_ENVIRONMENT = "DRIFTLINE_PASSWORD_"

# `user:password@` as SQLAlchemy reads it, and the query parameters that drivers take for one.
URL_PASSWORDS: Final = (
    *("password", "passwd", "pwd", "passfile"),
    *("sslpassword", "ssl_key_password"),  # of a key file, which needs none
)
_URL_PASSWORD = re.compile(rf"://[^:/]*:[^@]+@|[?&;](?:{'|'.join(URL_PASSWORDS)})=", re.I)

_KINDS: dict[type, str] = {
    str: "a string",
    bool: "true or false",
    int: "an integer",
    float: "a number",
    list: "a list",
    dict: "a table",
}


def read(path: Path, keys: Collection[str]) -> TomlTable:
    """The file's top level, which may hold `keys` and nothing else.

    Raises:
        ConfigurationError: no such file, not TOML (with the line), or an unknown key.
    """
    path = Path(path)
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
    return TomlTable(path.absolute(), "", values, keys)


def nearest(name: str, known: Collection[str]) -> str:
    """A sentence for someone who wrote `name`: the nearest known name, else all of them."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"Known: {', '.join(sorted(known))}." if known else "None are known here."


@dataclass(frozen=True, slots=True)
class TomlTable:
    """One table of a file. `keys` is all it may hold; None leaves its names free.

    Getters without a default refuse a key that is missing; `default=None` makes it optional.
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
        """Such as `source.toml: server.listen`, or the place of the table itself."""
        dotted = ".".join(part for part in (self.name, key) if part)
        return f"{self.file.name}: {dotted}" if dotted else self.file.name

    def error(self, key: str, message: str, remedy: str = "") -> ConfigurationError:
        """A refusal of what stands under `key`."""
        return ConfigurationError(message, where=self.where(key), remedy=remedy)

    def has(self, key: str) -> bool:
        return key in self.values

    def text(self, key: str, *, default: str | None = None) -> str:
        value = self.optional_text(key)
        if value is None:
            value = default
        if value is None:
            raise self._missing(key, str)
        return value

    def optional_text(self, key: str) -> str | None:
        value = self._get(key, str)
        if value == "":
            raise self.error(key, "It is empty.", "Remove the line or give it a value.")
        return value

    def flag(self, key: str, *, default: bool = False) -> bool:
        value = self._get(key, bool)
        return default if value is None else value

    def integer(self, key: str, *, default: int, least: int = 0) -> int:
        value = self._get(key, int)
        return default if value is None else int(self._at_least(key, value, least))

    def optional_number(self, key: str, *, least: float = 0.0) -> float | None:
        """A count per second, or seconds: above `least`, never NaN or infinite."""
        value = self._get(key, float)
        return None if value is None else self._at_least(key, value, least, strictly=True)

    def number(self, key: str, *, default: float, least: float = 0.0) -> float:
        value = self.optional_number(key, least=least)
        return default if value is None else value

    def texts(self, key: str) -> tuple[str, ...] | None:
        """A list of strings, each at most once and none empty."""
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
        """A table of free names, each with a string."""
        table = self.table(key, None, required=False)
        return {name: table.text(name) for name in table.values}

    def path(self, key: str) -> Path:
        value = self.optional_path(key)
        if value is None:
            raise self._missing(key, str)
        return value

    def optional_path(self, key: str) -> Path | None:
        """Resolved against the folder of the file; `~` is the home folder."""
        value = self.optional_text(key)
        return None if value is None else resolve(self.file, value)

    def table(self, key: str, keys: Collection[str] | None, *, required: bool = True) -> TomlTable:
        """The table below `key`; an empty one where it is missing and not required."""
        value = self._get(key, dict)
        if value is None and required:
            raise ConfigurationError(
                f"There is no [{self._below(key)}].", where=self.where(), remedy="Add the table."
            )
        return TomlTable(self.file, self._below(key), value or {}, keys)

    def tables(self, key: str, keys: Collection[str]) -> dict[str, TomlTable]:
        """The tables `[key.NAME]` by their free names, in the order of the file."""
        outer = self.table(key, None, required=False)
        return {name: outer.table(name, keys) for name in outer.values}

    def password(self, key: str, secret: str) -> str | None:
        """From the file under `key`, else from the environment as DRIFTLINE_PASSWORD_<SECRET>.

        Raises:
            ConfigurationError: the file cannot be read, or others can read it.
        """
        path = self.optional_path(key)
        if path is None:
            return os.environ.get(environment_name(secret))
        try:
            data, exposed = read_secret(path, SECRET_BYTES_MAX + 1)
        except OSError as error:
            raise self.error(
                key, f"The password file {path} cannot be read: {error.strerror}."
            ) from None
        if exposed:
            raise self.error(key, f"The password file {path} {exposed}.", f"Run: chmod 600 {path}")
        try:
            if len(data) > SECRET_BYTES_MAX:
                raise self.error(key, f"{path} holds more than {SECRET_BYTES_MAX} bytes.")
            return data.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise self.error(key, f"The password in {path} is not UTF-8.") from None

    def url(self, key: str, secret: str) -> str:
        """A URL without a password in it."""
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

    def _at_least(self, key: str, value: float, least: float, *, strictly: bool = False) -> float:
        if not (value > least if strictly else value >= least) or value == float("inf"):
            bound = "more than" if strictly else "at least"
            raise self.error(key, f"It must be {bound} {least:.15g}, not {value:.15g}.")
        return value

    def _missing(self, key: str, kind: type) -> ConfigurationError:
        remedy = f"Add `{key} = …`."
        return self.error(key, f"The setting is missing; it is {_KINDS[kind]}.", remedy)


def read_secret(path: Path, bytes_max: int = -1) -> tuple[bytes, str]:
    """A file that nobody else should read: its bytes, and how others can; empty if they cannot.

    The rule is libpq's for keys: nobody but the owner, and where that is root, the file's group.

    Raises:
        OSError: it cannot be read.
    """
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
    """A path as the file means it: relative to the file's folder."""
    return Path(os.path.normpath(file.parent / Path(value).expanduser()))


def environment_name(secret: str) -> str:
    """The variable that may hold a password: `DRIFTLINE_PASSWORD_` and the name in capitals."""
    return _ENVIRONMENT + re.sub(r"[^A-Z0-9]", "_", secret.upper())


def is_loopback(host: str) -> bool:
    """Whether a host, as written in an address, is this machine's loopback for certain."""
    return host in {"localhost", "::1"} or re.fullmatch(r"127(\.\d{1,3}){3}", host) is not None


def split_address(table: TomlTable, key: str) -> tuple[str, int]:
    """`HOST:PORT` under `key`; IPv6 as `[::1]:7443`.

    Raises:
        ConfigurationError: it is not of that form.
    """
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
    """Host, without brackets, and port of `HOST:PORT`; None where it is not of that form."""
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
    text = repr(value)
    return f"{kind} ({text if len(text) <= 40 else text[:39] + '…'})"
