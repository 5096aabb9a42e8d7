"""Settings that name one of several values."""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

from driftline.settings import TomlTable, nearest

E = TypeVar("E", bound=Enum)


def choice(table: TomlTable, key: str, text: str, kind: type[E]) -> E:
    """Return the member of `kind` with this value. Raises ConfigurationError: none has it."""
    try:
        return kind(text)
    except ValueError:
        known = [str(member.value) for member in kind]
        raise table.error(
            key, f"{text!r} is not one of {', '.join(known)}.", nearest(text, known)
        ) from None
