"""`plan` before the first load on three engines: no bytes are told, whatever the catalogue says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from driftline import wire_pb2 as pb

from source_agent.config.file import Budget
from source_agent.engines.conformance.legacy import Legacy
from source_agent.engines.interface import Limits
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Relation
from source_agent.server import catalogue
from tests.harness.family import FAMILY
from tests.harness.legacies import OfMariaDB, OfMySQL, OfPostgreSQL, OfSQLite
from warehouse_agent.cli.plan import json_of, text_of
from warehouse_agent.config import Fragment, Source
from warehouse_agent.history.refresh_history import RefreshHistory
from warehouse_agent.inspection.refresh_prediction import Forecast, know, predict
from warehouse_agent.storage.store import Store

ROWS = 18
ENGINES = {"postgresql": OfPostgreSQL, "mariadb": OfMariaDB, "mysql": OfMySQL}


@pytest.fixture(params=[*ENGINES, "sqlite"])
def legacy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Legacy]:
    engine = ENGINES.get(request.param)
    made: OfPostgreSQL | OfMariaDB | OfSQLite
    if engine is None:
        made = OfSQLite(tmp_path / "erp.sqlite")
    else:
        made = engine(request.getfixturevalue(request.param))
    with closing(made):
        yield made


@pytest.mark.parametrize("width", [1, 100_000])
def test_a_plan_before_the_first_load_tells_no_bytes(
    legacy: Legacy, tmp_path: Path, width: int
) -> None:
    """Rows of a byte and of 100 kB have the same types: a price of both is wrong for one."""
    text = "longtext" if legacy.name in FAMILY else "text"
    legacy.run(f"CREATE TABLE notes (id BIGINT NOT NULL PRIMARY KEY, note {text})")
    legacy.insert("notes", [(number, "x" * width) for number in range(ROWS)])
    legacy.run("ANALYZE TABLE notes" if legacy.name in FAMILY else "ANALYZE notes")
    with closing(connect(legacy.url, None, Limits()).open()) as session:
        shape = session.describe(Relation("notes", table="notes"))
    reply = pb.DescribeReply(description=catalogue.describe(shape, Budget()))
    found = planned(reply, tmp_path)
    assert found.rows_expected == ROWS
    assert [candidate.bytes for candidate in found.candidates] == [None]
    assert "full copy: bytes not known" in text_of(found)
    assert json.loads(json_of(found))["candidates"][0]["bytes"] is None


def planned(reply: pb.DescribeReply, tmp_path: Path) -> Forecast:
    fragment = Fragment("notes", Source("erp", "erp:1"), "notes")
    store = Store(str(tmp_path / "warehouse"))
    return predict(*know(store, fragment, RefreshHistory(), reply))
