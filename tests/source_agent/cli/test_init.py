"""`driftline-source init` against real databases: what it writes is what the agent then serves."""

from __future__ import annotations

import json
import sqlite3
import stat
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from driftline.errors import ConfigurationError, DatabaseRefused, UsageError
from sqlalchemy.engine import make_url

from source_agent.checks.configuration import check
from source_agent.checks.first_configuration import InitOptions
from source_agent.cli import init
from source_agent.cli.init import WrittenFiles
from source_agent.config.file import SourceConfig, load
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Relation
from tests.harness import forks
from tests.harness.family import FAMILY
from tests.harness.forks import SOURCE
from tests.harness.pair import environment
from tests.harness.servers import FamilyServer, PostgreSQL
from tests.pair.refresh.test_broken_text import broken

# {q} quotes a name, {t} is the schema or database of the second place.
TABLES = [
    "CREATE TABLE keyed (id INTEGER NOT NULL PRIMARY KEY, note VARCHAR(9))",
    """CREATE TABLE pair (
        a INTEGER NOT NULL, b INTEGER NOT NULL, c INTEGER NOT NULL UNIQUE, d INTEGER, UNIQUE (a, b)
    )""",
    "CREATE TABLE loose (a INTEGER UNIQUE, note VARCHAR(9))",
    "CREATE TABLE {q}We.ird name{q} (id INTEGER NOT NULL PRIMARY KEY)",
    "CREATE VIEW seen AS SELECT id FROM keyed",
    "INSERT INTO keyed VALUES (1, 'a'), (2, 'b')",
]
SECOND = "CREATE TABLE {t}.keyed (id INTEGER NOT NULL, k VARCHAR(9) NOT NULL, PRIMARY KEY (k, id))"


class Place:
    """A database with tables of every sort; `url` of a login whose password is `password`."""

    def __init__(self, name: str, url: str, password: str | None, second: str | None) -> None:
        self.name, self.url, self.password, self.second = name, url, password, second


@pytest.fixture(params=["postgresql", *FAMILY, "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    name = f"i{uuid.uuid4().hex[:10]}"
    login = f"l{name}"
    if request.param == "sqlite":
        with sqlite3.connect(tmp_path / "erp.db") as connection:
            for sql in TABLES:
                connection.execute(sql.format(q='"'))
        connection.close()
        yield Place("sqlite", f"sqlite:///{tmp_path / 'erp.db'}", None, None)
        return
    server: Any = request.getfixturevalue(request.param)
    server.create_database(name)
    password = server.create_login(login)
    second = f"{name}_b"
    if isinstance(server, PostgreSQL):
        with server.superuser(name) as admin:
            for sql in [*TABLES, f"CREATE SCHEMA {second}", SECOND.format(t=second)]:
                admin.execute(sql.format(q='"'))
            admin.execute(
                "CREATE TABLE parts (id INT NOT NULL PRIMARY KEY) PARTITION BY RANGE (id)"
            )
            admin.execute("CREATE TABLE part1 PARTITION OF parts FOR VALUES FROM (0) TO (9)")
            admin.execute(f"GRANT USAGE ON SCHEMA {second} TO {login}")
            for schema in ("public", second):
                admin.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {login}")
        yield Place("postgresql", server.tcp_url(login, name), password, second)
        server.drop_database(name)
        with server.superuser() as admin:
            admin.execute(f"DROP ROLE {login}")
        return
    assert isinstance(server, FamilyServer)
    server.create_database(second)
    with server.admin(name) as root, root.cursor() as cursor:
        for sql in [*TABLES, SECOND.format(t=second)]:
            cursor.execute(sql.format(q="`"))
        for database in (name, second):
            cursor.execute(f"GRANT SELECT ON {database}.* TO '{login}'@'%'")
        root.commit()
        yield Place("mariadb", server.tcp_url(login, name), password, second)
        cursor.execute(f"DROP USER '{login}'@'%'")
    for database in (name, second):
        server.drop_database(database)


def requested(folder: Path, place: Place, **more: Any) -> InitOptions:
    options: dict[str, Any] = {
        "config": folder / "source.toml",
        "url": place.url,
        "patterns": (),
        "login": None,
        "password_file": None,
        "listen": "127.0.0.1:0",
        "ask_password": lambda prompt: place.password,
    }
    return InitOptions(**options | more)


def published(config: SourceConfig) -> dict[str, tuple[str, tuple[str, ...] | None]]:
    found = {}
    for name, publication in config.relations.items():
        relation = publication.relation
        found[name] = (relation.table or "", relation.key)
    return found


def test_what_is_written_is_what_is_served(place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "agent"
    made = init.init(requested(folder, place), force=False)
    text = (folder / "source.toml").read_text()
    config = load(folder / "source.toml")
    quote = "`" if place.name == "mariadb" else '"'
    here = "public." if place.name == "postgresql" else ""
    weird = f"{here}{quote}We.ird name{quote}"
    expected: dict[str, tuple[str, tuple[str, ...] | None]] = {
        "pair": (f"{here}pair", ("c",)),
        "We.ird name": (weird, None),
    }
    if place.second is None:
        expected["keyed"] = ("keyed", None)
    else:
        first = "public" if place.name == "postgresql" else str(place.second).removesuffix("_b")
        expected[f"{first}.keyed"] = (f"{here}keyed", None)
        expected[f"{place.second}.keyed"] = (f"{place.second}.keyed", None)
    if place.name == "postgresql":
        expected["parts"] = ("public.parts", None)
    assert published(config) == expected
    assert (made.published, made.found) == (len(expected), len(expected) + 2)
    for left_out in ("loose", "seen"):
        (reason,) = [
            lines for lines in text.split("\n\n") if lines.startswith(f"# [relations.{left_out}]")
        ]
        assert "is not published: The table or view has no primary key" in reason
    database = config.database
    report = check(config, connect(database.url, database.password, database.limits))
    assert report.served == len(report.relations) == len(expected)
    assert all(relation.vouched for relation in report.relations)
    _check_files(made, place, folder)


def _check_files(made: WrittenFiles, place: Place, folder: Path) -> None:
    """No file but that of the password holds it, and that one is nobody else's."""
    assert sorted(path.name for path in folder.iterdir()) == sorted(p.name for p in made.files)
    if place.password is None:
        assert [path.name for path in made.files] == ["source.toml", "grants.sh"]
        return
    config, script, secret = made.files
    assert (config.name, script.name) == ("source.toml", "grants.sql")
    assert secret.read_text() == place.password
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    for path in (config, script):
        assert place.password not in path.read_text()
    assert "GRANT SELECT" in script.read_text()


def test_patterns_another_login_and_a_password_file(place: Place, tmp_path: Path) -> None:
    if place.password is None:
        with pytest.raises(UsageError, match="No table or view is called 'order"):
            init.init(requested(tmp_path / "a", place, patterns=("orders",)), force=False)
        made = init.init(
            requested(tmp_path / "b", place, patterns=("main.k*", "pair")), force=False
        )
        assert sorted(load(made.files[0]).relations) == ["keyed", "pair"]
        return
    secret = tmp_path / "mine"
    secret.write_text(place.password)
    secret.chmod(0o600)

    def nobody(prompt: str) -> str | None:
        raise AssertionError(prompt)

    chosen = {"password_file": secret, "ask_password": nobody, "patterns": (f"{place.second}.*",)}
    made = init.init(requested(tmp_path / "a", place, **chosen), force=False)
    config = load(made.files[0])
    assert list(config.relations) == ["keyed"]
    assert config.database.password == place.password
    made = init.init(requested(tmp_path / "b", place, login="reader", **chosen), force=False)
    text = made.files[0].read_text()
    assert "://reader@" in text
    assert 'password_file = "reader.password"' in text
    assert "reader" in made.files[1].read_text()
    assert [path.name for path in made.files] == ["source.toml", "grants.sql"]
    assert made.password_to_write == "reader.password"
    secret.chmod(0o644)
    with pytest.raises(ConfigurationError, match="is open to others than its owner"):
        init.init(requested(tmp_path / "c", place, **chosen), force=False)
    # Nobody to ask, as in a script.
    with pytest.raises(DatabaseRefused) as caught:
        init.init(requested(tmp_path / "d", place, ask_password=lambda prompt: None), force=False)
    assert "--password-file" in caught.value.remedy
    assert not (tmp_path / "d").exists()


def test_a_url_without_a_user_stays_without_one(
    postgresql: PostgreSQL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who runs `init` is who runs `serve`: both log in as libpq's default user."""
    name = postgresql.create_database(f"i{uuid.uuid4().hex[:10]}")
    url = postgresql.url("postgres", name).replace("//postgres@", "//")
    monkeypatch.setenv("PGUSER", "postgres")
    try:
        with postgresql.superuser(name) as admin:
            admin.execute(TABLES[0])
        place = Place("postgresql", url, None, None)
        made = init.init(requested(tmp_path / "a", place), force=False)
        database = load(made.files[0]).database
        assert make_url(database.url).username is None
        with closing(connect(database.url, None, database.limits).open()) as session:
            assert session.describe(Relation("keyed", table="keyed")).vouched
        script = made.files[1].read_text()
        assert "driftline" in script
        assert "CONNECTION LIMIT 8;" in script
        assert made.password_to_write is None
        (tmp_path / "b").mkdir()
        done = command(
            tmp_path / "b", "init", "--url", place.url, "--login", "reader", "--listen", "[::1]:0"
        )
        assert done.returncode == 0, done
        assert "next: run grants.sql, put the password into reader.password, " in done.stderr
        assert "://reader@" in (tmp_path / "b" / "source.toml").read_text()
    finally:
        postgresql.drop_database(name)


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return forks.run([*SOURCE, *arguments], cwd=folder, env=environment(), timeout=60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with sqlite3.connect(tmp_path / "erp.db") as connection:
        connection.execute(TABLES[0])
    connection.close()
    return tmp_path


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:hunter2@h/d",
        "postgresql://me@h/d?password=hunter2",
        "postgresql://me@h/d?sslpassword=hunter2",
        "mariadb://me@h/d?ssl_key_password=hunter2",
        "mariadb://:hunter2@h/d",
    ],
)
def test_a_password_on_the_command_line_is_refused(folder: Path, url: str) -> None:
    done = command(folder, "init", "--url", url)
    assert done.returncode == 2, done
    assert "The URL holds a password" in done.stderr
    assert "--password-file" in done.stderr
    assert "hunter2" not in done.stdout + done.stderr
    assert not (folder / "source.toml").exists()


@pytest.mark.slow
def test_nothing_is_overwritten_unless_forced(folder: Path) -> None:
    done = command(folder, "init", "--url", "sqlite:///erp.db")
    assert (done.returncode, done.stdout) == (0, "source.toml\ngrants.sh\n"), done
    assert "1 relation can be served" in done.stderr
    before = (folder / "source.toml").read_bytes()
    (folder / "grants.sh").write_text("mine")
    done = command(folder, "init", "--url", "sqlite:///erp.db", "--listen", "127.0.0.1:7999")
    assert (done.returncode, done.stdout) == (0, ""), done
    assert "nothing to add" in done.stderr
    assert (folder / "source.toml").read_bytes() == before
    (folder / "source.toml").rename(folder / "elsewhere.toml")
    done = command(folder, "init", "--url", "sqlite:///erp.db")
    assert done.returncode == 2
    assert "grants.sh would be overwritten" in done.stderr
    assert (folder / "grants.sh").read_text() == "mine"
    forced = ("--url", "sqlite:///erp.db", "--listen", "127.0.0.1:7999", "--force")
    assert command(folder, "init", *forced).returncode == 0
    assert 'listen = "127.0.0.1:7999"' in (folder / "source.toml").read_text()
    assert (folder / "grants.sh").read_text() != "mine"


def test_the_pause_file_is_there_from_the_start(folder: Path) -> None:
    url = f"sqlite:///{folder / 'erp.db'}"
    request = InitOptions(folder / "source.toml", url, (), None, None, "[::1]:0", lambda _: "")
    init.init(request, force=False)
    assert load(folder / "source.toml").budget.pause_file == folder / "PAUSE"


def test_new_tables_are_printed_to_be_added(place: Place, tmp_path: Path) -> None:
    """What is printed, added to the file, is what the agent then serves; nothing is written."""
    folder = tmp_path / "agent"
    file = folder / "source.toml"
    init.init(requested(folder, place, patterns=("pair",)), force=False)
    text = file.read_text()
    own = "mine as it was"
    file.write_text(
        text + f'[relations.keyed]    # {own}\nquery = "SELECT c FROM pair"\nkey = ["c"]\n'
    )
    kept = {path.name: path.read_bytes() for path in folder.iterdir()}

    def nobody(prompt: str) -> str | None:
        raise AssertionError(prompt)

    again = requested(folder, place, url=None, ask_password=nobody)
    found = init.missing(again)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == kept
    assert str(found).startswith(f"{file} exists and stays as it is. {found.addable} of ")
    assert "# is not published: The table or view has no primary key" in found.text
    file.write_text(file.read_text() + "\n" + found.text)
    config = load(file)
    assert len(config.relations) == 2 + found.addable
    assert own in file.read_text()
    names = {"pair", "keyed", "We.ird name"}
    names |= {"main.keyed"} if place.second is None else {f"{place.second}.keyed"}
    assert names <= set(config.relations)
    database = config.database
    report = check(config, connect(database.url, database.password, database.limits))
    assert report.served == len(config.relations)
    assert init.missing(again).addable == 0, "each is served now"
    with pytest.raises(ConfigurationError, match="names another database") as caught:
        init.missing(requested(folder, place, url="sqlite:///other.db"))
    assert "--config" in caught.value.remedy


@pytest.mark.starts
def test_a_database_without_a_relation_that_can_be_served(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "erp.db").close()
    done = command(tmp_path, "init", "--url", "sqlite:///erp.db")
    assert done.returncode == 2
    assert "The database has no tables" in done.stderr
    with sqlite3.connect(tmp_path / "erp.db") as connection:
        connection.execute('CREATE TABLE loose ("a\nb" INT)')
    connection.close()
    done = command(tmp_path, "init", "--url", "sqlite:///erp.db")
    assert done.returncode == 1
    assert "0 of 1 relation can be served" in done.stderr
    assert "# [relations.loose]" in (tmp_path / "source.toml").read_text()


@pytest.mark.slow
def test_options_that_cannot_be_used(folder: Path) -> None:
    for options, says in (
        (("--url", "nonsense"), "--url is not a database URL"),
        (("--url", "oracle://me@h/d"), "is not supported"),
        (("--url", "sqlite:///erp.db", "--listen", "7443"), "is not an address"),
    ):
        done = command(folder, "init", *options)
        assert done.returncode == 2, done
        assert says in done.stderr
    done = command(folder, "init", "--url", "sqlite:///absent.db")
    assert done.returncode == 4, done
    assert not (folder / "source.toml").exists()


def test_one_object_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    """SQLite: views of what is gone, and virtual tables that may not be opened."""
    with closing(sqlite3.connect(tmp_path / "erp.db")) as connection:
        modules = {name for (name,) in connection.execute("PRAGMA module_list")}
        connection.executescript(
            """
            CREATE TABLE keyed (id INTEGER PRIMARY KEY);
            CREATE TABLE gone (id INTEGER PRIMARY KEY);
            CREATE VIEW orphan AS SELECT id FROM gone;
            CREATE VIEW computed AS SELECT no_such_function(id) AS id FROM keyed;
            PRAGMA legacy_alter_table = 1;
            DROP TABLE gone;
            """
        )
        unreadable = {"orphan", "computed"}
        for module, columns in (("fts5", "a"), ("rtree", "id, a, b")):
            if module in modules:
                name = f"by_{module}"
                connection.execute(f"CREATE VIRTUAL TABLE {name} USING {module}({columns})")
                unreadable.add(name)
    config = tmp_path / "source.toml"
    url = f"sqlite:///{tmp_path / 'erp.db'}"
    made = init.init(
        InitOptions(config, url, (), None, None, "127.0.0.1:7443", lambda _: None), force=False
    )
    assert made.found - made.published == len(unreadable)
    text = config.read_text()
    assert "[relations.keyed]" in text.splitlines()
    assert not any(f"by_{end}" in text for end in ("fts5_", "rtree_")), "the module's own tables"
    for name in unreadable:
        reason = text.partition(f"# [relations.{name}]\n")[2].splitlines()[1]
        assert reason.startswith("# is not published: SQLite says")


@pytest.mark.parametrize("encoding", ["UTF8", "SQL_ASCII"])
def test_a_name_that_is_not_utf8_is_left_out_by_name(
    postgresql: PostgreSQL, tmp_path: Path, encoding: str
) -> None:
    with broken(postgresql, f"broken_init_{encoding.lower()}") as database:
        database.write(b'CREATE TABLE c (id int PRIMARY KEY, "n\xe9" int)')
        database.write(b'CREATE TABLE "t\xe9" (id int PRIMARY KEY)')
        database.write("CREATE TABLE t (id int PRIMARY KEY)")
        database.declare(encoding)
        expect_left_out(tmp_path, Place("postgresql", database.url, None, ""), ["c", "t\\xe9"])


def test_a_name_in_a_file_that_is_not_utf8_is_left_out_by_name(tmp_path: Path) -> None:
    """An application in C writes any bytes; here the file's own list of tables is edited."""
    with closing(sqlite3.connect(tmp_path / "erp.db")) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
        connection.execute("CREATE TABLE caf_ (id INTEGER PRIMARY KEY)")
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_master SET name = CAST(x'636166e9' AS TEXT),"
            " tbl_name = CAST(x'636166e9' AS TEXT), sql = CAST(replace(CAST(sql AS BLOB),"
            " CAST('caf_' AS BLOB), x'636166e9') AS TEXT) WHERE name = 'caf_'"
        )
        connection.commit()
    place = Place("sqlite", f"sqlite:///{tmp_path / 'erp.db'}", None, "")
    expect_left_out(tmp_path, place, ["caf\\xe9"])


def expect_left_out(folder: Path, place: Place, names: list[str]) -> None:
    """Check that the table `t` alone is published, and each of the others named with why not."""
    init.init(requested(folder, place), force=False)
    assert list(load(folder / "source.toml").relations) == ["t"]
    text = (folder / "source.toml").read_text()
    for name in names:
        said = text.partition(f"# [relations.{name if name.isalpha() else json.dumps(name)}]")[2]
        assert "is not in UTF-8" in said.partition("\n\n")[0], text
