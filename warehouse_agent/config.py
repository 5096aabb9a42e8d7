"""The data engineer's file, warehouse.toml: where sources are, and which copies to keep of them.

`load` contacts no source and checks no certificate, so that `status` works without them.

Invariants: only a source on loopback may be insecure; the source of each fragment exists; the name
of a fragment is one folder below the warehouse, and no reserved one (`_driftline…`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from driftline.errors import ConfigurationError, UsageError
from driftline.limits import GROUP_KEYS_MAX, MESSAGE_BYTES_MAX, NAME_BYTES_MAX
from driftline.settings import (
    TomlTable,
    duration_s,
    is_loopback,
    nearest,
    read,
    resolve,
    split_address,
)

from warehouse_agent.columns.arrow import Carrier
from warehouse_agent.planning.choice import Method
from warehouse_agent.planning.network import Objective
from warehouse_agent.planning.tiling import Incremental

if TYPE_CHECKING:
    from warehouse_agent.decomposition.wishes import Wish

E = TypeVar("E", bound=Enum)

SMALL_BYTES = 32 << 20
AHEAD = 4  # fragments
SOURCES_AT_ONCE = 4
EXECUTORS_WAIT_S = 120.0
_ALL = "all"  # of `ahead`
_AUTO = "auto"  # of `chunk_rows`
MAX_LAG_DAYS_MAX = 7  # the log of a table keeps its entries for 30 days
_TOP = ("warehouse", "spark", "sources", "fragments", "views")
_WAREHOUSE = ("path", "small_bytes", "ahead", "sources_at_once", "executors_wait_s")
_SOURCE = ("address", "ca", "certificate", "key", "insecure", "server_name", "objective")
_FRAGMENT = (
    "source", "relation", "carriers", "method", "require", "read_at_most", "incremental",
    "staging_at_most", "priority",
)  # fmt: skip
_INCREMENTAL = ("rows", "pause_s")
_VIEW = ("query", "maintain", "on_failure", "max_lag", "chunk_rows")
_FRAGMENT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
RESERVED = "_driftline"  # the names of folders for bookkeeping begin so
READ_AT_LEAST = 1000  # rows: with fewer, partial refreshes would never cover a table
NAME_CHARACTERS_MAX = 128  # of a folder, with room for a suffix
_PATH_REFUSED = "*?[]{}\\%"


class Maintain(Enum):
    """Ways in which a view follows its inputs."""

    AUTO = "auto"  # the cheaper way
    INCREMENTAL = "incremental"  # by affected keys, wherever that is possible
    RECOMPUTE = "recompute"


class OnFailure(Enum):
    """Choices for the inputs of a view that fails: they move without it, or wait for it."""

    STALE = "stale"
    HOLD = "hold"


class Require(Enum):
    """The weakest consistency that may be published."""

    EXACT = "exact"
    FUZZY = "fuzzy"


@dataclass(frozen=True, slots=True)
class Source:
    """A source agent at `HOST:PORT`. The three files of mutual TLS are all set, or all None if it
    is `insecure`, on loopback.

    `server_name`: the name in its certificate, if it is not the host of the address.
    `objective`: what refreshes over this line minimize.
    """

    name: str
    address: str
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    insecure: bool = False
    server_name: str | None = None
    objective: Objective = Objective.SECONDS


@dataclass(frozen=True, slots=True)
class Fragment:
    """A copy to keep of one relation of one source.

    `read_at_most`: rows of the source that a refresh reads by key: those most likely to have
    changed, and some in turn; None: all rows are compared.
    `staging_at_most`: bytes of frames that may be staged; None: half of the free space of the disk.
    `priority`: fragments with a higher one are refreshed first.
    `is_kept`: nobody configured it; a view needs it, and its table lies below `_driftline/kept`.
    `wishes`: of a kept fragment, what each occurrence in each view needs of it.
    """

    name: str
    source: Source
    relation: str
    carriers: dict[str, Carrier] = field(default_factory=dict)
    method: Method | None = None
    require: Require = Require.EXACT
    read_at_most: int | None = None
    incremental: Incremental | None = None
    staging_at_most: int | None = None
    priority: int = 0
    is_kept: bool = False
    wishes: tuple[Wish, ...] = ()

    def note(self, *, base_version: int | None, recipe_id: bytes) -> dict[str, object]:
        """Return what identifies an unfinished exchange: what it compared, and where."""
        return {
            "base_version": base_version,
            "recipe": recipe_id.hex(),
            "source": self.source.name,
            "address": self.source.address,
            "relation": self.relation,
        }


@dataclass(frozen=True, slots=True)
class View:
    """A select-project-join over fragments and views, published as a table of its own.

    `query`: Spark SQL, as the data engineer wrote it; `views.query` reads it.
    `inputs`: the fragment or view of each table in it, in order; `views.inputs.load` finds them.
    `max_lag_s`: seconds for which changes of its fragments may wait for it; 0: for no refresh.
    `chunk_rows`: changed rows that are gathered before they are propagated; None: the optimum.
    """

    name: str
    query: str
    inputs: tuple[str, ...] = ()
    maintain: Maintain = Maintain.AUTO
    on_failure: OnFailure = OnFailure.STALE
    max_lag_s: int = 0
    chunk_rows: int | None = None


@dataclass(frozen=True, slots=True)
class WarehouseConfig:
    """The contents of warehouse.toml.

    Attributes:
        path: a folder, or any Hadoop path (with `://`).
        fragments, views: by name; `views.inputs.load` adds the kept fragments that views need.
        small_bytes: the most bytes that a step reads or writes without Spark.
        ahead: the most fragments of a source that share a snapshot; None: all of a command.
        sources_at_once: sources that are refreshed side by side.
        executors_wait_s: the longest time without an executor of Spark, in seconds.
    """

    file: Path
    path: str
    small_bytes: int
    spark: Mapping[str, str]
    sources: Mapping[str, Source]
    fragments: Mapping[str, Fragment]
    views: Mapping[str, View] = field(default_factory=dict)
    ahead: int | None = AHEAD
    sources_at_once: int = SOURCES_AT_ONCE
    executors_wait_s: float = EXECUTORS_WAIT_S


def load(path: Path | str) -> WarehouseConfig:
    """Read warehouse.toml.

    Raises:
        ConfigurationError: names the file, the key and what to do.
    """
    top = read(Path(path), _TOP)
    warehouse = top.table("warehouse", _WAREHOUSE)
    sources = {name: _source(name, t) for name, t in top.tables("sources", _SOURCE).items()}
    fragments = {
        name: _fragment(name, table, sources)
        for name, table in top.tables("fragments", _FRAGMENT).items()
    }
    views = {name: _view(name, table) for name, table in top.tables("views", _VIEW).items()}
    _refuse_twins(top, [*fragments, *views])
    return WarehouseConfig(
        file=top.file,
        path=_place(warehouse),
        small_bytes=warehouse.integer("small_bytes", default=SMALL_BYTES, least=0),
        spark=MappingProxyType(top.text_map("spark")),
        sources=MappingProxyType(sources),
        fragments=MappingProxyType(fragments),
        views=MappingProxyType(views),
        ahead=_ahead(warehouse),
        sources_at_once=warehouse.integer("sources_at_once", default=SOURCES_AT_ONCE, least=1),
        executors_wait_s=warehouse.number("executors_wait_s", default=EXECUTORS_WAIT_S),
    )


def is_fragment_name(name: str) -> bool:
    """Return True if `name` can be the name of a folder on every file system."""
    return _FRAGMENT_NAME.fullmatch(name) is not None and len(name) <= NAME_CHARACTERS_MAX


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
            raise UsageError("--all goes with no names.", remedy="Leave out one of the two.")
        return list(known)
    if not patterns:
        raise UsageError("No fragment is named.", remedy="Name some, or say --all.")
    chosen: set[str] = set()
    for pattern in patterns:
        if pattern in known:
            chosen.add(pattern)
            continue
        matching = {name for name in known if fnmatchcase(name, pattern)}
        if not matching:
            raise UsageError(
                f"No fragment of {file.name} matches {pattern!r}.",
                remedy=nearest(pattern, tuple(known)),
            )
        chosen |= matching
    return [name for name in known if name in chosen]


def select(config: WarehouseConfig, patterns: Sequence[str], all_: bool) -> list[Fragment]:
    """Return the fragments that a command line names, in the order of the file; raises as `named`.

    Views are left out; a name or a glob that matches views alone is refused.
    """
    found = named(tuple(config.fragments), patterns, all_, file=config.file)
    return [config.fragments[name] for name in found]


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


def _source(name: str, table: TomlTable) -> Source:
    host, port = split_address(table, "address")
    if port == 0:
        raise table.error("address", "Port 0 is no port of a server.")
    objective = _choice(table, "objective", table.text("objective", default="seconds"), Objective)
    if not table.flag("insecure"):
        return Source(
            name,
            table.text("address"),
            ca=table.path("ca"),
            certificate=table.path("certificate"),
            key=table.path("key"),
            server_name=table.optional_text("server_name"),
            objective=objective,
        )
    if not is_loopback(host):
        raise table.error(
            "insecure",
            f"Plain text is allowed on loopback only, and {host} is another machine.",
            "Remove `insecure` and name the certificates of `driftline-source enroll`.",
        )
    for key in ("ca", "certificate", "key", "server_name"):
        if table.has(key):
            raise table.error(
                key, "It has no effect beside `insecure = true`.", "Remove one of the two."
            )
    return Source(name, table.text("address"), insecure=True, objective=objective)


def _check_name(name: str, table: TomlTable, what: str) -> None:
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


def _view(name: str, table: TomlTable) -> View:
    _check_name(name, table, "view")
    maintain = table.text("maintain", default=Maintain.AUTO.value)
    on_failure = table.text("on_failure", default=OnFailure.STALE.value)
    return View(
        name=name,
        query=table.text("query"),
        maintain=_choice(table, "maintain", maintain, Maintain),
        on_failure=_choice(table, "on_failure", on_failure, OnFailure),
        max_lag_s=_max_lag_s(table),
        chunk_rows=_chunk_rows(table),
    )


def _max_lag_s(table: TomlTable) -> int:
    text = table.text("max_lag", default="0s")
    if (found := duration_s(text)) is None:
        raise table.error(
            "max_lag", f"{text!r} is no duration.", "Write it like 90s, 15m, 1h30m or 1d."
        )
    if found > MAX_LAG_DAYS_MAX * 86_400:
        raise table.error(
            "max_lag",
            f"Readers can be kept waiting for at most {MAX_LAG_DAYS_MAX} days.",
            f"Write {MAX_LAG_DAYS_MAX}d or less.",
        )
    return found


def _chunk_rows(table: TomlTable) -> int | None:
    """Return how many changed rows are gathered; None: the learned optimum."""
    if not isinstance(table.values.get("chunk_rows", _AUTO), str):
        return table.integer("chunk_rows", default=1, least=1)
    if (text := table.text("chunk_rows", default=_AUTO)) != _AUTO:
        raise table.error("chunk_rows", f'{text!r} is neither a number of rows nor "{_AUTO}".')
    return None


def _fragment(name: str, table: TomlTable, sources: Mapping[str, Source]) -> Fragment:
    _check_name(name, table, "fragment")
    source = table.text("source")
    if source not in sources:
        raise table.error(
            "source", f"There is no [sources.{source}].", nearest(source, tuple(sources))
        )
    relation = table.text("relation", default=name)
    if len(relation.encode()) > NAME_BYTES_MAX:
        raise table.error("relation", f"It has more than {NAME_BYTES_MAX} bytes.")
    carriers = {
        column: _choice(table, f"carriers.{column}", text, Carrier)
        for column, text in table.text_map("carriers").items()
    }
    method = table.optional_text("method")
    fragment = Fragment(
        name=name,
        source=sources[source],
        relation=relation,
        carriers=carriers,
        method=None if method is None else _choice(table, "method", method, Method),
        require=_choice(table, "require", table.text("require", default="exact"), Require),
        read_at_most=_read_at_most(table),
        incremental=_incremental(table),
        staging_at_most=_staging_at_most(table),
        priority=table.integer("priority", default=0, least=None),
    )
    _check_part(table, fragment)
    _check_incremental(table, fragment)
    return fragment


def _read_at_most(table: TomlTable) -> int | None:
    if not table.has("read_at_most"):
        return None
    found = table.integer("read_at_most", default=READ_AT_LEAST, least=READ_AT_LEAST)
    if found > GROUP_KEYS_MAX:
        raise table.error(
            "read_at_most",
            f"Groups name at most {GROUP_KEYS_MAX:,} rows, and it is {found:,}.",
            "Make it smaller, or remove it: a refresh of all rows has no such limit.",
        )
    return found


def _staging_at_most(table: TomlTable) -> int | None:
    if not table.has("staging_at_most"):
        return None
    # One frame has up to MESSAGE_BYTES_MAX.
    return table.integer("staging_at_most", default=MESSAGE_BYTES_MAX, least=MESSAGE_BYTES_MAX)


def _check_part(table: TomlTable, fragment: Fragment) -> None:
    """Refuse `read_at_most` with other methods than groups, or where consistency must be exact."""
    if fragment.read_at_most is None:
        return
    is_grouped = fragment.method in {None, Method.GROUP}
    if fragment.require is not Require.FUZZY or not is_grouped:
        raise table.error(
            "read_at_most",
            "A partial refresh keeps rows of earlier times, and only groups can compare a part of "
            "the rows.",
            'Add `require = "fuzzy"`, and leave out `method`.',
        )
    if fragment.incremental is not None:
        raise table.error(
            "incremental",
            "A refresh in tiles compares every row.",
            "Remove `read_at_most`, or `incremental`.",
        )


def _incremental(table: TomlTable) -> Incremental | None:
    if not table.has("incremental"):
        return None
    inner, default = table.table("incremental", _INCREMENTAL), Incremental()
    rows = inner.integer("rows", default=default.rows, least=1)
    pause_s = inner.number_or("pause_s", "auto", default=default.pause_s)
    return Incremental(rows, pause_s or default.pause_s, adapts=pause_s is None)


def _check_incremental(table: TomlTable, fragment: Fragment) -> None:
    """Refuse `incremental` with other methods than ranges, or where consistency must be exact."""
    if fragment.incremental is None:
        return
    if fragment.require is not Require.FUZZY:
        raise table.error(
            "incremental",
            "A refresh in tiles publishes rows of different instants.",
            'If that is good enough: `require = "fuzzy"` in the fragment.',
        )
    if fragment.method not in (None, Method.RANGE):
        raise table.error(
            "method", "Tiles are compared by ranges.", "Remove `method`, or `incremental`."
        )


def _choice(table: TomlTable, key: str, text: str, kind: type[E]) -> E:
    try:
        return kind(text)
    except ValueError:
        known = [str(member.value) for member in kind]
        raise table.error(
            key, f"{text!r} is not one of {', '.join(known)}.", nearest(text, known)
        ) from None


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
