"""A table in which mostly the same rows change is compared by groups without a setting; one whose
rows are equally likely to change is not."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair
from warehouse_agent.history import line_notes
from warehouse_agent.inspection import refresh_prediction
from warehouse_agent.planning.candidates import GROUPED_AFTER
from warehouse_agent.planning.network import Line, Objective

ROWS, HOT, SEEN = 12_000, 3_600, GROUPED_AFTER


@pytest.mark.parametrize(
    ("is_hot", "line"),
    [(True, Line()), (False, Line(objective=Objective.BYTES))],
    ids=["hot", "all alike"],
)
def test_groups_are_taken_where_they_cost_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_hot: bool, line: Line
) -> None:
    monkeypatch.setattr(line_notes, "line", lambda *_: line)
    draw = random.Random(50)
    legacy = SqliteLegacy(tmp_path / "erp.db")
    legacy.execute("CREATE TABLE prices (id INTEGER PRIMARY KEY, note BLOB, price INTEGER)")
    rows = [(key, draw.randbytes(30), 0) for key in range(ROWS)]
    legacy.many("INSERT INTO prices VALUES (?, ?, ?)", rows)
    hot = draw.sample(range(ROWS), HOT)
    try:
        with Pair(NoSpark(), legacy, tmp_path / "pair", {"prices": 'table = "prices"'}) as pair:
            pair.fragment_lines["prices"] = 'interval_max = "1h"'
            pair.refresh("prices")
            methods = []
            for day in range(1, SEEN + 3):
                some = hot if is_hot else draw.sample(range(ROWS), HOT)
                changed = [(day, key) for key in some if draw.random() < 0.98]
                legacy.many("UPDATE prices SET price = ? WHERE id = ?", changed)
                said = foretold(pair)
                report = pair.refresh("prices")
                assert (report.error, report.proof) == (None, "total")
                assert report.rows_updated == len(changed)
                assert (said.chosen == "by groups") == (report.method == "group")
                methods.append(report.method)
                pair.check("prices")
            assert (set(methods[SEEN:]) == {"group"}) == is_hot
            assert ("group" in methods) == is_hot
    finally:
        legacy.close()


def foretold(pair: Pair) -> refresh_prediction.Forecast:
    """Return what `plan` says of the next refresh."""
    fragment = pair.config().fragments["prices"]
    return refresh_prediction.forecast(pair.store, fragment, pair.steps)
