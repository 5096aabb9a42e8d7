"""The tables [views.NAME]: queries over fragments and views, and how they are maintained."""

from __future__ import annotations

from driftline.setting_kinds import TEXT, choice, duration, integer, or_word

from warehouse_agent.config import schedule
from warehouse_agent.config.names import check_name
from warehouse_agent.config.schedule import TimingTable
from warehouse_agent.config.settings import Maintain, OnFailure, View

MAX_LAG_DAYS_MAX = 7  # `gc` keeps what readers are given, and all that was committed since


class ViewTable(TimingTable):
    """A query over fragments and views, and how it is maintained."""

    query = TEXT.required("a query over relations of several sources; see [views.md](views.md)")
    maintain = choice(Maintain).by_default(
        Maintain.AUTO.value,
        "how the view follows its inputs; see [maintenance](views.md#maintenance)",
    )
    on_failure = choice(OnFailure).by_default(
        OnFailure.STALE.value,
        'what moves if the view fails; `"stale"`: its inputs, `"hold"`: nothing',
    )
    max_lag = duration(
        least=0,
        most=MAX_LAG_DAYS_MAX * 86_400,
        why=f"Readers can be kept waiting for at most {MAX_LAG_DAYS_MAX} days.",
    ).by_default("0s", "how long changes may [wait for the view](views.md#staleness)")
    chunk_rows = or_word(integer("rows", least=1), "auto", None, "a number of rows").by_default(
        "auto", "changed rows that are gathered before a view phase"
    )


def parse(name: str, table: ViewTable) -> View:
    """Return the view of one table. Raises ConfigurationError, with the key."""
    check_name(name, table, "view")
    return View(
        name=name,
        query=table.query,
        maintain=table.maintain,
        on_failure=table.on_failure,
        max_lag_s=table.max_lag,
        chunk_rows=table.chunk_rows,
        timing=schedule.parse(name, table, zone=""),  # of each fragment: that of its source
    )
