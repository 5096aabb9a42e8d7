"""What a warehouse may read of a relation: decided without a database, then asked over the wire."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from driftline import wire_pb2 as pb
from driftline.errors import DriftlineError, LimitExceeded, NotNow
from driftline.reconciliation.ranges import POSITION_MAX, POSITION_MIN
from driftline.rows.digests import Digest
from driftline.settings.hours import DAY, Hours
from driftline.wire_pb2_grpc import SourceStub
from hypothesis import given
from hypothesis import strategies as st

from source_agent.budgets.allowance import allowance, check_scan, instant, needs_scan
from source_agent.budgets.budget import Governor
from source_agent.config.file import ServedRelation
from source_agent.config.scan_hours import ScanHours
from source_agent.engines.relations.shapes import Relation
from source_agent.server.service import Server, start
from tests.harness.agents import Peer, Recorded, channel, configuration, make_orders, opening
from tests.harness.exchange_pair import open_session

NOON = datetime(2026, 3, 1, 12)  # noqa: DTZ001 - local time
NIGHT = ScanHours((Hours(1320, 1740),))
NEVER = ScanHours(())
WHOLE = pb.Open()
PART = pb.Open(grouping=pb.Grouping(rows_max=1000))
GROUPS = pb.Open(grouping=pb.Grouping(span=9))
SKETCH = pb.Open(count=1, sketch=pb.Sketch(span=9))
TILE = pb.Open(within=pb.Within(first=0, last=9))
ALL_POSITIONS = pb.Open(within=pb.Within(first=POSITION_MIN, last=POSITION_MAX))
FROM_KEY = pb.Open(between=pb.Between(lower=["a"]))
TO_KEY = pb.Open(between=pb.Between(upper=["a"]))
ALL_KEYS = pb.Open(between=pb.Between())
ROWS = [(n, f"comment {n}") for n in range(2000)]


def served(scan: ScanHours | None, rows_by_key: int | None = None) -> ServedRelation:
    relation = Relation("orders", table="orders", rows_by_key=rows_by_key)
    return ServedRelation(relation, scan=scan)


@pytest.mark.parametrize("opening", [WHOLE, GROUPS, SKETCH, ALL_POSITIONS, ALL_KEYS])
def test_what_needs_a_scan(opening: pb.Open) -> None:
    assert needs_scan(opening, is_limited=False)
    with pytest.raises(LimitExceeded, match="allows no scan") as never:
        check_scan(opening, served(NEVER), NOON)
    assert (never.value.where, never.value.is_retryable) == ("orders", False)
    assert "read_at_most" in never.value.remedy
    with pytest.raises(NotNow, match="22:00-05:00") as later:
        check_scan(opening, served(NIGHT), NOON)
    begins = instant(NOON + timedelta(hours=10))
    assert begins in later.value.message
    assert later.value.details == {"next scan": begins}
    check_scan(opening, served(NIGHT), NOON + timedelta(hours=11))
    check_scan(opening, served(None), NOON)


@pytest.mark.parametrize("opening", [PART, TILE, FROM_KEY, TO_KEY])
def test_what_is_read_by_key_at_any_time(opening: pb.Open) -> None:
    assert not needs_scan(opening, is_limited=False)
    check_scan(opening, served(NEVER), NOON)
    check_scan(opening, served(NIGHT), NOON)


@pytest.mark.parametrize("opening", [ALL_POSITIONS, ALL_KEYS])
def test_a_tile_without_bounds_is_no_scan_if_its_rows_are_limited(opening: pb.Open) -> None:
    check_scan(opening, served(NEVER, 1000), NOON)
    with pytest.raises(LimitExceeded):
        check_scan(WHOLE, served(NEVER, 1000), NOON)


@given(
    st.lists(st.sampled_from([Hours(0, 300), Hours(600, 900), Hours(1320, 1440)]), unique=True),
    st.integers(0, DAY * 60 - 1),
    st.sampled_from([None, 1000]),
)
def test_a_description_says_what_an_opening_meets(
    spans: list[Hours], second: int, rows_by_key: int | None
) -> None:
    now = NOON.replace(hour=0) + timedelta(seconds=second)
    relation = served(ScanHours(tuple(spans)), rows_by_key)
    found = allowance(relation, now)
    assert found.rows_by_key == (rows_by_key or 0)
    met: DriftlineError | None = None
    try:
        check_scan(WHOLE, relation, now)
    except DriftlineError as error:
        met = error
    assert found.scan == (met is None)
    assert bool(found.ends) == bool(spans)
    if isinstance(met, NotNow):
        assert met.details == {"next scan": found.begins}
        then = datetime.fromisoformat(found.begins).astimezone().replace(tzinfo=None)
        check_scan(WHOLE, relation, then)
        with pytest.raises(NotNow):
            check_scan(WHOLE, relation, then - timedelta(seconds=1))
    else:
        assert not found.begins
        assert (met is None) == bool(spans)
    if found.scan:
        end = datetime.fromisoformat(found.ends).astimezone().replace(tzinfo=None)
        check_scan(WHOLE, relation, end - timedelta(seconds=1))
        with pytest.raises(NotNow):
            check_scan(WHOLE, relation, end)


def test_a_relation_without_hours_is_always_scanned() -> None:
    assert allowance(served(None), NOON) == pb.Allowance(scan=True)
    assert instant(datetime.fromtimestamp(0, UTC).astimezone().replace(tzinfo=None)) == (
        "1970-01-01T00:00:00Z"
    )


# Over the wire.


class Agent:
    """A running source of one table whose local time a test sets."""

    def __init__(self, folder: Path, settings: str) -> None:
        self.folder, self.now = folder, NOON
        make_orders(folder / "erp.db", ROWS)
        relations = f'[relations.orders]\ntable = "orders"\n{settings}\n'
        config = configuration(folder, folder / "erp.db", certs=None, relations=relations)
        self.engine = Recorded(config)
        governor = Governor(config.budget, wall=lambda: self.now)
        self.server: Server = start(config, engine=self.engine, governor=governor)
        with closing(open_session(folder / "erp.db")) as session:
            self.recipe = session.describe(Relation("orders", table="orders")).recipe.id

    def asked(self, peer: Peer, change: pb.Open = WHOLE) -> pb.Reply:
        """Send an opening with these fields; return the last reply to it."""
        request = opening(self.recipe)
        request.open.MergeFrom(change)
        peer.send(request)
        while True:
            reply = peer.reply()
            if reply.WhichOneof("message") in {"refused", "finished"}:
                return reply

    def audit(self) -> list[dict[str, object]]:
        return [json.loads(x) for x in (self.folder / "audit.jsonl").read_text().splitlines()]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Callable[[str], Agent]]:
    made: list[Agent] = []

    def begin(settings: str) -> Agent:
        made.append(Agent(tmp_path, settings))
        return made[-1]

    yield begin
    for agent in made:
        agent.server.stop()


@pytest.mark.starts
def test_a_scan_waits_for_its_hours(running: Callable[[str], Agent]) -> None:
    agent = running('scan = ["22:00-05:00"]')
    with channel(agent.server.port, None) as over, Peer(over) as peer:
        refused = agent.asked(peer).refused
        begins = instant(NOON + timedelta(hours=10))
        assert (refused.code, refused.where) == ("NOT_NOW", "orders")
        assert dict(refused.details) == {"next scan": begins}
        assert agent.engine.opened == 0, "nothing was read"
        tile = agent.asked(peer, TILE).finished
        assert (tile.count, tile.rows_read, tile.scans) == (10, 10, 0)
        agent.now = NOON + timedelta(hours=10)
        whole = agent.asked(peer).finished
        assert (whole.count, whole.scans) == (len(ROWS), 1)
        agent.now = NOON + timedelta(hours=17)
        assert agent.asked(peer).refused.code == "NOT_NOW"
    agent.server.stop()
    assert [line["outcome"] for line in agent.audit()] == ["NOT_NOW", "sent", "sent", "NOT_NOW"]


@pytest.mark.starts
def test_a_scan_that_began_in_its_hours_ends_after_them(running: Callable[[str], Agent]) -> None:
    """And so does the second one of its exchange."""
    agent = running('scan = ["22:00-05:00"]')
    agent.now = NOON + timedelta(hours=16, minutes=59)
    with channel(agent.server.port, None) as over, Peer(over) as peer:
        peer.send(opening(agent.recipe, ours=Digest(7, 1)))
        assert peer.reply().WhichOneof("message") == "verdict"
        agent.now = NOON + timedelta(hours=17)
        peer.send(pb.Request(whole=pb.Whole()))
        done = peer.until("finished")[-1].finished
        assert (done.count, done.scans) == (len(ROWS), 2)
        assert agent.asked(peer).refused.code == "NOT_NOW"


@pytest.mark.starts
def test_a_relation_that_is_never_scanned(running: Callable[[str], Agent]) -> None:
    agent = running('scan = "never"\nrows_by_key = 1000')
    with channel(agent.server.port, None) as over, Peer(over) as peer:
        assert agent.asked(peer).refused.code == "LIMIT"
        largest = pb.Open(within=pb.Within(first=0, last=999))
        assert agent.asked(peer, largest).finished.count == 1000
        for change in (pb.Open(within=pb.Within(first=0, last=1000)), ALL_POSITIONS):
            refused = agent.asked(peer, change).refused
            assert (refused.code, refused.where) == ("LIMIT", "orders")
            assert "rows_by_key" in refused.message
    agent.server.stop()
    read = [(line["rows_read"], line["scans"]) for line in agent.audit()]
    assert read == [(0, 0), (1000, 0), (1001, 0), (1001, 0)], "one row more at most"


@pytest.mark.starts
def test_a_description_has_the_allowance(running: Callable[[str], Agent]) -> None:
    agent = running('scan = ["22:00-05:00"]\nrows_by_key = 50000')
    asked = pb.DescribeRequest(protocol=1, relation="orders")
    with channel(agent.server.port, None) as over:
        describe = SourceStub(over).Describe
        begins, ends = (instant(NOON + timedelta(hours=hours)) for hours in (10, 17))
        (closed,) = describe(asked, timeout=10).allowances
        assert closed == pb.Allowance(begins=begins, ends=ends, rows_by_key=50_000)
        agent.now = NOON + timedelta(hours=10)
        sessions = agent.engine.opened
        listed = describe(pb.DescribeRequest(), timeout=10)
        assert list(listed.relations) == ["orders"]
        assert list(listed.allowances) == [pb.Allowance(scan=True, ends=ends, rows_by_key=50_000)]
        assert agent.engine.opened == sessions, "a list needs no database"


@pytest.mark.starts
@pytest.mark.parametrize(
    ("settings", "setting"),
    [("rows_by_key = 1000", "rows_by_key"), ('scan = "never"\nrows_by_key = 1000', "scan")],
)
def test_what_is_read_by_key_needs_an_index(
    running: Callable[[str], Agent], settings: str, setting: str
) -> None:
    agent = running(f'key = ["comment"]\n{settings}')
    with channel(agent.server.port, None) as over, Peer(over) as peer:
        refused = agent.asked(peer, TILE).refused
        assert (refused.code, refused.where) == ("CONFIGURATION", f"relations.orders.{setting}")
        assert "(comment)" in refused.message
        asked = pb.DescribeRequest(protocol=1, relation="orders")
        with pytest.raises(grpc.RpcError) as caught:
            SourceStub(over).Describe(asked, timeout=10)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    agent.server.stop()
    assert {line["rows_read"] for line in agent.audit()} == {0}
