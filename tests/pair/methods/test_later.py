"""The warehouse adds up its rows while the source scans: the same rows, whatever fails meanwhile.

Both agents over SQLite, without Spark. What is published is compared with the owner's own rows.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from driftline import wire_pb2 as pb
from driftline.errors import DriftlineError, LimitExceeded, SparkLost
from driftline.rows.digests import Digest
from driftline.wire import negotiation
from driftline.wire.negotiation import LATER

from source_agent.engines.encoding import rows
from source_agent.methods.interface import ExchangeEnd, Handover
from source_agent.methods.sketch import SketchDecoded
from source_agent.server.conversation import Conversation
from tests.harness.legacy import Legacy, SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair
from warehouse_agent.history.forecast_inputs import Situation
from warehouse_agent.methods.interface import WorkingCopy
from warehouse_agent.methods.sketch import SketchPlan, SketchSide
from warehouse_agent.planning import change_forecast
from warehouse_agent.planning.plan_inputs import PlanInputs
from warehouse_agent.refresh import prepare, whole
from warehouse_agent.refresh.job import Job
from warehouse_agent.storage import formats
from warehouse_agent.transport.channel import Stream
from warehouse_agent.transport.frame_admission import FrameAdmission

pytestmark = pytest.mark.starts

ROWS = 400
TABLES = {
    "orders": "CREATE TABLE orders (id INTEGER PRIMARY KEY, status INT, note TEXT)",
    "items": "CREATE TABLE items (id TEXT PRIMARY KEY NOT NULL, status INT, note TEXT)",
}
_reduced = SketchPlan.reduced


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    legacy, rng = SqliteLegacy(tmp_path / "erp.db"), random.Random(1)
    for name, ddl in TABLES.items():
        legacy.execute(ddl)
        rows = [(key, key % 7, rng.randbytes(12).hex()) for key in range(ROWS)]
        legacy.many(f"INSERT INTO {name} VALUES (?, ?, ?)", rows)
    relations = {name: f'table = "{name}"' for name in TABLES}
    with Pair(NoSpark(), legacy, tmp_path / "pair", relations) as made:
        for report in made.reports():
            assert report.error is None
        yield made
    legacy.close()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[pb.Request]:
    """What the warehouse sends, which forecasts that its sums are ready before a source."""
    monkeypatch.setattr(prepare, "_is_later", lambda job, *_: job.report.error is None)
    requests, send = list[pb.Request](), Stream.send

    def noted(self: Stream, request: pb.Request) -> None:
        requests.append(request)
        send(self, request)

    monkeypatch.setattr(Stream, "send", noted)
    return requests


def openings(sent: list[pb.Request]) -> list[pb.Open]:
    return [request.open for request in sent if request.HasField("open")]


def edit(legacy: Legacy, rng: random.Random, count: int) -> None:
    for name in TABLES:
        for key in rng.sample(range(2 * ROWS), count):
            match rng.randrange(3):
                case 0:
                    legacy.execute(f"DELETE FROM {name} WHERE id = ?", key)
                case 1:
                    legacy.execute(f"UPDATE {name} SET note = ? WHERE id = ?", "new", key)
                case _:
                    legacy.execute(f"INSERT OR REPLACE INTO {name} VALUES (?, 0, ?)", key, "put")


def checked(pair: Pair, **options: Any) -> list[Any]:
    reports = pair.reports(**options)
    for report in reports:
        assert report.error is None, report.error
    for name in TABLES:
        pair.check(name)
    return reports


def failing(
    monkeypatch: pytest.MonkeyPatch, fails: Callable[[WorkingCopy], object], times: int = 1
) -> None:
    """Call `fails` where our rows are added up, the first times."""
    left = [times]

    def reduced(self: SketchPlan, copy: WorkingCopy) -> SketchSide:
        if left[0]:
            left[0] -= 1
            fails(copy)
        return _reduced(self, copy)

    monkeypatch.setattr(SketchPlan, "reduced", reduced)


def lost(copy: WorkingCopy) -> None:
    raise SparkLost("A process of Spark ended.", where=copy.name)


def test_any_edit_is_found(pair: Pair, sent: list[pb.Request]) -> None:
    rng = random.Random(7)
    for count in (0, 1, 3, 40, 300, 0, 5, 700):
        edit(pair.legacy, rng, count)
        sent.clear()
        for report in checked(pair):
            assert report.rows_total == len(pair.legacy.rows(report.name))
            assert "reduce" in report.seconds
        said = openings(sent)
        assert [one.later for one in said] == [True, True]
        assert all(LATER in one.features and one.count and not one.sum for one in said)
        kinds = [request.WhichOneof("message") for request in sent]
        assert kinds.count("sums") == 2


def test_an_older_source_is_asked_for_nothing(
    pair: Pair, sent: list[pb.Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    older = {name: what for name, what in negotiation.FEATURES.items() if name != LATER}
    monkeypatch.setattr("source_agent.server.service.FEATURES", older)
    monkeypatch.setattr(negotiation.check_features, "__defaults__", (older,))
    edit(pair.legacy, random.Random(2), 9)
    checked(pair)
    assert [one.later for one in openings(sent)] == [False, False]
    assert not any(LATER in one.features for one in openings(sent))


def test_a_failure_beside_the_scan_publishes_nothing_and_is_tried_again(
    pair: Pair, sent: list[pb.Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other relation of the stream is compared in another one; the next attempt has its sums
    before it asks."""
    edit(pair.legacy, random.Random(3), 9)
    before = {name: pair.version(name) for name in TABLES}
    failing(monkeypatch, lost, times=1)
    reports = pair.reports()
    failed = [report.name for report in reports if report.error is not None]
    assert [report.error["code"] for report in reports if report.error] == [SparkLost.code]
    assert failed
    assert pair.version(failed[0]) == before[failed[0]]
    (other,) = TABLES.keys() - set(failed)
    pair.check(other)
    failing(monkeypatch, lost, times=1)
    edit(pair.legacy, random.Random(4), 9)
    sent.clear()
    checked(pair, attempts=2)
    assert sorted(one.later for one in openings(sent)) == [False, True, True]


def test_a_damaged_file_that_is_found_beside_the_scan_is_mended(
    pair: Pair, sent: list[pb.Request]
) -> None:
    head = formats.head(pair.store, "orders")
    assert head is not None
    place = pair.place(head.files[0].uri)
    data = bytearray(place.read_bytes())
    data[len(data) // 2] ^= 16
    place.write_bytes(data)
    edit(pair.legacy, random.Random(5), 9)
    checked(pair, attempts=4)
    assert any(one.later for one in openings(sent))


def test_a_source_does_not_wait_for_long(
    pair: Pair, sent: list[pb.Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gives the exchange up, and the next attempt does not let it wait."""
    gave_up, overdue = threading.Event(), Conversation._overdue

    def noted(self: Conversation, **options: bool) -> DriftlineError | None:
        self._idle_s = 0.1
        if (error := overdue(self, **options)) is not None:
            gave_up.set()
        return error

    def slow(_: WorkingCopy) -> None:
        assert gave_up.wait(60)

    monkeypatch.setattr(Conversation, "_overdue", noted)
    failing(monkeypatch, slow)
    edit(pair.legacy, random.Random(6), 9)
    assert max(report.attempts for report in checked(pair, attempts=2)) == 2
    assert sorted(one.later for one in openings(sent)) == [False, True, True]


def test_what_is_refused_of_rows_costs_no_other_scan_and_no_other_snapshot(
    pair: Pair, sent: list[pb.Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other relation is read in the same stream, and no attempt repeats what fails again."""
    streams, begin = list[Stream](), Stream.__init__

    def begun(self: Stream, *given: Any) -> None:
        streams.append(self)
        begin(self, *given)

    monkeypatch.setattr(Stream, "__init__", begun)
    for name, other in (("items", "orders"), ("orders", "items")):
        edit(pair.legacy, random.Random(3), 9)
        for code, row in (("VALUE", (9999, "abc", "")), ("LIMIT", (9999, 1, "x" * 5000))):
            monkeypatch.setattr(rows, "ROW_BYTES_MAX", 4000)
            pair.legacy.execute(f"INSERT INTO {name} VALUES (?, ?, ?)", *row)
            streams.clear()
            reports = {report.name: report for report in pair.reports(attempts=3)}
            assert (reports[name].error or {})["code"] == code
            assert reports[name].attempts == 1
            assert reports[other].error is None
            assert len(streams) == 1
            pair.legacy.execute(f"DELETE FROM {name} WHERE id = 9999")
    assert all(one.later for one in openings(sent))
    checked(pair)


def test_rows_for_which_there_is_no_room_are_not_pulled_again(
    pair: Pair, sent: list[pb.Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> Digest:
        raise LimitExceeded("The source has sent too much.")

    edit(pair.legacy, random.Random(5), 40)
    with monkeypatch.context() as patch:
        patch.setattr(FrameAdmission, "admit", full)
        for report in pair.reports(attempts=3):
            assert (report.error or {})["code"] == LimitExceeded.code
            assert report.attempts == 1
    checked(pair)
    assert all(one.later for one in openings(sent))


def test_a_lie_after_the_sums_is_found(
    pair: Pair, sent: list[pb.Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = SketchDecoded.decode

    def lying(self: SketchDecoded, *given: Any) -> Any:
        found = yield from decode(self, *given)
        assert not isinstance(found, Handover)
        return ExchangeEnd(found.total + Digest(0, 1), equal=True)

    monkeypatch.setattr(SketchDecoded, "decode", lying)
    assert pair.error("orders")["code"] == "MALFORMED"
    assert [one.later for one in openings(sent)] == [True]


def test_the_history_decides(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a source whose scan takes longer than our sums is asked before they are there."""
    later = list[bool]()
    send = Stream.send

    def noted(self: Stream, request: pb.Request) -> None:
        if request.HasField("open"):
            later.append(request.open.later)
        send(self, request)

    monkeypatch.setattr(Stream, "send", noted)
    monkeypatch.setattr(whole, "ROWS_TIMED", 10)
    rng = random.Random(8)
    for share, expected in ((0.0, False), (0.0, False), (1e9, False), (1e9, True)):
        if expected:
            monkeypatch.setattr(change_forecast, "LATER_S_MIN", 0.0)
        monkeypatch.setattr(change_forecast, "LATER_SHARE_MAX", share)
        edit(pair.legacy, rng, 5)
        later.clear()
        checked(pair)
        assert later == [expected] * 2


def test_only_the_first_attempt(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[bool]()

    is_later = prepare._is_later

    def noted(job: Job, at: Situation, known: PlanInputs) -> bool:
        asked.append(is_later(job, at, known))
        return asked[-1]

    monkeypatch.setattr(change_forecast, "reduces_first", lambda *_: True)
    monkeypatch.setattr(whole, "ROWS_TIMED", 10)
    monkeypatch.setattr(prepare, "_is_later", noted)
    checked(pair)
    assert asked == [False, False], "how fast the source reads is not known"
    asked.clear()
    failing(monkeypatch, lost, times=2)
    checked(pair, attempts=2)
    assert asked == [True, True, False, False]
