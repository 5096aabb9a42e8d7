"""Markers on real servers: which rows are behind a mark, what is refused, and what is issued."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from driftline import wire_pb2 as pb
from driftline.errors import ConfigurationError, SnapshotLost
from driftline.relations.derivations import DerivablePart, Derivation
from driftline.rows.digests import MASK64, Salt
from driftline.rows.key_digests import hash_seed, hashed

from source_agent.budgets.budget import GovernedSession, Governor
from source_agent.config.file import Budget
from source_agent.engines.conformance.legacy import Legacy
from source_agent.engines.conformance.reads import (
    decoded,
    engine_of,
    flat,
    key_hashes,
    markers_of,
    session_of,
)
from source_agent.engines.relations.markers import Mark, Marker, MarkerKind
from source_agent.engines.relations.predicates import slotted
from source_agent.engines.relations.shapes import Relation
from source_agent.scan.marked import begin
from source_agent.scan.reader import ReadCounts, Reader
from tests.harness.family import FAMILY, spelled_as
from tests.harness.legacies import KINDS

TIMES = {"postgresql": "timestamp(6)", "mariadb": "datetime(6)", "sqlite": "DATETIME"}
WRITTEN = ["2026-03-01 10:00:00", "2026-03-01 10:00:00.5", "2026-03-01 10:00:01", None]
BY_TIME = Marker("at", late_s=60.0, zone="UTC")
BY_VERSION = Marker("version")
BY_CHECKSUM = Marker("note", checksum=True)


@pytest.fixture(params=KINDS)
def legacy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Legacy]:
    made = KINDS[request.param](request, tmp_path)
    yield made
    made.close()


def filled(legacy: Legacy) -> None:
    at = TIMES[spelled_as(legacy.name)]
    legacy.run(
        f"CREATE TABLE t (id bigint PRIMARY KEY, at {at}, version bigint,"
        " gone smallint, note varchar(40))",
        "CREATE INDEX t_at ON t (at)",
    )
    rows = [(i, at, i, 0, f"row {i}") for i, at in enumerate(WRITTEN)]
    legacy.insert("t", [*rows, (10, WRITTEN[0], None, 1, "flagged")])


def relation(marker: Marker, **more: object) -> Relation:
    return Relation("t", table="t", columns=("id", "note"), marker=marker, **more)  # type: ignore[arg-type]


def behind(legacy: Legacy, marker: Marker, at: str) -> list[int]:
    with session_of(legacy) as session:
        shape = session.describe(relation(marker))
        rows = flat(markers_of(session).read_marked(shape, Mark("", at)))
        return sorted(int(decoded(row, shape)[0] or 0) for row in rows)


def test_rows_at_the_mark_are_behind_it(legacy: Legacy) -> None:
    filled(legacy)
    assert behind(legacy, BY_TIME, "2026-03-01 10:00:00") == [0, 1, 2, 3, 10]
    assert behind(legacy, BY_TIME, "2026-03-01 10:00:01") == [2, 3]
    assert behind(legacy, BY_TIME, "2026-03-01 10:00:02") == [3]
    assert behind(legacy, BY_VERSION, "2") == [2, 3, 10]
    legacy.run("UPDATE t SET note = NULL WHERE id = 2")
    assert behind(legacy, BY_CHECKSUM, "") == [2]


def test_flagged_rows_are_gone(legacy: Legacy) -> None:
    filled(legacy)
    flag = Marker("at", late_s=60.0, zone="UTC", deleted="gone")
    assert behind(legacy, flag, "2026-03-01 10:00:00") == [0, 1, 2, 3]
    with session_of(legacy) as session:
        shape = session.describe(relation(flag))
        assert len(flat(session.scan(shape))) == len(WRITTEN)


def test_the_mark_of_a_snapshot(legacy: Legacy) -> None:
    filled(legacy)
    with session_of(legacy) as session:
        times = markers_of(session).mark(session.describe(relation(BY_TIME)))
        versions = markers_of(session).mark(session.describe(relation(BY_VERSION)))
        assert versions.at == "3"
        assert versions.source == times.source
        # The snapshot's own clock minus `late`, in whole seconds.
        assert times.at[:10] <= session.snapshot.as_of[:10]
        assert len(times.at) == len("2026-03-01 10:00:00")
    legacy.run("DELETE FROM t")
    with session_of(legacy) as session:
        assert int(markers_of(session).mark(session.describe(relation(BY_VERSION))).at) == -(2**63)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Vienna", "America/St_Johns"])
def test_times_in_the_future_are_counted_by_the_clock_of_the_writers(
    legacy: Legacy, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a zone's clocks are set back in autumn: then an hour is not known to be ahead."""
    filled(legacy)
    local = datetime.now(ZoneInfo(zone))
    ahead = [timedelta(), timedelta(seconds=30), timedelta(hours=3), timedelta(days=900)]
    written = [(local + by).strftime("%Y-%m-%d %H:%M:%S") for by in ahead]
    legacy.insert("t", [(100 + i, at, i, 0, "now") for i, at in enumerate(written)])
    marker, issued = Marker("at", late_s=60.0, zone=zone), list[str]()
    slow = Governor(Budget(rows_per_second=1.0))
    legacy.record(monkeypatch, issued)
    with session_of(legacy) as session:
        shape = session.describe(relation(marker))
        issued.clear()
        assert markers_of(session).count_future(shape) == 2
        assert issued
        issued.clear()  # all rows at once would be over the rate
        governed = GovernedSession(session, slow, threading.Event())
        assert markers_of(governed).count_future(shape) == 0
        assert not issued


@pytest.mark.parametrize(
    ("marker", "setting"),
    [
        (Marker("note"), "column"),
        (Marker("nowhere"), "column"),
        (Marker("at", zone="UTC"), "late"),
        (Marker("at", late_s=60.0), "zone"),
        (Marker("version", late_s=60.0), "late"),
        (Marker("version", zone="UTC"), "zone"),
        (Marker("version", deleted="note"), "deleted"),
        (Marker("version", deleted="nowhere"), "deleted"),
        (Marker("nowhere", checksum=True), "checksum"),
        (Marker("version", checksum=True), "checksum"),
        (Marker("id", checksum=True), "checksum"),
    ],
)
def test_what_cannot_be_a_marker_is_refused(legacy: Legacy, marker: Marker, setting: str) -> None:
    filled(legacy)
    with session_of(legacy) as session, pytest.raises(ConfigurationError) as refused:
        session.describe(relation(marker))
    assert refused.value.where == f"t: marker.{setting}"
    assert refused.value.remedy


def test_a_database_that_hashes_keys_hashes_them_as_we_do(legacy: Legacy) -> None:
    legacy.run("CREATE TABLE t (id bigint, name varchar(40), at bigint, PRIMARY KEY (id, name))")
    keys = [(i * 2**33 - 5, f"é{i}" * (i % 4)) for i in range(300)]
    legacy.insert("t", [(*key, 1) for key in keys])
    salt = Salt.fresh()
    with session_of(legacy) as session:
        shape = session.describe(Relation("t", table="t", marker=Marker("at")))
        found = key_hashes(session, shape, hash_seed(salt))
    if legacy.name != "postgresql":
        assert found is None
        return
    rows = [struct.pack(">iqi", 8, id, len(name.encode())) + name.encode() for id, name in keys]
    starts = np.cumsum([0, *map(len, rows)])[:-1].astype(np.int64)
    buffer = np.frombuffer(b"".join(rows), np.uint8)
    assert found == (300, hashed(buffer, starts, 2, salt) & MASK64)


def test_a_scan_by_a_checksum_reads_two_columns(legacy: Legacy) -> None:
    filled(legacy)
    with session_of(legacy) as session:
        narrow = session.describe(relation(BY_CHECKSUM)).narrow()
        rows = [decoded(row, narrow) for row in flat(session.scan(narrow))]
    assert [column.name for column in narrow.recipe.columns] == ["id", "note"]
    assert sorted(rows)[:2] == [["0", "row 0"], ["1", "row 1"]]


def test_a_choice_without_the_checksum_has_no_mark(legacy: Legacy) -> None:
    filled(legacy)
    described = Relation("t", table="t", columns=("id", "version", "note"), marker=BY_CHECKSUM)
    with session_of(legacy) as session:
        shape = session.describe(described)
        for names, why in ((("id", "note"), ""), (("id", "version"), "not among the columns")):
            chosen = session.derive(shape, Derivation(names))
            reader = Reader(
                session, chosen, fragment_key=bytes(32), salt=Salt.fresh(), tally=ReadCounts()
            )
            found = begin(session, reader, pb.Since())
            assert (bool(found.next), why in found.why) == (not why, True)
        assert engine_of(legacy).templates([slotted(shape, {DerivablePart.COLUMNS})])


JOINED = Relation(
    "q",
    query="SELECT a.id, b.note, a.at AS a_at, b.version AS b_version FROM t a, t b"
    " WHERE b.id = a.id AND b.note LIKE '%w%'",
    key=("id",),
    columns=("id", "note"),
    marker=Marker(
        "",
        joined=(("a", Marker("a_at", late_s=60.0, zone="UTC")), ("b", Marker("b_version"))),
    ),
)


def test_joined_markers(legacy: Legacy) -> None:
    filled(legacy)
    with session_of(legacy) as session:
        shape = session.describe(JOINED)

        def ids(at: str) -> list[int]:
            rows = flat(markers_of(session).read_marked(shape, Mark("", at)))
            return sorted(int(decoded(row, shape)[0] or 0) for row in rows)

        assert ids('["2026-03-01 10:00:01", "100"]') == [2, 3]
        assert ids('["2026-03-01 10:00:02", "1"]') == [1, 2, 3]
        assert shape.marker is not None
        times, version = markers_of(session).mark(shape).each(shape.marker)
        assert (len(times), version) == (len("2026-03-01 10:00:00"), "3")
    late = replace(JOINED, marker=Marker("", joined=(("a", Marker("a_at", zone="UTC")),)))
    with session_of(legacy) as session, pytest.raises(ConfigurationError) as refused:
        session.describe(late)
    assert refused.value.where == "q: markers.a.late"


@pytest.mark.parametrize(
    "described",
    [
        *map(relation, [BY_TIME, BY_VERSION, Marker("version", deleted="gone"), BY_CHECKSUM]),
        JOINED,
    ],
    ids=["time", "version", "deleted", "checksum", "joined"],
)
def test_what_a_marker_issues_is_a_template(
    legacy: Legacy, monkeypatch: pytest.MonkeyPatch, described: Relation
) -> None:
    filled(legacy)
    issued: list[str] = []
    engine = engine_of(legacy)
    with monkeypatch.context() as patch:
        legacy.record(patch, issued)
        with closing(engine.open()) as session:
            shape = session.describe(described)
            mark = markers_of(session).mark(shape)
            flat(markers_of(session).read_marked(shape, mark))
            flat(markers_of(session).read_marked(shape.keys(), mark))
            flat(session.scan(shape.narrow()))
            key_hashes(session, shape, 5)
            markers_of(session).marked_read(shape)
            if (running := session.capabilities.running) is not None:
                running()
            markers_of(session).identity()
            if shape.marker is not None and shape.marker.kind is MarkerKind.TIME:
                markers_of(session).count_future(shape)
    templates = {legacy.general(sql) for sql in engine.templates([shape])}
    assert {legacy.general(sql) for sql in issued} <= templates
    if legacy.name == "postgresql":  # a command must be answered in seconds, a COPY need not
        assert all(sql.startswith("COPY") for sql in issued if ".max(" in sql)


def test_what_has_no_versions_is_refused(legacy: Legacy) -> None:
    filled(legacy)
    one = relation(Marker("", late_s=60.0, versioned=True))
    with session_of(legacy) as session, pytest.raises(ConfigurationError) as refused:
        session.describe(one)
    assert refused.value.where == "t: marker.versioned"


def test_truth_values_are_no_versions(legacy: Legacy) -> None:
    """A table of SQLite may hold them as integers."""
    if legacy.name in FAMILY:  # where BOOLEAN is another word for TINYINT(1)
        return
    legacy.run("CREATE TABLE t (id bigint PRIMARY KEY, done boolean, note varchar(40))")
    with session_of(legacy) as session, pytest.raises(ConfigurationError, match="is bool"):
        session.describe(relation(Marker("done")))
    with session_of(legacy) as session:
        session.describe(Relation("t", table="t", marker=Marker("id", deleted="done")))


def test_what_has_no_xmin_is_refused(legacy: Legacy) -> None:
    filled(legacy)
    legacy.run("CREATE VIEW seen AS SELECT * FROM t")
    relations = [
        Relation("v", table="seen", key=("id",), marker=Marker("")),
        Relation("q", query="SELECT * FROM t", key=("id",), marker=Marker("")),
    ]
    if legacy.name == "postgresql":
        legacy.run("CREATE MATERIALIZED VIEW kept AS SELECT * FROM t")
        relations.append(Relation("m", table="kept", key=("id",), marker=Marker("")))
    else:
        relations.append(relation(Marker("")))
    for one in relations:
        with session_of(legacy) as session, pytest.raises(ConfigurationError) as refused:
            session.describe(one)
        assert refused.value.where == f"{one.name}: marker.xmin"


def test_a_table_that_is_renamed_has_no_mark(legacy: Legacy) -> None:
    """A look-up in the catalogue that finds nothing is no answer."""
    if legacy.name != "postgresql":  # where the lock of the description is no obstacle to owners
        return
    filled(legacy)
    for marker in (Marker(""), BY_VERSION):
        with session_of(legacy) as session:
            shape = session.describe(relation(marker))
            gone = replace(shape, plan=replace(shape.plan, source='ONLY "nowhere"'))
            with pytest.raises(SnapshotLost, match="nowhere"):
                markers_of(session).mark(gone)
