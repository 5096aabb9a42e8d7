"""Reads warehouse.toml. Contacts no source and checks no certificate: `status` works without them.

Invariants: only a source on loopback may be insecure; the source of each fragment exists; the name
of a fragment is one folder below the warehouse, and no reserved one (`_driftline…`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType

from driftline.errors import ConfigurationError
from driftline.settings import TomlTable, read, resolve

from warehouse_agent.config import fragments, sources, views
from warehouse_agent.config.settings import (
    AHEAD,
    EXECUTORS_WAIT_S,
    SMALL_BYTES,
    SOURCES_AT_ONCE,
    WarehouseConfig,
)

SETTINGS = ("path", "small_bytes", "ahead", "sources_at_once", "executors_wait_s")
_TABLES = ("warehouse", "spark", "sources", "fragments", "views")
_ALL = "all"  # of `ahead`
_PATH_REFUSED = "*?[]{}\\%"


def load(path: Path | str) -> WarehouseConfig:
    """Read warehouse.toml.

    Raises:
        ConfigurationError: names the file, the key and what to do.
    """
    top = read(Path(path), _TABLES)
    warehouse = top.table("warehouse", SETTINGS)
    origins = {
        name: sources.parse(name, table)
        for name, table in top.tables("sources", sources.SETTINGS).items()
    }
    copies = {
        name: fragments.parse(name, table, origins)
        for name, table in top.tables("fragments", fragments.SETTINGS).items()
    }
    queries = {
        name: views.parse(name, table)
        for name, table in top.tables("views", views.SETTINGS).items()
    }
    _refuse_twins(top, [*copies, *queries])
    return WarehouseConfig(
        file=top.file,
        path=_place(warehouse),
        small_bytes=warehouse.integer("small_bytes", default=SMALL_BYTES, least=0),
        spark=MappingProxyType(top.text_map("spark")),
        sources=MappingProxyType(origins),
        fragments=MappingProxyType(copies),
        views=MappingProxyType(queries),
        ahead=_ahead(warehouse),
        sources_at_once=warehouse.integer("sources_at_once", default=SOURCES_AT_ONCE, least=1),
        executors_wait_s=warehouse.number("executors_wait_s", default=EXECUTORS_WAIT_S),
    )


def _place(warehouse: TomlTable) -> str:
    """Return the path of the warehouse. Raises ConfigurationError: Spark would read a
    character as a pattern, or Delta as an escape (`%`), and find no files or others."""
    path = warehouse.text("path")
    path = path if "://" in path else str(resolve(warehouse.file, path))
    if odd := [character for character in _PATH_REFUSED if character in path]:
        raise warehouse.error(
            "path",
            f"{path} holds {' '.join(odd)}, which Spark or Delta would not read literally.",
            f"Name a folder whose path has none of {' '.join(_PATH_REFUSED)}.",
        )
    return path


def _ahead(warehouse: TomlTable) -> int | None:
    """Return the most fragments that share a snapshot; None: all."""
    if not isinstance(warehouse.values.get("ahead"), str):
        return warehouse.integer("ahead", default=AHEAD, least=1)
    if (text := warehouse.text("ahead")) != _ALL:
        raise warehouse.error("ahead", f'{text!r} is neither a number of fragments nor "{_ALL}".')
    return None


def _refuse_twins(top: TomlTable, names: Sequence[str]) -> None:
    """Refuse two names that are one, or that some file systems take for one folder."""
    seen: dict[str, str] = {}
    for name in names:
        if (twin := seen.get(name.lower())) is None:
            seen[name.lower()] = name
            continue
        what = (
            f"A fragment and a view are called {name!r}."
            if twin == name
            else f"{twin!r} and {name!r} differ only in case; some file systems have one folder "
            "for both."
        )
        raise ConfigurationError(what, where=top.where("fragments"), remedy="Rename one of them.")
