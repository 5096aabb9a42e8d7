"""One published version of a table, pinned, whatever format its log has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from warehouse_agent.columns.layout import Layout
from warehouse_agent.storage.data_files import DataFile


@dataclass(frozen=True)
class Snapshot:
    """One published version, pinned. `meta` is what its commit says of it; of its files those are
    `lost` whose rows count as not there (`mend`)."""

    version: int
    files: tuple[DataFile, ...]
    layout: Layout
    meta: dict[str, Any]
    handle: Any = field(repr=False, compare=False)
    lost: tuple[DataFile, ...] = ()

    @property
    def rows(self) -> int:
        return sum(f.rows for f in self.files)

    @property
    def rows_lost(self) -> int:
        return sum(f.rows for f in self.lost)

    @property
    def sound(self) -> tuple[DataFile, ...]:
        """Return the files that are not lost."""
        lost = set(self.lost)
        return tuple(f for f in self.files if f not in lost)

    @property
    def table(self) -> str:
        """Return the id that tells this table from earlier tables of the same name."""
        return str(self.handle.metadata().id)

    def uris(self) -> list[str]:
        return [f.uri for f in self.files]
