"""Reads warehouse.toml. Contacts no source and checks no certificate: `status` works without them.

Invariants: only a source on loopback may be insecure; the source of each fragment exists; the name
of a fragment is one folder below the warehouse, and no reserved one (`_driftline…`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from driftline.errors import ConfigurationError
from driftline.metrics_server import check_package
from driftline.settings.declarations import SettingsTable, read, resolve
from driftline.settings.kinds import (
    ADDRESS,
    FLAG,
    PATH,
    TEXT,
    choice,
    duration,
    integer,
    map_of,
    number,
    or_word,
    table_of,
)

from warehouse_agent.config import fragments, notify, sources, storage, timing
from warehouse_agent.config.fragments import FragmentTable
from warehouse_agent.config.names import check_name
from warehouse_agent.config.notify import NotifyTable
from warehouse_agent.config.settings import (
    AHEAD,
    DRIVER_SHARE,
    EXECUTORS_WAIT_S,
    SOURCES_AT_ONCE,
    Maintain,
    MetricsSettings,
    OnFailure,
    View,
    WarehouseConfig,
)
from warehouse_agent.config.sources import SourceTable
from warehouse_agent.config.storage import StorageTable
from warehouse_agent.config.timing import TimingTable

MAX_LAG_DAYS_MAX = 7  # `gc` keeps what readers are given, and all that was committed since
_TEXTFILE = ".prom"
_PATH_REFUSED = "*?[]{}\\%"


class WarehouseTable(SettingsTable):
    """The warehouse and the command line's resources."""

    path = replace(TEXT, label="a path").required(
        "a folder, or `s3://BUCKET/FOLDER` (`s3a://` is the same) of an object store, see"
        f" [storage]. Without `{' '.join(_PATH_REFUSED)}`; a bucket's also without `? #`, blanks,"
        " empty parts and `..`"
    )
    small_bytes = integer("bytes", least=0).optional(
        "the most bytes that a step of a refresh reads or writes without Spark; in the driver's"
        " process, bytes of rows, uncompressed (in files that Spark or an older release wrote, a"
        " value that repeats counts once). A step that reads only digests (24 bytes a row) may read"
        " eight times as much. `0`: every step runs on Spark",
        unset="chosen by seconds and memory, see"
        " [Where steps run](operating/spark.md#where-steps-run)",
    )
    driver_share = number("share", most=1, why="It is a share of the memory.").by_default(
        DRIVER_SHARE,
        "the share of the memory that the rows of a step may have without Spark; of the memory of"
        " the machine, or of the control group. Larger steps run on Spark always, where"
        " `small_bytes` is not set",
    )
    ahead = or_word(integer("fragments", least=1), "all", None, "a number of fragments").by_default(
        AHEAD,
        "fragments of a source that are prepared, then compared in one snapshot, then finished"
        ' together; a *run*. Memory holds two runs. `"all"`: all of a command are one run, which'
        " needs memory for all of them; see [Order](operating/running.md#order)",
    )
    sources_at_once = integer("sources", least=1).by_default(
        SOURCES_AT_ONCE,
        "sources that are refreshed side by side; each has one exchange at a time",
    )
    executors_wait_s = number("seconds").by_default(
        EXECUTORS_WAIT_S,
        "the longest time without an executor; at the start of a session or after all were lost,"
        " before it is an error. A master has as long to answer. See"
        " [Clusters](operating/spark.md#clusters)",
    )
    freshness_table = FLAG.by_default(
        True,
        "each refresh command also writes [how fresh each table is]"
        "(operating/reading.md#freshness)",
    )


class ViewTable(TimingTable):
    """A query over fragments and views, and how it is maintained."""

    query = TEXT.required(
        "a query in Spark SQL over relations of several sources; see [views](views.md)"
    )
    maintain = choice(Maintain).by_default(
        Maintain.AUTO.value,
        'how the view follows its inputs; `"recompute"`; `"incremental"`, by the keys that changed,'
        ' wherever that is possible; or `"auto"`, the cheaper of both by learned prices'
        " ([maintenance](views.md#maintenance))",
    )
    site_joins = FLAG.by_default(
        False,
        "leave rows at a source that join with none which fulfils the view's conditions; where its"
        " DBA allows it ([joins at a site](views.md#joins-at-a-site))",
    )
    on_failure = choice(OnFailure).by_default(
        OnFailure.STALE.value,
        'what moves if the view cannot be computed; `"stale"`: its fragments, and the view stays'
        ' behind, marked; or `"hold"`: nothing, readers keep the versions before of everything that'
        " moves with it",
    )
    max_lag = duration(
        least=0,
        most=MAX_LAG_DAYS_MAX * 86_400,
        why=f"Readers can be kept waiting for at most {MAX_LAG_DAYS_MAX} days.",
    ).by_default(
        "0s",
        "how long changes may [wait for the view](views.md#staleness) after a refresh;"
        ' `"0s"`: they never do',
    )
    chunk_rows = or_word(integer("rows", least=1), "auto", None, "a number of rows").by_default(
        "auto",
        "changed rows of its component that are gathered before a view phase;"
        ' `"auto"`: the learned optimum',
    )


class MetricsTable(SettingsTable):
    """Numbers about refreshes for Prometheus, with the extra `metrics`."""

    textfile = PATH.optional(
        f"a file `*{_TEXTFILE}` in the folder of node_exporter's textfile collector, which exists;"
        " written after each refresh command, in one step",
        unset="none is written",
    )
    listen = ADDRESS.optional(
        "where `driftline run` serves them at `/metrics`, such as `127.0.0.1:9464`; plain HTTP"
        " without a login, so name another address only on a network that you trust. Port 0 picks a"
        " free one",
        unset="nothing listens",
    )


class WarehouseFile(SettingsTable):
    """A warehouse.toml: where sources are, and which copies to keep of their relations."""

    warehouse = table_of(WarehouseTable).required("the warehouse and the resources of a command")
    storage = table_of(StorageTable).by_default({}, "how the object store of `path` is reached")
    spark = map_of(TEXT, called="*").by_default(
        {},
        "given to the SparkSession unchanged; quote names and values:"
        ' `"spark.master" = "local[*]"`',
    )
    metrics = table_of(MetricsTable).optional(
        "where numbers for Prometheus go; see [monitoring](operating/monitoring.md)",
        unset="nowhere",
    )
    sources = map_of(table_of(SourceTable)).by_default({}, "source agents, by name")
    fragments = map_of(table_of(FragmentTable)).by_default({}, "copies to keep, by name")
    views = map_of(table_of(ViewTable)).by_default({}, "queries over them, by name")
    notify = table_of(NotifyTable).by_default({}, "who is told of what happens to tables")


def load(path: Path | str) -> WarehouseConfig:
    """Read warehouse.toml.

    Raises:
        ConfigurationError: names the file, the key and what to do.
    """
    top = read(Path(path), WarehouseFile)
    warehouse = top.warehouse
    origins = {name: sources.parse(name, table) for name, table in top.sources.items()}
    copies = {name: fragments.parse(name, table, origins) for name, table in top.fragments.items()}
    queries = {name: _view(name, table) for name, table in top.views.items()}
    _refuse_twins(top, [*copies, *queries])
    storage.refuse_open_secrets(top.spark, top.place("spark"))
    return WarehouseConfig(
        file=top.file,
        path=(path := _place(warehouse)),
        small_bytes=warehouse.small_bytes,
        spark=MappingProxyType(top.spark),
        sources=MappingProxyType(origins),
        fragments=MappingProxyType(copies),
        views=MappingProxyType(queries),
        ahead=warehouse.ahead,
        sources_at_once=warehouse.sources_at_once,
        executors_wait_s=warehouse.executors_wait_s,
        driver_share=warehouse.driver_share,
        storage=storage.parse(top.storage, path),
        metrics=_metrics(top.metrics),
        notify=notify.parse(top.notify),
        freshness_table=warehouse.freshness_table,
    )


def _view(name: str, table: ViewTable) -> View:
    """Return the view of one table. Raises ConfigurationError, with the key."""
    check_name(name, table, "view")
    return View(
        name=name,
        query=table.query,
        maintain=table.maintain,
        on_failure=table.on_failure,
        max_lag_s=table.max_lag,
        chunk_rows=table.chunk_rows,
        site_joins=table.site_joins,
        timing=timing.parse(name, table, zone=""),  # of each fragment: that of its source
    )


def _metrics(table: MetricsTable | None) -> MetricsSettings | None:
    """Return where numbers for Prometheus go. Raises ConfigurationError, with the key."""
    if table is None:
        return None
    check_package(table.place())
    if (file := table.textfile) is not None and file.suffix != _TEXTFILE:
        raise table.error(
            "textfile",
            f"node_exporter reads only files that end in {_TEXTFILE}.",
            "End its name in .prom.",
        )
    listen = None if table.listen is None else (table.listen.host, table.listen.port)
    return MetricsSettings(file, listen)


def _place(warehouse: WarehouseTable) -> str:
    """Return the path of the warehouse. Raises ConfigurationError: Spark would read a
    character as a pattern, or Delta as an escape (`%`), and find no files or others."""
    path = warehouse.path
    if "://" in path:
        return storage.bucket_path(path, warehouse.place("path"))
    path = str(resolve(warehouse.file, path))
    if odd := [character for character in _PATH_REFUSED if character in path]:
        raise warehouse.error(
            "path",
            f"{path} holds {' '.join(odd)}, which Spark or Delta would not read literally.",
            f"Name a folder whose path has none of {' '.join(_PATH_REFUSED)}.",
        )
    return path


def _refuse_twins(top: WarehouseFile, names: Sequence[str]) -> None:
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
        raise ConfigurationError(what, where=top.place("fragments"), remedy="Rename one of them.")
