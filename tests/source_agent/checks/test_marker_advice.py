"""What `check` says about markers, on real engines, by a login that may only SELECT."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from source_agent.checks import marker_advice
from source_agent.checks.configuration import CheckReport, check
from source_agent.checks.statements import explain
from source_agent.config.file import SourceConfig, load
from source_agent.engines.conformance.capabilities import Capability
from source_agent.engines.conformance.legacy import Legacy
from source_agent.engines.conformance.reads import markers_of
from source_agent.engines.interface import Engine, MarkedRead
from source_agent.engines.registry import connect
from source_agent.engines.relations.markers import Marker
from source_agent.engines.relations.shapes import Relation
from tests.harness.family import FAMILY, spelled_as
from tests.harness.legacies import KINDS
from tests.harness.source_commands import source_command

AWARE = {"postgresql": "timestamptz", "mariadb": "timestamp", "sqlite": "DATETIME"}
NAIVE = {"postgresql": "timestamp", "mariadb": "datetime", "sqlite": "DATETIME"}
ZONE = {"postgresql": "", "mariadb": "", "sqlite": ', zone = "UTC"'}
XMIN = "marker = { xmin = true }"
FILE = """[database]
url = "{url}"
password_file = "password"
[server]
listen = "127.0.0.1:0"
insecure = true
"""


@pytest.fixture(params=["postgresql", *FAMILY, "sqlite"])
def legacy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Legacy]:
    made = KINDS[request.param](request, tmp_path)
    null, name = made.null, spelled_as(made.name)
    made.run(
        f"CREATE TABLE bare (id bigint PRIMARY KEY, updated_at {AWARE[name]}{null})",
        f"CREATE TABLE kept (id bigint PRIMARY KEY, n int NOT NULL, last_change {NAIVE[name]}"
        " NOT NULL, row_version bigint NOT NULL, is_deleted smallint, changed_by varchar(20))",
        "CREATE INDEX kept_change ON kept (last_change)",
        "CREATE INDEX kept_version ON kept (row_version, id, n)",
    )
    at = "2026-03-01 10:00:00"
    made.insert("kept", [(i, i, at, i, 0, "me") for i in range(2000)])
    made.insert("bare", [(i, at) for i in range(20)])
    for table in ("kept", "bare"):
        made.analyze(table)
    if name == "postgresql":
        made.run("VACUUM ANALYZE kept")
    yield made
    made.close()


@pytest.fixture
def url(legacy: Legacy) -> Iterator[str]:
    """Of a login that may only SELECT, where there are logins."""
    if Capability.LOGINS in legacy.lacks:
        yield legacy.url
        return
    login = f"l{uuid.uuid4().hex[:12]}"
    tables = [Relation(name, table=name) for name in ("bare", "kept")]
    with_grants = legacy.connect().grants(tables, login=login, connections=6)
    yield legacy.granted(with_grants, login)
    legacy.drop_login(login)


def report_of(url: str, folder: Path, relations: str) -> CheckReport:
    config = written(url, folder, relations)
    return check(config, engine_of(config))


def written(url: str, folder: Path, relations: str) -> SourceConfig:
    """Return source.toml; the password is that of `Legacy.granted`."""
    (folder / "password").write_text("pw")
    (folder / "password").chmod(0o600)
    (folder / "source.toml").write_text(FILE.format(url=url) + relations)
    return load(folder / "source.toml")


def engine_of(config: SourceConfig) -> Engine:
    database = config.database
    return connect(database.url, database.password, database.limits)


KEPT = '[relations.kept]\ntable = "kept"\ncolumns = ["id", "n"]\nkey = ["id"]\n'
BARE = '[relations.bare]\ntable = "bare"\n'


def test_markers_are_suggested_with_the_way_they_are_read(
    legacy: Legacy, url: str, tmp_path: Path
) -> None:
    report = report_of(url, tmp_path, KEPT + BARE)
    kept, bare = report.relations
    assert kept.error is None
    lines = {found.line: found.read for found in kept.markers}
    time = 'marker = { column = "last_change", late = "15m", zone = "UTC" }'
    version = 'marker = { column = "row_version" }'
    ours = {time: "by an index, then the table", version: "by an index alone"}
    xmin = {XMIN: "by a scan of the table"} if legacy.name == "postgresql" else {}
    assert lines == xmin | ours
    assert next(iter(lines)) == (XMIN if xmin else time)
    assert kept.flags == ["is_deleted"]
    assert (kept.marker, kept.marker_read) == (None, None)
    slow = f'marker = {{ column = "updated_at", late = "15m"{ZONE[spelled_as(legacy.name)]} }}'
    assert [(m.line, m.read) for m in bare.markers if m.line != XMIN] == [
        (slow, "by a scan of the table")
    ]
    assert "an index that begins with it" in bare.markers[-1].note
    text = source_command(tmp_path / "source.toml", "check", "--verbose").stdout
    for line in (*lines, slow):
        assert f"\n  possible {line}\n" in text
    assert "\n  flags    is_deleted: " in text
    # Each line is one that the file takes, and check then says how it is read.
    for line, way in lines.items():
        named = report_of(url, tmp_path, f"{KEPT}{line}\n").relations[0]
        assert named.error is None
        assert named.marker_read is not None
        assert named.marker_read.line == line
        assert named.marker_read.read == way
        assert line not in {found.line for found in named.markers}


def test_the_identity_of_the_database_is_what_marks_carry(
    legacy: Legacy, url: str, tmp_path: Path
) -> None:
    report = report_of(url, tmp_path, BARE)
    names = {
        "postgresql": ["system identifier", "timeline", "database"],
        "mariadb": ["host", "port", "server id", "data directory", "database"],
        "mysql": ["host", "port", "server uuid", "data directory", "database"],
        "sqlite": ["device", "inode"],
    }
    assert list(report.identity) == names[legacy.name]
    relation = Relation("kept", table="kept", marker=Marker("row_version"))
    with closing(legacy.connect().open()) as session:
        mark = markers_of(session).mark(session.describe(relation))
    # A table of PostgreSQL has a number besides.
    assert mark.source.split(" ")[0] == ":".join(report.identity.values())
    assert "\n  identity " in source_command(tmp_path / "source.toml", "check", "--verbose").stdout
    body = json.loads(source_command(tmp_path / "source.toml", "check", "--json").stdout)
    assert body["identity"] == report.identity
    assert [m["line"] for m in body["relations"][0]["markers"]]


def test_nothing_is_used_that_the_file_does_not_name(legacy: Legacy, url: str) -> None:
    """A suggestion leaves no trace in how a relation is read."""
    del url
    with closing(legacy.connect().open()) as session:
        shape = session.describe(Relation("kept", table="kept"))
        assert marker_advice.advice(session, shape)
        assert shape.marker is None
        assert session.describe(shape.relation) == shape


def test_what_is_probed_is_explained(
    legacy: Legacy, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Statements of `check` are among those that `explain` prints."""
    config = written(url, tmp_path, KEPT + BARE)
    engine = engine_of(config)
    sections = explain(config, engine)
    known = {legacy.general(sql.replace("%%", "%")) for s in sections for sql in s.statements}
    issued: list[str] = []
    with monkeypatch.context() as patch:
        legacy.record(patch, issued)
        with closing(engine.open()) as session:
            for published in config.relations.values():
                marker_advice.advice(session, session.describe(published.relation))
            markers_of(session).identity()
    strangers = {legacy.general(sql.replace("%%", "%")) for sql in issued} - known
    assert strangers == set()
    assert any(sql.startswith("EXPLAIN") for sql in issued)


def test_a_column_that_is_not_granted_is_named_so(legacy: Legacy, tmp_path: Path) -> None:
    if Capability.LOGINS in legacy.lacks:
        return  # a file is granted whole
    login = f"l{uuid.uuid4().hex[:12]}"
    narrow = Relation("kept", table="kept", key=("id",), columns=("id", "n"))
    script = legacy.connect().grants([narrow], login=login, connections=6)
    url = legacy.granted(script, login)
    try:
        (kept,) = report_of(url, tmp_path, KEPT).relations
    finally:
        legacy.drop_login(login)
    assert kept.error is None
    by_column = [found for found in kept.markers if found.line != XMIN]
    if legacy.name in FAMILY:  # its catalogue does not show the columns at all
        assert by_column == []
        return
    assert [found.read for found in by_column] == ["not by this login"] * 2
    assert all("permission denied" in found.note for found in by_column)


def test_a_table_that_keeps_old_versions_is_named_so(legacy: Legacy) -> None:
    if legacy.name != "mariadb":
        return
    legacy.run("CREATE TABLE old (id bigint PRIMARY KEY, n int) WITH SYSTEM VERSIONING")
    with closing(legacy.connect().open()) as session:
        shape = session.describe(Relation("old", table="old"))
    assert "the server keeps old versions of its rows" in shape.notes


def test_the_index_that_all_keys_need_is_printed_until_it_is_there(
    legacy: Legacy, url: str, tmp_path: Path
) -> None:
    """The statement is run as it is printed, and then its word is proven by the plan."""
    at = "2026-03-01 10:00:00"
    legacy.run("ALTER TABLE kept ADD COLUMN wide varchar(300)")
    legacy.insert("kept", [(i, i, at, i, 0, "me", "x" * 300) for i in range(2000, 12_000)])
    legacy.analyze("kept")
    lines = '[relations.kept]\ntable = "kept"\n'
    lines += 'marker = { column = "row_version", deleted = "is_deleted" }\n'
    found = report_of(url, tmp_path, lines).relations[0].marker_read
    assert found is not None
    if legacy.name not in {"postgresql", *FAMILY}:
        assert (found.keys, found.keys_note) == ("", "")
        return
    assert found.keys == "by a scan of the table"
    remedy = found.keys_note.split("`", 1)[1].rsplit("` would", 1)[0]
    assert remedy.startswith("CREATE INDEX ")
    assert (
        f"           its keys are read {found.keys}\n           `CREATE INDEX"
        in source_command(tmp_path / "source.toml", "check").stdout
    )
    if legacy.name == "postgresql":
        legacy.run("CHECKPOINT")  # else VACUUM takes unflushed commits for unseen
    for statement in remedy.split("; "):
        legacy.run(statement)
    legacy.analyze("kept")
    alone = report_of(url, tmp_path, lines).relations[0].marker_read
    assert alone is not None
    assert (alone.keys, alone.keys_note) == ("by an index alone", "")


def test_what_a_conjunction_of_plans_is(legacy: Legacy) -> None:
    """A nullable column needs two reads of its index, so no index alone does."""
    legacy.run("ALTER TABLE kept ADD COLUMN seen_version bigint")
    legacy.run("CREATE INDEX kept_seen ON kept (seen_version, id, n)")
    legacy.run("UPDATE kept SET seen_version = id")
    legacy.analyze("kept")
    relation = Relation(
        "kept", table="kept", key=("id",), columns=("id", "n"), marker=Marker("seen_version")
    )
    with closing(legacy.connect().open()) as session:
        shape = session.describe(relation)
        found = markers_of(session).marked_read(shape)
        report = marker_advice.read(session, shape)
    assert report is not None
    if legacy.name == "postgresql":
        assert found is MarkedRead.INDEX
        assert report.note.endswith("the column has to be NOT NULL")
    else:
        assert found in {MarkedRead.INDEX, MarkedRead.COVERING}
