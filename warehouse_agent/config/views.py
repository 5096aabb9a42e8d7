"""The tables [views.NAME]: queries over fragments and views, and how they are maintained."""

from __future__ import annotations

from driftline.settings import TomlTable, duration_s

from warehouse_agent.config import schedule
from warehouse_agent.config.choices import choice
from warehouse_agent.config.names import check_name
from warehouse_agent.config.settings import Maintain, OnFailure, View

SETTINGS = ("query", "maintain", "on_failure", "max_lag", "chunk_rows", *schedule.SETTINGS)
MAX_LAG_DAYS_MAX = 7  # `gc` keeps what readers are given, and all that was committed since
_AUTO = "auto"  # of `chunk_rows`


def parse(name: str, table: TomlTable) -> View:
    """Return the view of one table. Raises ConfigurationError, with the key."""
    check_name(name, table, "view")
    maintain = table.text("maintain", default=Maintain.AUTO.value)
    on_failure = table.text("on_failure", default=OnFailure.STALE.value)
    return View(
        name=name,
        query=table.text("query"),
        maintain=choice(table, "maintain", maintain, Maintain),
        on_failure=choice(table, "on_failure", on_failure, OnFailure),
        max_lag_s=_max_lag_s(table),
        chunk_rows=_chunk_rows(table),
        timing=schedule.parse(name, table, zone=""),  # of each fragment: that of its source
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
