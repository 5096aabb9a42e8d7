"""`check`, `explain` and `grants` as a DBA meets them, on real engines and real sockets."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import uuid
from contextlib import closing
from pathlib import Path

import psycopg
import pymysql
import pytest
from driftline.errors import NotFound

from source_agent.engines.interface import Limits
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Relation
from tests.harness import forks
from tests.harness.agents import configuration, make_orders
from tests.harness.family import FAMILY
from tests.harness.forks import SOURCE
from tests.harness.pair import environment
from tests.harness.servers import FamilyServer, MariaDB, PostgreSQL


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_orders(tmp_path / "erp.db", [(1, "a")])
    configuration(tmp_path, tmp_path / "erp.db", certs=None)
    return tmp_path


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return forks.run([*SOURCE, *arguments], cwd=folder, env=environment(), timeout=60)


# Relations


@pytest.mark.starts
def test_explain_goes_on_past_a_relation_that_cannot_be_served(folder: Path) -> None:
    with (folder / "source.toml").open("a") as file:
        file.write('[relations.a]\nquery = "SELECT nope FROM orders"\nkey = ["nope"]\n')
        file.write('[relations.z]\ntable = "orders"\n')
    done = command(folder, "explain", "--verbose")
    assert done.returncode == 1, done
    headings = [line for line in done.stdout.splitlines() if line.startswith("-- ")]
    assert headings[:3] == ["-- every session", "-- relation orders", "-- relation a"]
    assert headings[3].startswith("-- cannot be served: ")
    assert headings[4] == "-- The agent issues these statements to describe it:"
    assert headings[-1] == "-- relation z"
    assert "AS SELECT nope FROM orders;" in done.stdout
    assert done.stderr.startswith("relation a cannot be served: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.starts
def test_total_counts_one_row(folder: Path) -> None:
    facts = {
        "relation": "orders", "columns": [["id", "int8"], ["comment", "text"]], "key_columns": 1,
        "as_of": "2026-01-01T00:00:00Z", "version": 3, "count": 2, "sum": "00" * 16,
        "fragment_key": "00" * 32, "salt": "00" * 16,
    }  # fmt: skip
    (folder / "receipt.json").write_text(json.dumps(facts))
    done = command(folder, "total", "--receipt", "receipt.json")
    assert done.returncode == 1
    assert done.stdout.startswith("orders: 1 row, total ")
    assert ": 2 rows, total 00" in done.stdout
    assert "may have changed since: version 3 was read as of 2026-01-01T00:00:00Z" in done.stdout
    assert "this total as of 20" in done.stdout


COLUMNS = (
    "id BIGINT NOT NULL PRIMARY KEY, day DATE, at TIMESTAMP NULL, price DECIMAL(9,2), n VARCHAR(9)"
)


def test_columns_that_can_hold_what_is_refused(
    postgresql: PostgreSQL, mariadb: MariaDB, folder: Path
) -> None:
    with sqlite3.connect(folder / "erp.db") as connection:
        connection.execute(f"CREATE TABLE t ({COLUMNS}, x NUMERIC, y DATETIME)")
    connection.close()
    name = f"w{uuid.uuid4().hex[:10]}"
    with postgresql.superuser(postgresql.create_database(name)) as admin:
        more = "at2 TIMESTAMPTZ, free NUMERIC, d DATE, paid MONEY"
        admin.execute(f"CREATE TABLE t ({COLUMNS}, {more})")
    with mariadb.admin(mariadb.create_database(name)) as root, root.cursor() as cursor:
        cursor.execute(f"CREATE TABLE t ({COLUMNS}, at2 DATETIME)")
    try:
        found = {}
        for url in (
            postgresql.url("postgres", name),
            mariadb.url("root", name),
            f"sqlite:///{folder / 'erp.db'}",
        ):
            engine = connect(url, None, Limits())
            with closing(engine.open()) as session:
                shape = session.describe(Relation("t", table="t", columns=None))
            found[engine.name] = engine.warnings(shape)
        typed = connect(f"sqlite:///{folder / 'erp.db'}", None, Limits())
        types = (("day", "date"), ("x", "numeric(20,2)"), ("y", "timestamp"))
        with closing(typed.open()) as session:
            shape = session.describe(Relation("t", table="t", types=types))
        *declared, _ = typed.warnings(shape)
        assert [w.split(":")[0] for w in declared] == ["day", "x", "y"]
        assert "can hold infinity" in declared[0]
        assert "can hold NaN" in declared[1]
        as_text = connect(postgresql.url("postgres", name), None, Limits())
        with closing(as_text.open()) as session:
            shape = session.describe(Relation("t", table="t", as_text=("day", "at", "at2", "d")))
        assert [w.split(":")[0] for w in as_text.warnings(shape)] == ["price"]
    finally:
        postgresql.drop_database(name)
        mariadb.drop_database(name)
    named = {engine: [note.split(":")[0] for note in notes] for engine, notes in found.items()}
    assert named["postgresql"] == ["day", "at", "price", "at2", "d"]
    assert "can hold infinity" in found["postgresql"][0]
    assert 'carriers = {"day" = "string"}' in found["postgresql"][0]
    assert "can hold NaN" in found["postgresql"][2]
    assert named["mariadb"] == ["day", "at", "at2"]
    assert "'0000-00-00'" in found["mariadb"][0]
    assert 'as_text = ["day"]' in found["mariadb"][0]
    assert len(found["sqlite"]) == 1


# Grants, run as they are printed


@pytest.fixture
def database() -> str:
    return f"g{uuid.uuid4().hex[:10]}"


def printed(folder: Path, url: str) -> str:
    (folder / "source.toml").write_text(
        f'[database]\nurl = "{url}"\n[server]\nlisten = "127.0.0.1:0"\ninsecure = true\n'
        '[relations.orders]\ntable = "orders"\n'
    )
    done = command(folder, "grants")
    assert done.returncode == 0, done
    return done.stdout


def statements_of(script: str) -> list[str]:
    kept = "\n".join(line for line in script.splitlines() if not line.startswith("--"))
    return [sql.strip() for sql in kept.split(";") if sql.strip()]


@pytest.mark.parametrize("kind", FAMILY)
def test_the_script_of_mariadb_makes_no_account_that_anybody_can_use(
    request: pytest.FixtureRequest, kind: str, database: str, tmp_path: Path
) -> None:
    mariadb: FamilyServer = request.getfixturevalue(kind)
    mariadb.create_database(database)
    script = printed(tmp_path, mariadb.tcp_url("reader", database))
    with mariadb.admin(database) as root, root.cursor() as cursor:
        cursor.execute("CREATE TABLE orders (id INT PRIMARY KEY)")
        for sql in statements_of(script):
            cursor.execute(sql)
        try:
            for password in ("", "…", "reader"):
                with pytest.raises(pymysql.Error, match=r"locked|denied"):
                    login(mariadb, database, password)
            (unlock,) = [line for line in script.splitlines() if line.startswith("-- ALTER USER")]
            cursor.execute(unlock.removeprefix("-- ").replace("'…'", "'a password'"))
            login(mariadb, database, "a password").close()
            with pytest.raises(pymysql.Error, match="denied"):
                login(mariadb, database, "…")
        finally:
            cursor.execute("DROP USER IF EXISTS 'reader'@'%'")
    mariadb.drop_database(database)


def login(mariadb: FamilyServer, database: str, password: str) -> pymysql.Connection:
    return pymysql.connect(
        host=mariadb.host,
        port=mariadb.port,
        user="reader",
        password=password.encode(),
        database=database,
    )


def test_the_script_of_postgresql_makes_no_login_that_anybody_can_use(
    postgresql: PostgreSQL, database: str, tmp_path: Path
) -> None:
    postgresql.create_database(database)
    role = f"r{database}"
    script = printed(tmp_path, postgresql.tcp_url(role, database))
    assert f'-- \\password "{role}"' in script
    with postgresql.superuser(database) as admin:
        admin.execute("CREATE TABLE orders (id INT PRIMARY KEY)")
        admin.execute(script)
        url = f"postgresql://{role}@{postgresql.host}:{postgresql.port}/{database}"
        try:
            for password in ("", "…", role):
                with pytest.raises(psycopg.OperationalError, match="password"):
                    psycopg.connect(url, password=password)
            admin.execute(f"ALTER ROLE \"{role}\" PASSWORD 'a password'")
            psycopg.connect(url, password="a password").close()
        finally:
            admin.execute(f'DROP OWNED BY "{role}"')
            admin.execute(f'DROP ROLE "{role}"')
    postgresql.drop_database(database)


@pytest.mark.starts
def test_tiles(folder: Path) -> None:
    """Of each relation: can it be read in tiles, and if not, why?"""
    with closing(sqlite3.connect(folder / "erp.db")) as connection:
        connection.execute("CREATE TABLE days (day DATE, shop TEXT, PRIMARY KEY (day, shop))")
        connection.execute("CREATE TABLE shops (name TEXT COLLATE NOCASE PRIMARY KEY)")
        connection.execute("CREATE TABLE loose (id INT)")
    with (folder / "source.toml").open("a") as file:
        file.write('[relations.days]\ntable = "days"\n[relations.shops]\ntable = "shops"\n')
        file.write('[relations.loose]\ntable = "loose"\nkey = ["id"]\n')
    found = json.loads(command(folder, "check", "--json").stdout)["relations"]
    assert {one["name"]: one["no_tiles"] for one in found} == {
        "orders": None,
        "days": None,
        "shops": "the database sorts its column name by the collation NOCASE, not by bytes",
        "loose": "its key has no index",
    }
    text = command(folder, "check", "--verbose").stdout
    assert text.count("  in tiles by the index of its key\n") == 2
    assert "  in tiles no: its key has no index\n" in text


@pytest.mark.starts
def test_how_changed_rows_are_read_again(folder: Path) -> None:
    """By an index, where they lie, by their keys, or by a second scan, and why."""
    with closing(sqlite3.connect(folder / "erp.db")) as connection:
        connection.execute("CREATE TABLE codes (code TEXT NOT NULL PRIMARY KEY)")
        connection.execute("CREATE TABLE packed (code TEXT PRIMARY KEY) WITHOUT ROWID")
        key = "code TEXT COLLATE NOCASE PRIMARY KEY"
        connection.execute(f"CREATE TABLE alike ({key}) WITHOUT ROWID")
    with (folder / "source.toml").open("a") as file:
        file.writelines(f'[relations.{n}]\ntable = "{n}"\n' for n in ("codes", "packed", "alike"))
    text = command(folder, "check", "--verbose").stdout
    assert "  changed  rows are read by the index of the key\n" in text
    assert "  changed  rows are read where they lie, if the places of all rows fit in" in text
    assert "  changed  rows are read by their keys, if the keys of all rows fit in" in text
    assert "  changed  rows are read by a second scan: the table is WITHOUT ROWID" in text
    with (folder / "source.toml").open("a") as file:
        file.write("[limits]\nmemory_at_most = 0\n")
    assert "limits.memory_at_most is 0" in command(folder, "check", "--verbose").stdout


@pytest.mark.starts
def test_hours_for_scans(folder: Path) -> None:
    """When may each relation be scanned, and how many rows may be read by key?"""
    with closing(sqlite3.connect(folder / "erp.db")) as connection:
        connection.execute("CREATE TABLE loose (id INT)")
        connection.execute("CREATE TABLE twice (id INTEGER NOT NULL)")
        connection.execute("CREATE INDEX twice_id ON twice (id)")
    with (folder / "source.toml").open("a") as file:
        file.write('[relations.night]\ntable = "orders"\nscan = ["00:00-12:00", "13:00-24:00"]\n')
        file.write('[relations.keyed]\ntable = "orders"\nscan = "never"\nrows_by_key = 50000\n')
        file.write('[relations.loose]\ntable = "loose"\nkey = ["id"]\nrows_by_key = 1000\n')
        file.write('[relations.twice]\ntable = "twice"\nkey = ["id"]\nrows_by_key = 1000\n')
    found = json.loads(command(folder, "check", "--json").stdout)["relations"]
    assert [(one["scan"], one["rows_by_key"]) for one in found[:3]] == [
        (None, None),
        (["00:00-12:00", "13:00-24:00"], None),
        ([], 50_000),
    ]
    assert (found[0]["scan_now"], found[2]["scan_now"]) == ("now", "never")
    assert found[1]["scan_now"].startswith(("now, until ", "not before "))
    assert found[3]["error_code"] == "CONFIGURATION"
    assert found[3]["error"].startswith("relations.loose.rows_by_key: ")
    assert found[4]["error"].startswith("relations.twice.rows_by_key: ")
    assert "unique index of the key (id), and they cannot: no constraint" in found[4]["error"]
    text = command(folder, "check", "--verbose").stdout
    assert "  scanned  at 00:00-12:00, 13:00-24:00 (local time): no" in text
    assert "  scanned  never\n  by key   at most 50,000 rows in an exchange\n" in text
    assert "3 of 5 relations can be served" in text


LONG = "a_long_name_of_a_table_in_an_old_system_that_has_many_of_them"


@pytest.fixture
def many(folder: Path) -> Path:
    """Six relations, one of which cannot be served."""
    with closing(sqlite3.connect(folder / "erp.db")) as connection:
        for name in ("items", "shops", LONG):
            connection.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY NOT NULL)")
    with (folder / "source.toml").open("a") as file:
        for name in ("items", "shops", LONG, "gone"):
            file.write(f'[relations.{name}]\ntable = "{name}"\n')
    return folder


@pytest.mark.starts
def test_a_line_for_each_relation(many: Path) -> None:
    done = command(many, "check")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    begin = next(i for i, line in enumerate(lines) if line.startswith("relation "))
    names = [line.split()[0] for line in lines[begin + 1 : begin + 6]]
    assert names[0] == "gone", "the failing first"
    assert {"orders", "items", "shops"} < set(names)
    assert any("…" in name for name in names)
    assert "FAILED: CONFIGURATION" in lines[begin + 1]
    assert "The table 'gone' does not exist." in done.stdout
    assert "Details: driftline-source check gone, or --verbose." in lines
    assert lines[-1] == "4 of 5 relations can be served"
    assert len(lines) < 40
    assert len(command(many, "check", "--verbose").stdout.splitlines()) > 1.5 * len(lines)


@pytest.mark.starts
def test_details_of_a_relation_that_is_named(many: Path) -> None:
    done = command(many, "check", "items", LONG)
    assert done.returncode == 0, "the one that cannot be served was not asked for"
    assert "relation     items" in done.stdout
    assert f"relation     {LONG}" in done.stdout
    assert "orders, for" not in done.stdout
    assert "2 of 2 relations can be served" in done.stdout
    report = json.loads(command(many, "check", "items", "--json").stdout)
    assert [one["name"] for one in report["relations"]] == ["items"]
    wrong = command(many, "check", "itmes")
    assert wrong.returncode == NotFound.exit_code
    assert "Did you mean 'items'?" in wrong.stderr


@pytest.mark.starts
def test_texts_are_counted_and_shown_of_what_is_named(many: Path) -> None:
    done = command(many, "explain")
    lines = done.stdout.splitlines()
    assert len(lines) == 1 + 6 + 1
    assert max(map(len, lines)) <= 80
    assert lines[1].startswith("gone")
    assert lines[1].endswith("FAILED")
    assert lines[-1] == "All texts: driftline-source explain gone, or --verbose."
    whole = command(many, "explain", "--verbose").stdout
    found = {line.split()[0]: int(line.split()[1]) for line in lines[3:6]}
    named = command(many, "explain", "items").stdout
    assert named.count(";\n") + named.endswith(";") >= found["items"]
    assert named.split("-- relation items")[1].strip() in whole
    assert "relation orders" not in named
    wrong = command(many, "explain", "itmes")
    assert "Did you mean 'items'?" in wrong.stderr
