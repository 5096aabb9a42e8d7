"""Names of fragments and views: which are possible, and which of them a command line means."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from driftline.errors import UsageError
from driftline.settings.declarations import SettingsTable, nearest

from warehouse_agent.config.settings import Fragment, WarehouseConfig

RESERVED = "_driftline"  # the names of folders for bookkeeping begin so
FRESHNESS = "driftline_freshness"  # the table that says how fresh all others are
NAME_CHARACTERS_MAX = 128  # of a folder, with room for a suffix
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def is_fragment_name(name: str) -> bool:
    """Return True if `name` can be the name of a folder on every file system."""
    return _NAME.fullmatch(name) is not None and len(name) <= NAME_CHARACTERS_MAX


def named(known: Sequence[str], patterns: Sequence[str], all_: bool, *, file: Path) -> list[str]:
    """Return the names that a command line means, each once, in the order of `known`.

    Args:
        known: names of fragments and views.
        patterns: names, or globs with `*`, `?` and `[…]`; an exact name wins over a glob.
        all_: return every name; `patterns` must be empty.
        file: the configuration, for errors.

    Raises:
        UsageError: a pattern matches nothing (with the nearest name), or there is no pattern.
    """
    if not known:
        raise UsageError(f"{file.name} has no [fragments.NAME].", remedy="Add one.")
    if all_:
        if patterns:
            raise UsageError(
                "--all and names were given together.", remedy="Leave out one of the two."
            )
        return list(known)
    if not patterns:
        raise UsageError("No table is named.", remedy="Name some, or say --all.")
    chosen: set[str] = set()
    for pattern in patterns:
        if pattern in known:
            chosen.add(pattern)
            continue
        matching = {name for name in known if fnmatchcase(name, pattern)}
        if not matching:
            raise UsageError(
                f"No table of {file.name} matches {pattern!r}.",
                remedy=nearest(pattern, tuple(known)),
            )
        chosen |= matching
    return [name for name in known if name in chosen]


def select(config: WarehouseConfig, patterns: Sequence[str], all_: bool) -> list[Fragment]:
    """Return the fragments that a command line names, in the order of the file; raises as `named`.

    Views are left out; a name or a glob that matches views alone is refused.
    """
    names = named(tuple(config.fragments), patterns, all_, file=config.file)
    return [config.fragments[name] for name in names]


def check_name(name: str, table: SettingsTable, what: str) -> None:
    """Refuse a name that cannot be that of a folder, or is one of ours."""
    if not is_fragment_name(name):
        raise table.error(
            "",
            f"{name!r} cannot name a {what}.",
            f"Use up to {NAME_CHARACTERS_MAX} letters, digits, '_', '.' and '-', "
            "beginning with a letter, a digit or '_'.",
        )
    if name.lower().startswith(RESERVED):
        raise table.error("", f"Names that begin with {RESERVED} are Driftline's own.")
    if name.lower() == FRESHNESS:
        raise table.error(
            "",
            f"{name!r} is the name of the table that says how fresh the others are.",
            f"Give the {what} another name.",
        )
