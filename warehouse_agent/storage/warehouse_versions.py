"""The table of versions: which versions of all tables of a warehouse belong together.

`<path>/_driftline/warehouse` is a Delta table. Each of its commits replaces all rows and is one
warehouse version, written last: the flip. A row is a `planning.flip.Member`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from warehouse_agent.planning.flip import Member
from warehouse_agent.storage.store import Store


@dataclass(frozen=True, slots=True)
class WarehouseVersion:
    """One version of the whole warehouse, pinned. `pin`: the handle for the next commit."""

    number: int
    flipped_at: datetime
    members: Mapping[str, Member]
    pin: object = field(repr=False, compare=False)


def newest(store: Store) -> WarehouseVersion | None:
    """Return the newest warehouse version; None if there is no table of versions.

    Raises:
        WarehouseUnavailable: the table cannot be read; somebody else or a newer release wrote it.
    """
    raise NotImplementedError


def at_version(store: Store, number: int) -> WarehouseVersion:
    """Return an earlier warehouse version. Raises NotFound; WarehouseUnavailable as `newest`."""
    raise NotImplementedError


def flip(
    store: Store, change: Callable[[Mapping[str, Member]], Mapping[str, Member] | None]
) -> WarehouseVersion | None:
    """Commit the next warehouse version; make the table if there is none.

    Args:
        change: returns the next members from the newest ones, empty without a table; None: nothing
            moved. Called again on newer members if somebody else flipped meanwhile.

    Returns:
        The newest warehouse version afterwards; None if there is no table.

    Raises:
        WarehouseUnavailable: the table cannot be read or written.
    """
    raise NotImplementedError
