"""Where Spark is needed it starts beside the exchange: the order is proven by events, not by time.

A start goes on only after a later phase has begun, so a refresh that waited for it would not end.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.harness.legacy import SqliteLegacy
from tests.harness.pair import Pair
from tests.harness.views import Sites
from warehouse_agent.config import select
from warehouse_agent.events import Event, PhaseStarted
from warehouse_agent.refresh.job import Options
from warehouse_agent.report import Report
from warehouse_agent.runs.batch import Runner
from warehouse_agent.spark import session
from warehouse_agent.spark.session import DeferredSession
from warehouse_agent.transport import preflight
from warehouse_agent.views.selection import select as select_tables

pytestmark = pytest.mark.spark

ROWS = 3000
# Digests of all rows count as 9,000 bytes, and their values are some 200,000.
SMALL = 20_000
S_MAX = 60.0


@dataclass
class Beside:
    """A pair whose warehouse starts Spark once a phase begins, and how often it did."""

    pair: Pair
    spark: SparkSession
    monkeypatch: pytest.MonkeyPatch
    begun: threading.Event = field(default_factory=threading.Event)  # the start of this refresh

    def refresh(
        self, *, small_bytes: int, until: str | None, waits_in: str | None = None
    ) -> Report:
        """Refresh in a session of its own.

        Args:
            until: the phase in which the start goes on; None: it must not begin.
            waits_in: the phase in which the refresh waits until the start has begun.
        """
        begun = self.begun = threading.Event()
        goes_on = threading.Event()

        def start(*_: object) -> SparkSession:
            begun.set()
            assert goes_on.wait(S_MAX)
            return self.spark

        def listen(event: Event) -> None:
            if not isinstance(event, PhaseStarted):
                return
            if event.phase == waits_in and not begun.wait(S_MAX):
                too_late.append(event.phase)
            if event.phase == until:
                goes_on.set()

        too_late: list[str] = []
        self.monkeypatch.setattr(session, "start", start)
        self.pair.small_bytes = small_bytes
        config = self.pair.config()
        runner = Runner(DeferredSession({}), config, (listen,), attempts=1)
        (report,) = runner.refresh(select(config, [], True), Options())
        assert (report.error, too_late) == (None, [])
        assert not begun.is_set() if until is None else begun.wait(S_MAX)
        goes_on.set()
        rows = [(row[0], row[1]) for row in self.pair.published("orders")]
        assert sorted(rows) == sorted(self.pair.legacy.rows("orders"))
        return report

    def change(self, where: str = "id % 10 = 3") -> None:
        self.pair.legacy.execute(f"UPDATE orders SET note = note || '!' WHERE {where}")


@pytest.fixture
def beside(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Beside]:
    legacy = SqliteLegacy(tmp_path / "erp.db")
    legacy.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY NOT NULL, note TEXT)")
    legacy.many(
        "INSERT INTO orders VALUES (?, ?)", [(i, f"{i * i:060}") for i in range(1, ROWS + 1)]
    )
    legacy.execute("ANALYZE")  # from which SQLite knows how many rows there are
    with Pair(spark, legacy, tmp_path / "pair", {"orders": 'table = "orders"'}) as pair:
        yield Beside(pair, spark, monkeypatch)
    legacy.close()


@pytest.mark.parametrize("small_bytes", [0, SMALL])
def test_a_large_load_is_compared_while_spark_starts(beside: Beside, small_bytes: int) -> None:
    loaded = beside.refresh(small_bytes=small_bytes, until="apply", waits_in="exchange")
    assert loaded.rows_inserted == ROWS
    assert loaded.places["apply"] == "spark"


def test_changes_that_needed_spark_before_are_expected_to_need_it(beside: Beside) -> None:
    beside.refresh(small_bytes=SMALL, until="apply")
    same = beside.refresh(small_bytes=SMALL, until=None)
    assert same.places == {"reduce": "driver"}
    beside.change()
    changed = beside.refresh(small_bytes=SMALL, until="apply")
    assert changed.places["apply"] == "spark"
    # As often unchanged as changed: the changes decide, once they are the more likely.
    for _ in range(2):
        beside.change()
        again = beside.refresh(small_bytes=SMALL, until="apply")
    beside.change()
    again = beside.refresh(small_bytes=SMALL, until="apply", waits_in="exchange")
    assert (again.rows_updated, again.places["apply"]) == (ROWS // 10, "spark")
    # A wrong expectation costs a start, for which nobody waits.
    assert beside.refresh(small_bytes=SMALL, until="never").version == again.version


def test_a_view_finds_spark_started_when_its_fragment_is_proven(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fragment's steps stay in this process; where nothing changed, nothing is started."""
    begun, goes_on = threading.Event(), threading.Event()
    too_late: list[str] = []

    def start(*_: object) -> SparkSession:
        begun.set()
        assert goes_on.wait(S_MAX)
        return spark

    def listen(event: Event) -> None:
        if isinstance(event, PhaseStarted) and event.phase == "prove":
            if not begun.wait(S_MAX):
                too_late.append(event.phase)
            goes_on.set()

    monkeypatch.setattr(session, "start", start)
    tables = {"erp": {"orders": "id INTEGER PRIMARY KEY NOT NULL, note TEXT"}}
    views = {"late": "SELECT id, note FROM orders WHERE id > 1"}
    with Sites(DeferredSession({}), tmp_path, tables, views) as sites:
        sites.fragment_lines["orders"] = 'source = "erp"'
        sites.sql("erp", "INSERT INTO orders VALUES (1, 'a'), (2, 'b'), (3, 'c')")
        for is_changed in (True, False):
            begun.clear()
            config = sites.config()
            runner = Runner(DeferredSession({}), config, (listen,), attempts=1)
            reports = runner.refresh(select_tables(config, [], True), Options())
            assert [(r.error, r.version) for r in reports] == [(None, 0), (None, 0)]
            assert (begun.is_set(), too_late) == (is_changed, [])
            assert set(reports[0].places.values()) == {"driver"}


def test_many_digests_are_known_before_the_source_is_asked(
    beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside.refresh(small_bytes=0, until="apply")
    ask = preflight.ask

    def asked_beside(*arguments: object) -> object:
        assert beside.begun.wait(S_MAX)
        return ask(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(preflight, "ask", asked_beside)
    for small_bytes in (0, ROWS * 3 - 1):
        assert beside.refresh(small_bytes=small_bytes, until="reduce").version == 0
    monkeypatch.setattr(preflight, "ask", ask)
    assert beside.refresh(small_bytes=ROWS * 3, until=None).version == 0
