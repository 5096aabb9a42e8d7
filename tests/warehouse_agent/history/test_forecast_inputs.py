"""What a prediction depends on, out of what was read: how rows are packed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tests.samples.rows import recipe
from warehouse_agent.columns.layout import lay_out
from warehouse_agent.config import Fragment, Source
from warehouse_agent.history.forecast_inputs import Situation
from warehouse_agent.history.notes import Notes
from warehouse_agent.planning import prices
from warehouse_agent.planning.choice import partition_for
from warehouse_agent.planning.network import LOAD_LEVEL, REFRESH_LEVEL, Line
from warehouse_agent.planning.plan_inputs import PlanInputs
from warehouse_agent.planning.prices import LearntPrices
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.storage.table import Snapshot, VersionRecord

ROWS = 10_000
FILE = DataFile("data/f", "file:///data/f", 9, ROWS)


def known(base: Snapshot | None, files: tuple[DataFile, ...]) -> PlanInputs:
    now, source = datetime(2026, 11, 29, tzinfo=UTC), Source("erp", "127.0.0.1:1")
    at = Situation(
        fragment=Fragment("t", source, "t"),
        base=base,
        recipe=None if base is None else base.layout.recipe,
        notes=Notes(),
        earlier=(),
        line=Line(),
        now=now,
        rows_told=ROWS,
    )
    ours = sum(file.rows for file in files)
    return at.known(files, partition_for([], ours, integer_key=False))


@pytest.mark.parametrize("files", [(), (FILE,)])
def test_a_load_is_packed_as_one_whatever_is_staged(files: tuple[DataFile, ...]) -> None:
    """All rows are expected to come, or the rest: none of its working copy was published."""
    load = known(None, files)
    assert load.is_load
    assert load.level(load.ours) == load.level(load.ours, at_once=True) == LOAD_LEVEL
    assert load.prices == prices.from_notes(LearntPrices(), 1, level=LOAD_LEVEL)


def test_a_version_decides_not_what_is_staged_beside_it() -> None:
    more = replace(FILE, path="data/g")
    record = VersionRecord(
        as_of="", checked_at="", consistency="exact", proof="total", rows=ROWS, published_at=""
    )
    base = Snapshot(
        0, "table", (FILE,), lay_out(recipe(["int8", "text"]), {}, where="t"), record, None
    )
    found = [known(base, files) for files in ((FILE,), (FILE, more))]
    assert [(at.is_load, at.level(at.ours)) for at in found] == [(False, REFRESH_LEVEL)] * 2
    lost = known(replace(base, lost=(FILE,)), (more,))
    assert lost.is_load, "all of its rows come again"
    assert lost.level(lost.ours) == LOAD_LEVEL
