"""A minimal new method, to show what one needs: comparison by the total alone.

The warehouse sends its total and no strata, which no other method opens with. Equal totals end the
exchange; otherwise the source ships every row. At the source the method is the one class below and
one entry of `registry.ANSWERS`: nothing else of the source agent knows of it.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Self

import pytest
from driftline import wire_pb2 as pb
from driftline.errors import MalformedMessage
from driftline.reconciliation.ranges import uniform
from driftline.rows import frames
from driftline.rows.digests import Digest, mix
from driftline.rows.fingerprints import fingerprints

from source_agent.engines.interface import Session
from source_agent.methods import registry
from source_agent.methods.comparison import Comparison, ReadCounts
from source_agent.methods.full_copy import send_everything
from source_agent.methods.interface import ExchangeEnd, Replies, Scan
from source_agent.methods.request_validation import ParsedOpening
from source_agent.scan.accumulators import RangeTotals
from tests import ROOT
from tests.harness.agents import FRAGMENT_KEY, SALT, opening
from tests.harness.exchange_pair import INTEGER, Table, encode, fill, open_session

ROWS: Table = [(key, f"row {key}", None) for key in range(300)]


class TotalCompared:
    """The answer to an opening by the total: rows, but no strata, no sketch and no groups."""

    @classmethod
    def match(cls, opening: ParsedOpening) -> Self | None:
        said = opening.message
        is_other = said.strata or said.HasField("sketch") or said.HasField("grouping")
        return cls() if said.count and not is_other else None

    def replies(self, scan: Scan) -> Replies[ExchangeEnd]:
        totals = RangeTotals(uniform(2))
        scan.fill(totals)
        if totals.sums.total == scan.ours:
            return ExchangeEnd(scan.ours, equal=True)
        return ExchangeEnd((yield from send_everything(scan)))


@pytest.fixture
def by_total(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "ANSWERS", (TotalCompared, *registry.ANSWERS))


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    fill(tmp_path / "erp.db", INTEGER, ROWS)
    with closing(open_session(tmp_path / "erp.db")) as made:
        yield made


def asked(session: Session, rows: Table, tally: ReadCounts) -> list[pb.Reply]:
    """Return every reply of the source to an opening, by their total, of a warehouse's rows."""
    shape = session.describe(INTEGER.relation)
    said = opening(shape.recipe.id, ours=total_of(session, rows), strata=b"").open
    return list(Comparison(session, shape, said, tally).answer(iter(())))


def total_of(session: Session, rows: Table) -> Digest:
    recipe = session.describe(INTEGER.relation).recipe
    return mix(SALT, *fingerprints(FRAGMENT_KEY, recipe)([encode(row) for row in rows])).digest()


@pytest.mark.usefixtures("by_total")
def test_equal_totals_end_it(session: Session) -> None:
    tally = ReadCounts()
    (finished,) = asked(session, ROWS, tally)
    assert finished.finished.equal
    assert (tally.scans, tally.rows_read) == (1, len(ROWS))


@pytest.mark.usefixtures("by_total")
def test_other_totals_ship_every_row(session: Session) -> None:
    updated: Table = [(5, "another row", None), *ROWS[6:], (1000, "a deleted row", None)]
    *shipped, end = asked(session, updated, ReadCounts())
    found: Counter[bytes] = Counter()
    recipe = session.describe(INTEGER.relation).recipe
    for reply in shipped:
        decoded = frames.decode(reply.rows.frame)
        found.update(frames.verify(decoded, fingerprints(FRAGMENT_KEY, recipe))[0].rows())
    assert found == Counter(encode(row) for row in ROWS)
    total = total_of(session, ROWS)
    assert (end.finished.equal, end.finished.count) == (False, total.count)
    assert end.finished.sum == total.sum_bytes()


def test_a_source_without_the_method_refuses_its_opening(session: Session) -> None:
    tally = ReadCounts()
    with pytest.raises(MalformedMessage):
        asked(session, ROWS, tally)
    assert tally.rows_read == 0


@pytest.mark.usefixtures("by_total")
def test_other_methods_are_answered_as_before(session: Session) -> None:
    shape = session.describe(INTEGER.relation)
    for ours, kinds in ((Digest(), ["rows", "finished"]), (total_of(session, ROWS), ["finished"])):
        said = opening(shape.recipe.id, ours=ours).open
        replies = Comparison(session, shape, said, ReadCounts()).answer(iter(()))
        assert [reply.WhichOneof("message") for reply in replies] == kinds


def test_nothing_outside_methods_knows_a_method_of_the_source() -> None:
    """A method is one module and its line in the registry."""
    shared = {"__init__", "comparison", "interface", "registry", "request_validation"}
    methods = {path.stem for path in (ROOT / "source_agent/methods").glob("*.py")} - shared
    assert {"full_copy", "groups", "ranges", "sketch"} <= methods
    for path in (ROOT / "source_agent").rglob("*.py"):
        if path.parent.name == "methods" and path.stem in {*methods, "registry"}:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
                known = {f"source_agent.methods.{method}" for method in methods} & names
                assert not known, f"{path.relative_to(ROOT)} imports {known}"
