"""The servers that other tests rely on are what they say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pymysql
import pytest
import sqlalchemy

from tests.harness import absent
from tests.harness.mysql_server import MySQL
from tests.harness.servers import MariaDB, PostgreSQL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _value(url: str | sqlalchemy.URL, query: str) -> Any:
    engine = sqlalchemy.create_engine(url)
    try:
        with engine.connect() as connection:
            return connection.execute(sqlalchemy.text(query)).scalar_one()
    finally:
        engine.dispose()


def test_postgresql_trusts_its_socket_and_asks_for_passwords_over_tcp(
    postgresql: PostgreSQL,
) -> None:
    database = postgresql.create_database("servers")
    password = postgresql.create_login("servers_reader")
    over_tcp = postgresql.tcp_url("servers_reader", database)
    with pytest.raises(sqlalchemy.exc.OperationalError):
        _value(over_tcp, "SELECT 1")
    for url in (
        postgresql.url("servers_reader", database),
        sqlalchemy.make_url(over_tcp).set(password=password),
    ):
        assert _value(url, "SELECT current_user") == "servers_reader"
    postgresql.drop_database(database)


def test_mariadb_asks_for_passwords(mariadb: MariaDB) -> None:
    database = mariadb.create_database("servers")
    password = mariadb.create_login("servers_reader")
    for text in (mariadb.url, mariadb.tcp_url):
        url = sqlalchemy.make_url(text("servers_reader", "information_schema"))
        with pytest.raises(sqlalchemy.exc.OperationalError):
            _value(url, "SELECT 1")
        assert _value(url.set(password=password), "SELECT user()").startswith("servers_reader@")
        assert _value(text("root", database), "SELECT database()") == database
    mariadb.drop_database(database)


def test_mysql_asks_for_passwords_over_tls_and_without(mysql: MySQL) -> None:
    assert mysql.release >= (9, 7)
    database = mysql.create_database("servers")
    over_tcp = mysql.tcp_url("servers_reader", "information_schema")
    urls = {
        over_tcp: True,  # the driver takes TLS where it is offered
        f"{over_tcp}?ssl_ca={mysql.certificate}&ssl_check_hostname=false": True,
        f"{over_tcp}?ssl_disabled=true": False,
        mysql.url("servers_reader", "information_schema"): False,
    }
    for text, is_encrypted in urls.items():
        password = mysql.create_login("servers_reader")
        with mysql.admin() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT plugin FROM mysql.user WHERE user = 'servers_reader'")
            assert cursor.fetchall() == (("caching_sha2_password",),)
        url = sqlalchemy.make_url(text)
        with pytest.raises(sqlalchemy.exc.OperationalError):
            _value(url, "SELECT 1")
        full, quick = url.set(password=password), url.set(password=password)
        for one in (full, quick):  # the server keeps the password's hash after a full login
            assert _value(one, "SELECT user()").startswith("servers_reader@")
            engine = sqlalchemy.create_engine(one)
            with engine.connect() as session:
                row = session.execute(sqlalchemy.text("SHOW STATUS LIKE 'Ssl_cipher'")).one()
            engine.dispose()
            assert bool(row[1]) == is_encrypted
        with mysql.admin() as connection, connection.cursor() as cursor:
            cursor.execute("DROP USER servers_reader")
    assert _value(mysql.tcp_url("root", database), "SELECT database()") == database
    mysql.drop_database(database)


def test_two_mysql_servers_have_two_identities(mysql: MySQL) -> None:
    database = mysql.create_database("crashes")
    uuid = "SELECT @@server_uuid"
    first = _value(mysql.url("root", database), uuid)
    mysql.crash()
    mysql.start()
    assert _value(mysql.url("root", database), uuid) == first
    mysql.drop_database(database)
    with MySQL(["--performance-schema=ON"]) as other:
        assert _value(other.url("root", "mysql"), uuid) != first
        assert _value(other.url("root", "mysql"), "SELECT @@performance_schema") == 1


def test_what_the_environment_requires_is_not_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv(absent.REQUIRED, "firebird 4,mysql")
    with pytest.raises(pytest.fail.Exception, match="NO MYSQL, and DRIFTLINE_REQUIRED"):
        absent.absent("MYSQL", "no mirror", is_required_in_ci=False)
    with pytest.raises(pytest.skip.Exception, match="NO FIREBIRD, NOT TESTED"):
        absent.absent("FIREBIRD", "no library", is_required_in_ci=False)


def test_a_crashed_server_comes_back_with_its_data(
    postgresql: PostgreSQL, mariadb: MariaDB
) -> None:
    postgresql.create_database("crashes")
    mariadb.create_database("crashes")
    connections: list[Any] = [postgresql.superuser("crashes"), mariadb.admin("crashes")]
    for server in (postgresql, mariadb):
        server.crash()
    for connection in connections:
        with pytest.raises((psycopg.OperationalError, pymysql.OperationalError)):
            connection.cursor().execute("SELECT 1")
        connection.close()
    for server in (postgresql, mariadb):
        server.start()
    postgresql.superuser("crashes").close()
    mariadb.admin("crashes").close()
    postgresql.drop_database("crashes")
    mariadb.drop_database("crashes")


def test_sqlite_paths_are_new_and_apart(sqlite_path: Callable[[str], Path]) -> None:
    assert sqlite_path("a").parent.is_dir()
    assert not sqlite_path("a").exists()
    assert sqlite_path("a") != sqlite_path("b")


def test_spark_is_local_and_in_utc(spark: SparkSession) -> None:
    first = spark.sql("SELECT current_timezone() AS zone, 1 AS one").first()
    assert first is not None
    assert first.asDict() == {"zone": "UTC", "one": 1}
    assert spark.sparkContext.master == "local[2]"
