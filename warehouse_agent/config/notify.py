"""The table [notify]: who is told of what happens to tables."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from driftline.errors import ConfigurationError
from driftline.settings.declarations import (
    SettingKind,
    SettingsTable,
    is_loopback,
    password,
    shown,
)
from driftline.settings.kinds import FLAG, PATH, TEXT, choice, number

from warehouse_agent.config.settings import MessageFormat, NotifySettings, SecretAddress

TIMEOUT_S: Final = 1.5
TIMEOUT_S_MAX: Final = 1.8  # a command waits 2 s for all that are told


def _argv(table: SettingsTable, key: str, value: object) -> tuple[str, ...]:
    items = table.typed(key, value, list)
    if not items:
        raise table.error(key, "It is an empty list.", "Name a program and its arguments.")
    for number_, item in enumerate(items, start=1):
        if not isinstance(item, str) or "\0" in item:
            raise table.error(
                key, f"Item {number_} must be a string without a NUL, not {shown(item)}."
            )
    if not items[0]:
        raise table.error(key, "The program has no name.", "Name a program and its arguments.")
    return tuple(items)


def address(text: str, where: str) -> str:
    """Return the address of a receiver. Raises ConfigurationError, which never shows it: it may be
    a secret; `where` it stands."""
    try:
        url = urlsplit(text)
        is_one = bool(url.hostname) and (url.port is None or url.port > 0)
    except ValueError:
        is_one = False
    if not is_one or not text.isascii() or not text.isprintable() or " " in text:
        raise ConfigurationError("It is no address.", where=where, remedy="Write https://HOST/….")
    if url.username is not None or url.password is not None or url.fragment:
        raise ConfigurationError(
            "The address holds a user, a password or a fragment (#), which is not sent.",
            where=where,
            remedy="Remove it.",
        )
    if url.scheme != "https" and not (url.scheme == "http" and is_loopback(url.hostname or "")):
        raise ConfigurationError(
            "Messages would travel in plain text, or by a protocol that is not known.",
            where=where,
            remedy="Write https://; http:// is for this machine alone, as http://127.0.0.1:PORT/.",
        )
    return text


def read_address(one: SecretAddress) -> str:
    """Return an address. Raises ConfigurationError: its file cannot be read, or holds none."""
    if one.written is not None:
        return one.written
    return address((password(one.file, "", one.where) or "").strip(), one.where)


def key_of(file: Path, where: str) -> bytes:
    """Return the key in a file. Raises ConfigurationError: it cannot be read, or is empty."""
    key = (password(file, "", where) or "").encode()
    if not key:
        raise ConfigurationError(f"{file} is empty.", where=where)
    return key


def _address(table: SettingsTable, key: str, value: object) -> str:
    return address(table.typed(key, value, str), table.place(key))


_ADDRESS: Final = SettingKind(
    "an address: `https://…`, or `http://…` on this machine",
    {"type": "string", "pattern": "^https?://."},
    _address,
    wrong=("http://chat.example.com/hook",),
)
_ARGV: Final = SettingKind(
    "a list: a program and its arguments",
    {"type": "array", "items": TEXT.schema, "minItems": 1},
    _argv,
    wrong=([],),
)


class NotifyTable(SettingsTable):
    """Receivers of messages about failures, overdue tables and changed columns."""

    command = _ARGV.optional(
        "a program that gets each message as JSON on its standard input; without a shell; exit code"
        " 0: it was told"
    )
    webhook = _ADDRESS.optional("where each message is posted; any answer from 200 to 299: told")
    webhook_file = PATH.optional(
        "a file with that address, for one that is a secret, as those of Slack and Teams are"
    )
    webhook_secret_file = PATH.optional(
        "a file with the key that [signs](operating/notifications.md#signatures) what is posted",
        unset="messages are not signed",
    )
    format = choice(MessageFormat).by_default(
        MessageFormat.JSON.value, "the form in which the webhook takes messages"
    )
    heartbeat = _ADDRESS.optional(
        "fetched (GET) after each command that went well; whoever misses it tells of an agent that"
        " is dead"
    )
    heartbeat_file = PATH.optional("a file with that address")
    timeout = number(
        "seconds", most=TIMEOUT_S_MAX, why="A command waits 2 s for all that are told."
    ).by_default(TIMEOUT_S, "for an answer; then a message waits for the next command")
    values = FLAG.by_default(
        False, "messages carry the texts of errors, which name keys and values of rows"
    )


def parse(table: NotifyTable) -> NotifySettings:
    """Return the settings of the table. Raises ConfigurationError."""
    webhook = _secret(table, "webhook", table.webhook, table.webhook_file)
    if webhook is None:
        for key in ("webhook_secret_file", "format"):
            if table.has(key):
                raise table.error(key, "There is no `webhook`.", "Add it, or remove the line.")
    return NotifySettings(
        command=table.command,
        webhook=webhook,
        webhook_secret_file=table.webhook_secret_file,
        format=table.format,
        heartbeat=_secret(table, "heartbeat", table.heartbeat, table.heartbeat_file),
        timeout_s=table.timeout,
        has_values=table.values,
    )


def _secret(
    table: NotifyTable, key: str, written: str | None, file: Path | None
) -> SecretAddress | None:
    if written is not None and file is not None:
        raise table.error(f"{key}_file", f"`{key}` is set, too.", "Remove one of them.")
    if written is None and file is None:
        return None
    return SecretAddress(written, file, table.place(key if file is None else f"{key}_file"))
