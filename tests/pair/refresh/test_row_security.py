"""Row security of PostgreSQL: what the login may see is published, said, and kept with a version.

The oracle for what a policy shows is the login's own connection; who may see everything is the
superuser who owns the tables.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from driftline import wire_pb2 as pb
from driftline.errors import RecipeChanged
from pyspark.sql import SparkSession

from source_agent.engines.interface import Limits, Session
from source_agent.engines.postgresql.session import PostgresqlSession
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Relation, Shape
from tests.harness.absent import needs_release
from tests.harness.legacy import PostgresLegacy
from tests.harness.pair import Pair
from tests.harness.servers import PostgreSQL
from tests.harness.source_commands import source_command
from warehouse_agent.inspection import readiness
from warehouse_agent.inspection.published_state import fragment_state
from warehouse_agent.refresh import whole
from warehouse_agent.refresh.job import Options
from warehouse_agent.refresh.whole import ComparisonResult
from warehouse_agent.storage import row_security
from warehouse_agent.storage.formats import head
from warehouse_agent.tasks.staging import Staging

ACCEPT = Options(accept_schema=True, allow_shrink=True)
TABLE = 'table = "rows"'
ROWS = Relation("rows", table="rows")


@pytest.fixture
def legacy(postgresql: PostgreSQL) -> Iterator[PostgresLegacy]:
    """20 rows, of which a policy shows 6 to the login."""
    made = PostgresLegacy(postgresql)
    for sql in (
        "CREATE TABLE rows (id int8 PRIMARY KEY, tenant text)",
        """INSERT INTO rows SELECT n, CASE WHEN n % 3 = 0 THEN 'acme' ELSE 'other' END
           FROM generate_series(1, 20) n""",
        "ALTER TABLE rows ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY own ON rows FOR SELECT USING (tenant = 'acme')",
    ):
        made.execute(sql)
    yield made
    made.close()


@pytest.fixture
def pair(spark: SparkSession, legacy: PostgresLegacy, tmp_path: Path) -> Iterator[Pair]:
    with Pair(spark, legacy, tmp_path / "pair", {"rows": TABLE}) as made:
        yield made


def opened(legacy: PostgresLegacy) -> Session:
    return connect(legacy.url, legacy.password, Limits(lock_s=1.0)).open()


def login_of(legacy: PostgresLegacy) -> str:
    return legacy.url.split("//")[1].split("@", maxsplit=1)[0]


def seen(session: Session, shape: Shape) -> int:
    return sum(len(batch) for batch in session.scan(shape))


def policies(legacy: PostgresLegacy, relation: Relation = ROWS) -> tuple[list[str], int]:
    """The policies that apply, as `table name`, and the number of rows that the login sees."""
    with closing(opened(legacy)) as session:
        shape = session.describe(relation)
        assert shape.row_security is not None
        found = [f"{p.table} {p.name}".strip() for p in shape.row_security.policies]
        assert bool(found) == any("what the login may see" in note for note in shape.notes)
        return found, seen(session, shape)


def told(legacy: PostgresLegacy) -> row_security.PolicyDigests | None:
    """What a warehouse hears of the relation."""
    with closing(opened(legacy)) as session:
        found = session.describe(ROWS).row_security
    assert found is not None
    return row_security.PolicyDigests.from_message(pb.Finished(row_security=found.message()))


def meta_of(pair: Pair) -> dict[str, Any]:
    snapshot = head(pair.store, "rows")
    assert snapshot is not None
    return dict(snapshot.record.body)


def doctor(pair: Pair) -> str:
    (fragment,) = pair.config().fragments.values()
    newest = partial(head, pair.store, fragment.name)
    return readiness._relation(pair.store, fragment, newest)


# Both agents.
def plan(pair: Pair) -> str:
    return pair.said("plan", "rows")


def test_what_is_hidden_is_said_by_everybody(pair: Pair) -> None:
    assert pair.refresh("rows").rows_total == 6
    text = source_command(pair.source_toml(), "check", "--verbose").stdout
    said = "the relation is what the login may see (policies that apply: own of public.rows)"
    assert said in text
    assert said in doctor(pair)
    assert fragment_state(pair.store, "rows").row_security is True
    lines = pair.said("status", "rows").splitlines()
    assert "row security hides rows of the source from its login: rows" in lines
    kept = meta_of(pair)["row_security"]
    assert [row[:2] for row in kept["policies"]] == [["public.rows", "own"]]
    assert "acme" not in json.dumps(kept), "what a policy says stays at the source"


CHANGES = {
    "DROP POLICY own ON rows": [
        "no policy of public.rows shows the login a row",
        "own of public.rows no longer applies",
    ],
    "ALTER TABLE rows DISABLE ROW LEVEL SECURITY": ["own of public.rows no longer applies"],
    "ALTER POLICY own ON rows USING (tenant <> 'acme')": ["own of public.rows changed"],
    "CREATE POLICY more ON rows USING (id = 1)": ["policy more of public.rows applies now"],
    "CREATE POLICY less ON rows AS RESTRICTIVE USING (id < 4)": ["less of public.rows applies"],
    "ALTER POLICY own ON rows RENAME TO mine": ["own of public.rows no longer", "mine of public"],
    "ALTER POLICY own ON rows USING (tenant = 'acme' AND id > 0)": ["own of public.rows changed"],
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_is_named(legacy: PostgresLegacy, change: str) -> None:
    before = told(legacy)
    legacy.execute(change)
    with pytest.raises(RecipeChanged) as caught:
        row_security.refuse_changed(before, told(legacy), "rows")
    assert all(text in caught.value.message for text in CHANGES[change]), caught.value.message
    assert caught.value.remedy.endswith("driftline refresh rows --accept-schema")
    assert caught.value.exit_code == 6


def test_other_policies_are_refused_until_they_are_accepted(pair: Pair) -> None:
    """Also where the rows are the same: nothing else tells that others apply."""
    pair.refresh("rows")
    same = "ALTER POLICY own ON rows USING (tenant = 'acme' AND id > 0)"
    for version, (change, rows) in enumerate([(same, 6), ("DROP POLICY own ON rows", 0)], start=1):
        pair.legacy.execute(change)
        error = pair.error("rows", options=Options(allow_shrink=True))
        assert error["code"] == "RECIPE"
        assert all(text in error["message"] for text in CHANGES[change]), error["message"]
        with pytest.raises(RecipeChanged, match="Row security changed"):
            doctor(pair)
        assert all(text in plan(pair) for text in CHANGES[change])
        report = pair.refresh("rows", options=ACCEPT)
        assert (report.version, report.rows_total) == (version, rows)
        quiet = pair.refresh("rows")
        assert (quiet.version, quiet.rows_changed) == (version, 0)
        doctor(pair)
        assert "--accept-schema" not in plan(pair)


def test_what_is_kept_is_what_the_rows_were_read_under(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not what was described before: another policy applies between description and exchange."""
    pair.refresh("rows")
    exchange = whole.exchange

    def changed_before(*given: Any) -> ComparisonResult:
        pair.legacy.execute("ALTER TABLE rows DISABLE ROW LEVEL SECURITY")
        return exchange(*given)

    with monkeypatch.context() as between:
        between.setattr(whole, "exchange", changed_before)
        assert pair.error("rows")["code"] == "RECIPE"
        pair.legacy.execute("ALTER TABLE rows ENABLE ROW LEVEL SECURITY")
        assert pair.refresh("rows", options=ACCEPT).rows_total == 20
    assert meta_of(pair)["row_security"]["policies"] == []
    assert pair.refresh("rows").version == 1


def test_a_version_without_a_digest_adopts_the_first(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a source of before tells none; and such a source changes nothing later."""
    with monkeypatch.context() as older:
        older.setattr(PostgresqlSession, "_secured", lambda self, shape: shape)
        pair.refresh("rows")
        assert "row_security" not in meta_of(pair)
        assert fragment_state(pair.store, "rows").row_security is None
    assert pair.refresh("rows").version == 0, "nothing changed: no version"
    assert fragment_state(pair.store, "rows").row_security is True
    pair.legacy.execute("ALTER TABLE rows DISABLE ROW LEVEL SECURITY")
    assert pair.error("rows")["code"] == "RECIPE"
    pair.legacy.execute("ALTER TABLE rows ENABLE ROW LEVEL SECURITY")
    pair.legacy.execute("INSERT INTO rows VALUES (21, 'acme')")
    assert pair.refresh("rows").version == 1
    with monkeypatch.context() as older:
        older.setattr(PostgresqlSession, "_secured", lambda self, shape: shape)
        pair.legacy.execute("INSERT INTO rows VALUES (24, 'acme')")
        assert pair.refresh("rows").version == 2
    assert meta_of(pair)["row_security"]["policies"], "what is known stays known"
    pair.legacy.execute("DROP POLICY own ON rows")
    assert pair.error("rows", options=Options(allow_shrink=True))["code"] == "RECIPE"


def test_policies_are_compared_tile_by_tile(pair: Pair) -> None:
    pair.refresh("rows")
    pair.fragment_lines["rows"] = 'incremental = { rows = 2, pause_s = 0.01 }\nrequire = "fuzzy"'
    assert pair.refresh("rows").tiles is not None
    pair.legacy.execute("ALTER POLICY own ON rows USING (tenant = 'acme' AND id > 0)")
    error = pair.error("rows")
    assert (error["code"], "own of public.rows changed" in error["message"]) == ("RECIPE", True)
    assert pair.refresh("rows", options=ACCEPT).version == 1
    assert pair.refresh("rows").version == 1


@pytest.fixture
def part(pair: Pair) -> Pair:
    """More rows than a part reads, published; three of four are visible."""
    pair.legacy.execute(
        """INSERT INTO rows SELECT n, CASE WHEN n % 4 = 0 THEN 'other' ELSE 'acme' END
           FROM generate_series(21, 4000) n"""
    )
    pair.fragment_lines["rows"] = 'require = "fuzzy"\nread_at_most = 1000'
    pair.refresh("rows")
    return pair


def acme(pair: Pair, id_max: int) -> list[tuple[Any, ...]]:
    """The rows that are to be published, as the owner sees them."""
    found = pair.legacy.rows("rows")
    return sorted(row for row in found if row[1] == "acme" and row[0] <= id_max)


def test_policies_that_are_accepted_are_those_of_all_rows(part: Pair) -> None:
    """A part would leave rows of the old ones, and nothing would say so any more."""
    assert part.refresh("rows").rows_left, "a part"
    part.legacy.execute("ALTER POLICY own ON rows USING (tenant = 'acme' AND id <= 3000)")
    assert part.error("rows")["code"] == "RECIPE"
    report = part.refresh("rows", options=Options(accept_schema=True))
    assert (report.rows_left, report.proof) == (None, "total")
    assert sorted(part.published("rows")) == acme(part, 3000)
    assert part.refresh("rows").rows_left, "a part again"


def test_a_part_takes_up_no_rows_that_policies_may_hide(part: Pair) -> None:
    """Row security is off by mistake for one refresh, which ships hidden rows and is refused."""
    part.legacy.execute("INSERT INTO rows SELECT n, 'other' FROM generate_series(4001, 4040) n")
    part.legacy.execute("ALTER TABLE rows DISABLE ROW LEVEL SECURITY")
    staging = Staging(part.store, "rows")
    assert part.error("rows")["code"] == "RECIPE"
    assert staging.frame_bytes(), "hidden rows came"
    part.legacy.execute("ALTER TABLE rows ENABLE ROW LEVEL SECURITY")
    part.legacy.execute("INSERT INTO rows VALUES (4041, 'acme')")
    assert part.refresh("rows").rows_left
    assert sorted(part.published("rows")) == acme(part, 4041)
    assert not staging.frame_bytes()


# What is in force when rows are read.
def test_a_policy_that_changes_behind_the_snapshot_is_the_one_that_is_told(
    legacy: PostgresLegacy,
) -> None:
    """PostgreSQL applies policies as they are, to rows as the snapshot has them."""
    with closing(opened(legacy)) as session:
        session.describe(Relation("one", query="SELECT 1 AS id", key=("id",)))  # the snapshot
        legacy.execute("CREATE POLICY more ON rows USING (id = 1)")
        shape = session.describe(ROWS)
        assert shape.row_security is not None
        assert [p.name for p in shape.row_security.policies] == ["more", "own"]
        assert seen(session, shape) == 7
        with closing(opened(legacy)) as later:
            assert later.describe(ROWS).row_security == shape.row_security


def test_policies_cannot_change_between_describe_and_scan(legacy: PostgresLegacy) -> None:
    done = threading.Event()

    def drop() -> None:
        legacy.execute("DROP POLICY own ON rows")
        done.set()

    with closing(opened(legacy)) as session:
        shape = session.describe(ROWS)
        other = threading.Thread(target=drop)
        other.start()
        assert not done.wait(0.3)
        assert seen(session, shape) == 6
    other.join()
    assert policies(legacy) == (["public.rows"], 0)


def test_whom_policies_apply_to(legacy: PostgresLegacy) -> None:
    reader = login_of(legacy)
    assert policies(legacy) == (["public.rows own"], 6)
    for sql, expected in (
        (f"ALTER ROLE {reader} BYPASSRLS", ([], 20)),
        (f"ALTER ROLE {reader} NOBYPASSRLS", (["public.rows own"], 6)),
        ("ALTER POLICY own ON rows TO postgres", (["public.rows"], 0)),
        (f"CREATE ROLE club_{reader}", (["public.rows"], 0)),
        (f"ALTER POLICY own ON rows TO club_{reader}", (["public.rows"], 0)),
        (f"GRANT club_{reader} TO {reader}", (["public.rows own"], 6)),
        (f"ALTER TABLE rows OWNER TO {reader}", ([], 20)),
        ("ALTER TABLE rows FORCE ROW LEVEL SECURITY", (["public.rows own"], 6)),
        ("CREATE POLICY other ON rows FOR UPDATE USING (true)", (["public.rows own"], 6)),
        ("ALTER TABLE rows DISABLE ROW LEVEL SECURITY", ([], 20)),
    ):
        legacy.execute(sql)
        assert policies(legacy) == expected, sql
    legacy.execute(f"DROP OWNED BY club_{reader}")
    legacy.execute(f"DROP ROLE club_{reader}")


def test_views_queries_and_conditions_that_read_other_tables(
    legacy: PostgresLegacy, postgresql: PostgreSQL
) -> None:
    """A view reads as its owner, with `security_invoker` as who reads it."""
    needs_release(postgresql.release, 15, "security_invoker")
    reader = login_of(legacy)
    for sql in (
        f"CREATE ROLE owner_{reader}",
        f"GRANT SELECT ON rows TO owner_{reader}",
        "CREATE VIEW all_of_it AS SELECT * FROM rows",
        "CREATE VIEW mine WITH (security_invoker) AS SELECT * FROM rows",
        "CREATE VIEW theirs AS SELECT * FROM rows",
        f"ALTER VIEW theirs OWNER TO owner_{reader}",
        "CREATE VIEW above WITH (security_invoker = on) AS SELECT * FROM theirs",
        f"CREATE POLICY wide ON rows TO owner_{reader} USING (id < 11)",
        "CREATE TABLE plain (id int8 PRIMARY KEY)",
        "INSERT INTO plain VALUES (1)",
        """CREATE FUNCTION listed() RETURNS SETOF rows LANGUAGE sql STABLE
           AS 'SELECT * FROM public.rows'""",
    ):
        legacy.execute(sql)
    own, wide = "public.rows own", "public.rows wide"
    for table, expected in (
        ("all_of_it", ([], 20)),
        ("mine", ([own], 6)),
        ("theirs", ([own, wide], 13)),
        ("above", ([own, wide], 13)),
        ("plain", ([], 1)),
    ):
        assert policies(legacy, Relation("v", table=table, key=("id",))) == expected, table
    for query, expected in (
        ("SELECT id FROM rows", ([own, wide], 6)),
        ("SELECT id FROM mine UNION ALL SELECT id FROM plain WHERE id < 0", ([own, wide], 6)),
        ("SELECT id FROM listed()", ([own, wide], 6)),
        ("SELECT id FROM plain", ([], 1)),
    ):
        assert policies(legacy, Relation("q", query=query, key=("id",))) == expected, query
    for sql in (
        "ALTER TABLE plain ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY one ON plain USING (id = 1)",
        "ALTER POLICY own ON rows USING (id IN (SELECT id FROM plain))",
    ):
        legacy.execute(sql)
    assert policies(legacy) == (["public.plain one", own], 1)
    legacy.execute(f"DROP OWNED BY owner_{reader} CASCADE")
    legacy.execute(f"DROP ROLE owner_{reader}")


def test_a_refresh_says_what_a_login_without_rights_says(legacy: PostgresLegacy) -> None:
    """What is refused for another reason is no policy's doing."""
    reader = login_of(legacy)
    legacy.execute("REVOKE EXECUTE ON FUNCTION int8abs(int8) FROM PUBLIC")
    with closing(opened(legacy)) as session, pytest.raises(Exception, match="denied for function"):
        session.describe(Relation("q", query="SELECT int8abs(id) AS id FROM rows", key=("id",)))
    legacy.execute(f"GRANT EXECUTE ON FUNCTION int8abs(int8) TO {reader}")
