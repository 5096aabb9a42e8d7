"""The script of `grants` harms nobody: other logins can do after it what they could before."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from source_agent.checks.configuration import check
from source_agent.cli.check import as_text
from source_agent.config.file import SourceConfig, load
from source_agent.engines.conformance.legacy import Legacy
from source_agent.engines.conformance.reads import rows_of
from source_agent.engines.interface import Limits
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Relation
from tests.harness.family import FAMILY
from tests.harness.legacies import OfMariaDB, OfPostgreSQL, of_family
from tests.harness.servers import PostgreSQL

ITEMS = Relation("items", table="items")
Application = Callable[[], None]  # what another application does with its login


def of_postgresql(legacy: OfPostgreSQL, login: str) -> Application:
    """An application that has its tables from PUBLIC, as in a database of its own."""
    legacy.server.create_login(login)
    legacy.run("GRANT CREATE ON SCHEMA public TO PUBLIC")  # as before PostgreSQL 15
    url = legacy.server.url(login, legacy.database).replace("postgresql+psycopg", "postgresql")

    def work() -> None:
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TEMPORARY TABLE scratch AS SELECT id FROM others")
            connection.execute("CREATE TABLE public.report AS SELECT * FROM scratch")
            connection.execute("INSERT INTO others VALUES (2)")
            connection.execute("DELETE FROM others WHERE id = 2")
            connection.execute("DROP TABLE public.report")

    return work


def everybody(legacy: OfMariaDB, login: str) -> str:
    """Return PUBLIC, which MySQL has not: there the application has its rights itself."""
    return "PUBLIC" if legacy.name == "mariadb" else f"'{login}'@'%'"


def of_mariadb(legacy: OfMariaDB, login: str) -> Application:
    """An application that has a part of its rights from PUBLIC, a part by a role."""
    password = legacy.server.create_login(login)
    legacy.run(
        f"GRANT CREATE TEMPORARY TABLES ON {legacy.database}.* TO {everybody(legacy, login)}"
    )

    def work() -> None:
        connection = pymysql.connect(
            unix_socket=str(legacy.server.socket),
            user=login,
            password=password,
            database=legacy.database,
            ssl_disabled=True,
        )
        with closing(connection), connection.cursor() as cursor:
            cursor.execute("CREATE TEMPORARY TABLE scratch AS SELECT id FROM others")
            cursor.execute("INSERT INTO others VALUES (2)")
            cursor.execute("DELETE FROM others WHERE id = 2")
            connection.commit()

    return work


def of_firebird(legacy: Any, login: str) -> Application:
    """An application that has its table from PUBLIC."""
    from firebird import driver

    def work() -> None:
        path = legacy.url.removeprefix("firebird:///")
        with closing(driver.connect(path, user=login, charset="UTF8")) as connection:
            connection.execute_immediate('INSERT INTO "others" VALUES (2)')
            connection.execute_immediate('DELETE FROM "others" WHERE "id" = 2')
            connection.commit()

    return work


def configuration(folder: Path, url: str) -> SourceConfig:
    (folder / "source.toml").write_text(
        f'[database]\nurl = "{url}"\n[server]\nlisten = "127.0.0.1:0"\ninsecure = true\n'
        '[relations.items]\ntable = "items"\n'
    )
    return load(folder / "source.toml")


@pytest.fixture(params=["postgresql", *FAMILY, "firebird"])
def site(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[Legacy, str, Application]]:
    """A database, the login of another application, and its work."""
    server, login = request.getfixturevalue(request.param), f"a{uuid.uuid4().hex[:10]}"
    legacy: Any
    if request.param == "firebird":
        if request.getfixturevalue("firebird") is not None:
            pytest.skip("the embedded engine alone takes a login without a password")
        from tests.harness.legacy_firebird import OfFirebird

        legacy, of = OfFirebird(tmp_path, None), of_firebird
    elif request.param == "postgresql":
        legacy, of = OfPostgreSQL(server), of_postgresql
    else:
        legacy, of = of_family(server), of_mariadb
    legacy.run(
        legacy.sql('CREATE TABLE "items" ("id" INT NOT NULL PRIMARY KEY)'),
        legacy.sql('CREATE TABLE "others" ("id" INT)'),
    )
    legacy.insert("items", [(1,), (2,)])
    work = of(legacy, login)
    if request.param not in FAMILY:
        legacy.run(legacy.sql('GRANT SELECT, INSERT, DELETE ON "others" TO PUBLIC'))
    else:
        others, to = f"{legacy.database}.others", everybody(legacy, login)
        legacy.run(f"GRANT SELECT, INSERT, DELETE ON {others} TO {to}")
    yield legacy, login, work
    if request.param == "postgresql":
        legacy.run(f"DROP OWNED BY {login}", f"DROP ROLE {login}")
    if request.param in FAMILY:
        legacy.run(f"DROP USER {login}")
    if request.param == "mariadb":
        legacy.run(f"REVOKE ALL ON {legacy.database}.* FROM PUBLIC")
        legacy.run(f"REVOKE ALL ON {legacy.database}.others FROM PUBLIC")
    legacy.close()


def test_another_application_can_do_what_it_could(
    site: tuple[Legacy, str, Application], tmp_path: Path
) -> None:
    legacy, _, work = site
    work()
    login = f"d{uuid.uuid4().hex[:10]}"
    script = legacy.connect().grants([ITEMS], login=login, connections=6)
    assert "REVOKE" not in "".join(x for x in script.splitlines() if not x.startswith("--"))
    url = legacy.granted(script, login)
    work()
    legacy.granted(script, login)
    work()
    engine = connect(url, "pw", Limits())
    with closing(engine.open()) as session:
        assert len(rows_of(session, session.describe(ITEMS))) == 2
    report = check(configuration(tmp_path, url), engine)
    assert not report.failed
    assert [p.what for p in report.privileges if p.excess] == []
    if legacy.name != "mysql":  # where nobody has anything by PUBLIC
        assert any(p.is_note and "others" in p.what for p in report.privileges), report.privileges
        assert "  note     SELECT on " in as_text(report, verbose=True)
    legacy.drop_login(login)


def test_a_script_that_fails_has_done_nothing(site: tuple[Legacy, str, Application]) -> None:
    """MariaDB commits each statement: what is granted is the beginning, and runs again."""
    legacy, _, _ = site
    login = f"d{uuid.uuid4().hex[:10]}"
    gone = Relation("gone", table="gone")
    script = legacy.connect().grants([ITEMS, gone], login=login, connections=6)
    with pytest.raises(Exception, match="gone"):
        legacy.granted(script, login)
    if isinstance(legacy, OfMariaDB):
        legacy.run("CREATE TABLE gone (id INT NOT NULL PRIMARY KEY)")
        with closing(connect(legacy.granted(script, login), "pw", Limits()).open()) as session:
            assert session.describe(gone).vouched
        legacy.drop_login(login)
    elif isinstance(legacy, OfPostgreSQL):
        with legacy.server.superuser() as admin:
            found = admin.execute("SELECT FROM pg_roles WHERE rolname = %s", [login])
            assert found.fetchall() == []
    else:
        who = f"SELECT * FROM RDB$USER_PRIVILEGES WHERE RDB$USER = '{login.upper()}'"
        assert legacy.rows_of(who) == []  # type: ignore[attr-defined]


def test_a_login_that_an_application_uses_keeps_its_limits(
    site: tuple[Legacy, str, Application],
) -> None:
    legacy, login, work = site
    script = legacy.connect(statement_s=1.0).grants([ITEMS], login=login, connections=1)
    if isinstance(legacy, OfMariaDB):
        script = "\n".join(x for x in script.splitlines() if "UNLOCK" not in x)
    legacy.granted(script, login)
    work()
    if isinstance(legacy, OfPostgreSQL):
        with legacy.server.superuser() as admin:
            sql = "SELECT rolconnlimit, rolconfig, rolinherit FROM pg_roles WHERE rolname = %s"
            assert admin.execute(sql, [login]).fetchall() == [(-1, None, True)]
    elif isinstance(legacy, OfMariaDB):
        with legacy.server.admin() as root, root.cursor() as cursor:
            names = [f"max_{what}" for what in ("questions", "updates", "connections")]
            names += ["max_user_connections"]
            if legacy.name == "mariadb":
                names.append("max_statement_time")
            cursor.execute(f"SELECT {', '.join(names)} FROM mysql.user WHERE user = %s", [login])
            ((*limits,),) = cursor.fetchall()
            assert [float(limit) for limit in limits] == [0.0] * len(names)


def test_the_script_names_who_would_lose_what_public_has(postgresql: PostgreSQL) -> None:
    """Run the comments of the script: the SELECT of each names the application, until it has a
    grant of its own."""
    legacy, login = OfPostgreSQL(postgresql), f"a{uuid.uuid4().hex[:10]}"
    of_postgresql(legacy, login)
    script = legacy.connect().grants([ITEMS], login="reader", connections=6)
    revokes = script.split("\n-- REVOKE ")[1:]
    assert [text.split(" ON ")[0] for text in revokes] == ["TEMPORARY", "CREATE"]
    lists = ["\n".join(x.removeprefix("-- ") for x in r.splitlines()[1:]) for r in revokes]

    def named() -> list[bool]:
        with postgresql.superuser(legacy.database) as admin:
            return [(login,) in admin.execute(sql).fetchall() for sql in lists]

    assert named() == [True, True]
    legacy.run(f"GRANT TEMPORARY ON DATABASE {legacy.database} TO {login}")
    assert named() == [False, True]
    legacy.run("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    assert named() == [False, False]
    legacy.run(f"DROP OWNED BY {login}", f"DROP ROLE {login}")
    legacy.close()


def test_a_catalogue_that_is_closed_to_the_login_is_a_note(
    postgresql: PostgreSQL, tmp_path: Path
) -> None:
    legacy, login = OfPostgreSQL(postgresql), f"d{uuid.uuid4().hex[:10]}"
    legacy.run("CREATE TABLE items (id INT PRIMARY KEY)")
    url = legacy.granted(legacy.connect().grants([ITEMS], login=login, connections=6), login)
    legacy.run("REVOKE SELECT ON pg_catalog.pg_shdepend FROM PUBLIC")
    report = check(configuration(tmp_path, url), connect(url, None, Limits()))
    assert not report.failed
    [privilege] = report.privileges
    assert privilege.is_note
    assert "cannot be read: PostgreSQL says: permission denied" in privilege.what
    legacy.drop_login(login)
    legacy.close()


@pytest.mark.starts
@pytest.mark.parametrize("url", ["sqlite:////srv/a b/erp.db", "dump:////srv/a b"])
def test_the_script_for_files_changes_no_owner_and_no_mode(url: str) -> None:
    """ACLs are added; what other accounts have by owner, group and mode stays."""
    script = connect(url, None, Limits()).grants([ITEMS], login="reader", connections=6)
    subprocess.run(["sh", "-n"], input=script, text=True, check=True)
    run = [line for line in script.splitlines() if not line.startswith("#")]
    assert not any(word in line for line in run for word in ("chmod", "chown", "chgrp", "umask"))
    made = [line for line in run if "useradd" in line]
    assert all(run[run.index(line) - 1].startswith("id -u reader ") for line in made)
    assert len(made) == 1
