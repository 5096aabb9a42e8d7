"""The pages of a report as HTML, made from values by templates that escape every text.

A page has its style in itself, no script, and nothing that it would ask anybody for; its policy
(`Content-Security-Policy`) forbids the browser both.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from driftline.errors import WarehouseUnavailable, named
from driftline.peer_text import visible
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from warehouse_agent.history.totals import Totals, saving
from warehouse_agent.inspection.published_state import PublishedState
from warehouse_agent.monitoring.report import axes
from warehouse_agent.monitoring.report.charts import charts_of
from warehouse_agent.monitoring.report.index_rows import (
    TROUBLES_MAX,
    Cause,
    CommandRow,
    IndexRow,
    cause_of,
    failed_when,
    kinds_of,
    of_disk,
    of_last_day,
    troubles,
    urgent_rows,
    whole_of,
)
from warehouse_agent.monitoring.report.refresh_series import TableSeries
from warehouse_agent.report import bytes_text, release

PROOFS: Final = {
    "total": "all rows",
    "keys": "all keys; values as a marker says",
    "part": "those that were compared last",
    "claimed": "none were compared: a marker says so",
}
_BETWEEN = "\0"  # cells of a row while they are escaped; no printable text holds it
_PACKAGE = "warehouse_agent.monitoring.report"


@dataclass(frozen=True, slots=True)
class ReportScope:
    """The warehouse and the moment of a report.

    Attributes:
        file: the name of the configuration.
        now: its time, with a time zone.
        values: messages of errors may hold values of rows.
    """

    file: str
    now: datetime
    values: bool = False


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """Another schema of a table: when it was published, and the changes in words."""

    at: float
    version: int | None
    changes: tuple[str, ...] = ()


def index(
    scope: ReportScope,
    rows: Sequence[IndexRow],
    every: Sequence[Totals],
    commands: Sequence[CommandRow],
    no_room: WarehouseUnavailable | None = None,
) -> str:
    """Return the index of a report.

    Args:
        every: the totals of each table.
        no_room: why the next refresh may find no room on its disk.
    """
    wrong = [] if no_room is None else [of_disk(no_room)]
    wrong += troubles(rows, scope.now, values=scope.values)
    firsts = {one.kind: one for one in reversed(wrong)}
    reads = [row.all_reads for row in rows if row.all_reads is not None]
    return _environment().get_template("index.html").render(
        scope=scope,
        rows=urgent_rows(rows),
        whole=whole_of(every),
        since=min((row.since for row in rows if row.since), default=None),
        troubles=wrong[:TROUBLES_MAX],
        troubles_left=max(len(wrong) - TROUBLES_MAX, 0),
        to_look_at=sum(row.needs_a_look for row in rows),
        kinds=kinds_of(rows),
        firsts=firsts,
        last_day=of_last_day(rows, scope.now, values=scope.values),
        last_day_max=TROUBLES_MAX,
        all_reads=sum(reads) if reads else None,
        commands=commands,
    )  # fmt: skip


def table(
    scope: ReportScope,
    row: IndexRow,
    state: PublishedState,
    series: TableSeries,
    interval_s: float | None,
    schemas: Sequence[SchemaChange],
) -> str:
    """Return the page of a table.

    Args:
        interval_s: the longest time between two refreshes that is asked for; None: none is.
    """
    charts = charts_of(series, scope.now.timestamp(), interval_s)

    failed: dict[Cause, list[str]] = {}
    for one in series.failed:
        cause = cause_of(one, values=scope.values)
        failed.setdefault(cause, []).append(failed_when(one, scope.now))
    return _environment().get_template("table.html").render(
        scope=scope,
        row=row,
        state=state,
        charts=charts,
        troubles=troubles([row], scope.now, values=scope.values),
        series=series,
        failed=failed,
        schemas=schemas,
        proofs=PROOFS,
    )  # fmt: skip


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(_PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_readable,
    )
    environment.filters |= {
        "bytes": bytes_text,
        "short": axes.count_text,
        "span": axes.span_text,
        "moment": axes.moment_text,
        "saving": saving,
        "code": _with_code,
        "named": named,
        "cells": _cells,
    }
    environment.globals |= {"release": release()}
    return environment


def _cells(rows: Iterable[tuple[str, ...]], tag: str) -> Markup:
    """Return rows of a table; their texts are escaped row by row, for they are many."""
    lines = []
    for row in rows:
        shown = row if all(map(str.isprintable, row)) else map(visible, row)
        escaped = str(escape(_BETWEEN.join(shown)))
        lines.append(f"<tr><{tag}>{escaped.replace(_BETWEEN, f'<{tag}>')}")
    return Markup("\n".join(lines))  # noqa: S704 - escaped above


def _with_code(text: str) -> Markup:
    """Return a text whose parts between backquotes are code, escaped."""
    parts = visible(text).split("`")
    code, plain = Markup("<code>{}</code>"), Markup("{}")
    return Markup("").join((code if n % 2 else plain).format(p) for n, p in enumerate(parts))


def _readable(value: object) -> object:
    """Return a text with its unprintable characters escaped; anything else as it is."""
    return visible(value) if type(value) is str else value
