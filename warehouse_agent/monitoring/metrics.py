"""Numbers about refreshes for Prometheus: a textfile after each command, a page of `run`.

Moments are times, never ages: a file that is written no more does not look fresh. Counters come
from the histories (`counted_tables`), so they go on where the last command stopped. Labels are the
warehouse's path, tables that are configured, and words of ours.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from driftline.metrics_server import MetricsServer

from warehouse_agent.config import Fragment, View, WarehouseConfig
from warehouse_agent.monitoring.after_command import EndedCommand
from warehouse_agent.monitoring.counted_tables import READ_S, counted
from warehouse_agent.monitoring.table_counters import TableCounters
from warehouse_agent.report import Report
from warehouse_agent.storage.store import Store, file_errors
from warehouse_agent.views.timings import freshness_limit_s

if TYPE_CHECKING:
    from prometheus_client import Metric

FIRST_READ_S: Final = 300.0  # of histories, for the first page of `run`
_NAME: Final = "driftline_"

# A label's value, if the sample has a label of its own, and the number; None: not known.
Samples = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class _Family:
    """Samples of one name for each table; `label`: their own one beside the table; empty: none."""

    name: str
    help: str
    samples: Callable[[TableCounters], Samples]
    label: str = ""


def _one(read: Callable[[TableCounters], float | None]) -> Callable[[TableCounters], Samples]:
    return lambda table: {"": read(table)}


GAUGES: Final = (
    _Family(
        "as_of_timestamp_seconds",
        "When the table was equal to its source, by the proof of the last refresh that went well.",
        _one(lambda table: table.as_of),
    ),
    _Family(
        "exact_as_of_timestamp_seconds",
        "The same, of the last refresh that read one snapshot; absent: none did.",
        _one(lambda table: table.exact_as_of),
    ),
    _Family(
        "proof",
        "1, with the proof of the last refresh that went well; claimed: nothing was compared.",
        lambda table: {table.proof: 1.0} if table.proof else {},
        "proof",
    ),
    _Family(
        "refresh_last_success_timestamp_seconds",
        "When the last refresh that went well ended.",
        _one(lambda table: table.succeeded),
    ),
    _Family(
        "refresh_last_attempt_timestamp_seconds",
        "When the last refresh ended, whether it went well or not.",
        _one(lambda table: table.attempted),
    ),
    _Family("rows", "Rows of the table.", _one(lambda table: table.rows)),
    _Family(
        "refresh_failures",
        "Refreshes that failed since the last that went well, with the code of the newest.",
        lambda table: {table.code: table.failures},
        "code",
    ),
)
COUNTERS: Final = (
    _Family("refreshes", "Refreshes that went well.", _one(lambda table: table.totals.refreshes)),
    _Family(
        "refreshes_put_off",
        "Refreshes that the source put off, such as outside hours of its DBA.",
        _one(lambda table: table.totals.put_off),
    ),
    _Family(
        "refresh_errors",
        "Refreshes that failed, by the code of the error.",
        lambda table: table.totals.failed,
        "code",
    ),
    _Family(
        "refresh_rows_changed",
        "Rows that refreshes changed, without those of first loads.",
        lambda table: {
            "inserted": table.totals.inserted,
            "updated": table.totals.updated,
            "deleted": table.totals.deleted,
        },
        "change",
    ),
    _Family(
        "refresh_bytes",
        "Bytes that refreshes exchanged with the source.",
        lambda table: {"sent": table.totals.sent, "received": table.totals.received},
        "direction",
    ),
    _Family(
        "refresh_held_back_seconds",
        "Seconds for which the source read more slowly, to spare its database.",
        _one(lambda table: table.totals.held_back_s),
    ),
)


def numbers(
    config: WarehouseConfig, tables: Mapping[str, TableCounters], now: datetime
) -> Iterator[Metric]:
    """Yield the metrics of all tables.

    Args:
        tables: the counters of those that are known; others have a limit alone.
        now: with a time zone.
    """
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        SummaryMetricFamily,
    )

    place = config.path
    yield _filled(
        GaugeMetricFamily(
            f"{_NAME}metrics_written_timestamp_seconds",
            "When these numbers were written.",
            labels=["warehouse"],
        ),
        [([place], now.timestamp())],
    )
    limits = ((one.name, freshness_limit_s(config, one)) for one in _configured(config))
    yield _filled(
        GaugeMetricFamily(
            f"{_NAME}freshness_limit_seconds",
            "The age from which the table is stale; absent: none is asked for.",
            labels=["warehouse", "table"],
        ),
        [([place, name], limit) for name, limit in limits if limit is not None],
    )
    for kind, families in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS)):
        for family in families:
            labels = ["warehouse", "table", *filter(None, [family.label])]
            samples = [
                ([place, name, own][: len(labels)], value)
                for name, table in tables.items()
                for own, value in family.samples(table).items()
                if value is not None
            ]
            yield _filled(kind(f"{_NAME}{family.name}", family.help, labels=labels), samples)
    durations = SummaryMetricFamily(
        f"{_NAME}refresh_duration_seconds",
        "Seconds of refreshes, by phase.",
        labels=["warehouse", "table", "phase"],
    )
    for name, table in tables.items():
        for phase, seconds in table.totals.phases.items():
            durations.add_metric([place, name, phase], table.totals.attempts, seconds)
    yield durations


def _filled(family: Metric, samples: Sequence[tuple[Sequence[str], float]]) -> Metric:
    for labels, value in samples:
        family.add_metric(labels, value)  # type: ignore[attr-defined]
    return family


def _configured(config: WarehouseConfig) -> list[Fragment | View]:
    return [*config.fragments.values(), *config.views.values()]


def page(
    config: WarehouseConfig,
    store: Store,
    reports: Sequence[Report],
    now: datetime,
    *,
    read_s: float = READ_S,
) -> bytes:
    """Return the numbers in the text format of Prometheus.

    Args:
        reports: of the command that has ended.
        read_s: for reading histories that are not known yet.

    Raises:
        WarehouseUnavailable: the warehouse cannot be read.
    """
    names = [one.name for one in _configured(config)]
    lines = {one.name: one.to_json() for one in reports if one.not_started is None}
    tables = counted(store, names, lines, read_s=read_s)
    from prometheus_client import generate_latest  # now: what was read is kept, come what may

    return generate_latest(_Collected([*numbers(config, tables, now)]))


@dataclass(frozen=True, slots=True)
class _Collected:
    """What the library calls a collector."""

    metrics: Sequence[Metric]

    def collect(self) -> Sequence[Metric]:
        """Return the metrics."""
        return self.metrics


@dataclass
class ServedPage:
    """The page that this process serves; `body` None: there is none yet."""

    is_served: bool = False
    body: bytes | None = None


_served: Final = ServedPage()  # a process has one


@dataclass
class MetricsTeller:
    """Writes the textfile, and renews the page that `run` serves."""

    name: str = "metrics"

    def tell(self, ended: EndedCommand) -> None:
        """Do it.

        Raises:
            WarehouseUnavailable: the warehouse cannot be read, or the file not written.
        """
        settings = ended.config.metrics
        assert settings is not None
        body = page(ended.config, ended.store, ended.reports, ended.now)
        _served.body = body
        if settings.textfile is not None:
            write_textfile(settings.textfile, body)


def write_textfile(file: Path, body: bytes) -> None:
    """Write the textfile in one step; whoever reads it is another login.

    Raises:
        WarehouseUnavailable: it cannot be written.
    """
    beside = file.with_name(f".{file.name}.{uuid.uuid4().hex[:8]}.tmp")
    with file_errors("written", str(file), len(body)):
        try:
            beside.write_bytes(body)
            beside.chmod(0o644)  # whatever the umask of the command
            beside.replace(file)
        finally:
            beside.unlink(missing_ok=True)


def teller(config: WarehouseConfig) -> MetricsTeller | None:
    """Return who is told of the commands of a warehouse; None: nobody would read the numbers."""
    settings = config.metrics
    is_read = settings is not None and (settings.textfile is not None or _served.is_served)
    return MetricsTeller() if is_read else None


@contextlib.contextmanager
def listening(config: WarehouseConfig, say: Callable[[str], None]) -> Iterator[None]:
    """Serve the numbers while a process refreshes, if that is set; `say` prints the address.

    Raises:
        ConfigurationError: the address cannot be used.
    """
    if config.metrics is None or config.metrics.listen is None:
        yield
        return

    def newest() -> bytes | None:
        if _served.body is None:  # no command has ended yet
            now = datetime.now(UTC)
            _served.body = page(config, Store.of(config), (), now, read_s=FIRST_READ_S)
        return _served.body

    server = MetricsServer(*config.metrics.listen, newest)
    say(f"metrics on {server.address}")
    _served.is_served = True
    try:
        yield
    finally:
        server.stop()
        _served.is_served, _served.body = False, None
