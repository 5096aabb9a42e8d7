"""`explain` is complete: whatever a real server logs of the agent's login is one of its templates.

The agent runs as its own processes, as a DBA would run it: `check`, also with `--reads`, `explain`,
`total` and a `serve` that is asked for descriptions, for a table and for a tile of it. The server's
statement log is switched on for the agent's login, and read by this test alone.
"""

from __future__ import annotations

import json
import re
import subprocess
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from driftline import wire_pb2 as pb
from driftline.relations.derivation_messages import to_message
from driftline.relations.derivations import (
    FEATURE,
    AndPredicate,
    ColumnPredicate,
    Derivation,
    NotPredicate,
    Operator,
    OrPredicate,
    ReferencePredicate,
    canonical,
    text_of,
)
from driftline.values.types import Column, Recipe, parse_type
from driftline.wire_pb2_grpc import SourceStub

from tests.harness import forks, slots
from tests.harness.agents import Peer, channel, opening
from tests.harness.family import FAMILY, LONG_SEQUENCES, of_mysql
from tests.harness.forks import SOURCE
from tests.harness.mysql_server import MySQL
from tests.harness.pair import SourceProcess, environment
from tests.harness.servers import FamilyServer, PostgreSQL

ROWS = 300
TABLE = "CREATE TABLE orders (id BIGINT NOT NULL PRIMARY KEY, note VARCHAR(40), price DECIMAL(9,2))"
LOOSE = (
    "CREATE TABLE loose (id BIGINT, note VARCHAR(40))",
    "CREATE INDEX i ON loose (id)",
    "CREATE TABLE days (day date, number int, note VARCHAR(40), UNIQUE (day, number))",
    "INSERT INTO days VALUES ('2024-02-29', 1, 'n1'), ('2024-02-29', 2, 'x')",
    "INSERT INTO days VALUES ('2024-03-01', 1, 'n2')",
    "CREATE TABLE items (id BIGINT NOT NULL PRIMARY KEY, ord BIGINT, note VARCHAR(40))",
    "ALTER TABLE items ADD FOREIGN KEY (ord) REFERENCES orders (id)",
    "CREATE TABLE secret (id BIGINT NOT NULL PRIMARY KEY, note VARCHAR(40))",
)
RELATIONS = """
[relations.orders]
table = "orders"
derive = ["columns", "rows"]
[relations.filtered]
table = "orders"
where = "note LIKE 'n%' AND id % 2 = 0"
columns = ["id", "note"]
derive = ["rows"]
[relations.days]
table = "days"
key = ["day", "number"]
where = "note LIKE 'n%' OR note LIKE 'x%'"
derive = ["rows"]
[relations.asked]
query = "SELECT note AS k, id FROM orders WHERE id < 100"
key = ["k"]
[relations.loose]
table = "loose"
key = ["id"]
[relations.items]
table = "items"
where = "note <> 'a'"
derive = ["rows", "joins"]
[relations.secret]
table = "secret"
[relations.hidden]
query = "SELECT id, note FROM secret"
key = ["id"]
[relations.absent]
table = "absent"
[relations.keyless]
table = "loose"
"""


DERIVED = [
    (
        "orders",
        Derivation(
            ("note",),
            AndPredicate(
                (
                    ColumnPredicate("note", Operator.IN, ("n1", "n2", "it's", "\\", '"', "%s; --")),
                    NotPredicate(
                        OrPredicate(
                            (
                                ColumnPredicate("price", Operator.GREATER_EQUAL, ("200.00",)),
                                ColumnPredicate("price", Operator.IS_NULL),
                                ColumnPredicate("id", Operator.EQUAL, ("-7",)),
                            )
                        )
                    ),
                )
            ),
        ),
    ),
    ("orders", Derivation(("price",))),
    (
        "items",
        Derivation(
            None,
            AndPredicate(
                (
                    ColumnPredicate("note", Operator.EQUAL, ("it's {rows}",)),
                    ReferencePredicate(
                        ("ord",),
                        "orders",
                        ("id",),
                        OrPredicate(
                            (
                                ColumnPredicate("note", Operator.IN, ("n1", "'; --", "\\")),
                                ColumnPredicate("price", Operator.IS_NULL),
                            )
                        ),
                        (("note", "text"), ("price", "numeric(9,2)")),
                    ),
                )
            ),
        ),
    ),
    ("orders", Derivation(None, ColumnPredicate("id", Operator.IN, ("1", "2", "3")))),
    (
        "filtered",
        Derivation(
            None, ColumnPredicate("note", Operator.NOT_EQUAL, ("'; DROP TABLE orders; --",))
        ),
    ),
]


class OnPostgreSQL:
    """Logs to the server's own log, for the agent's role alone."""

    more = '[relations.hashed]\ntable = "orders"\nfingerprint = "database"\n'

    def __init__(self, server: PostgreSQL) -> None:
        self._server = server
        self.database = server.create_database(f"s{uuid.uuid4().hex[:10]}")
        self.login = f"l{self.database}"
        self.password = server.create_login(self.login)
        with server.superuser(self.database) as connection:
            for sql in (TABLE, *LOOSE):
                connection.execute(sql)
            connection.execute(
                "INSERT INTO orders SELECT n, 'n' || n, n FROM generate_series(1, %s) n", (ROWS,)
            )
            connection.execute(f'GRANT SELECT ON orders, loose, days, items TO "{self.login}"')
            connection.execute(f"ALTER ROLE \"{self.login}\" SET log_statement = 'all'")
        self.url = server.url(self.login, self.database)
        self._log = server.folder / "log"
        self._from = self._log.stat().st_size

    def fill(self, table: str, rows: Sequence[Sequence[str]]) -> None:
        """Make a table of two columns of text, of which the first is its key."""
        with self._server.superuser(self.database) as connection:
            connection.execute(
                f'CREATE TABLE {table} (k varchar(60) COLLATE "C" NOT NULL PRIMARY KEY, '
                "v varchar(60))"
            )
            with connection.cursor() as cursor:
                cursor.executemany(f"INSERT INTO {table} VALUES (%s, %s)", rows)
            connection.execute(f'GRANT SELECT ON {table} TO "{self.login}"')

    def statements(self) -> list[str]:
        with self._log.open("rb") as log:
            log.seek(self._from)
            text = log.read().decode()
        # An entry begins with the date; its further lines are indented by a tab.
        found = re.findall(
            r"^[^\t].*? LOG:  (?:statement|execute [^:]+): (.*(?:\n\t.*)*)", text, re.MULTILINE
        )
        return [statement.replace("\n\t", "\n") for statement in found]

    def close(self) -> None:
        self._server.drop_database(self.database)
        with self._server.superuser() as connection:
            connection.execute(f'DROP ROLE "{self.login}"')


class OnMariaDB:
    """Logs to mysql.general_log."""

    more = ""

    def __init__(self, server: FamilyServer) -> None:
        self._server = server
        self._spelled = of_mysql if isinstance(server, MySQL) else str
        self.database = server.create_database(f"s{uuid.uuid4().hex[:10]}")
        self.login = f"l{self.database}"
        self.password = server.create_login(self.login)
        self._admin = server.admin(self.database)
        self._run(*([LONG_SEQUENCES] if isinstance(server, MySQL) else []), TABLE, *LOOSE)
        self._run(f"INSERT INTO orders SELECT seq, CONCAT('n', seq), seq FROM seq_1_to_{ROWS}")
        for table in ("orders", "loose", "days", "items"):
            self._run(f"GRANT SELECT ON {self.database}.{table} TO '{self.login}'@'%'")
        self._run("SET GLOBAL log_output = 'TABLE'", "SET GLOBAL general_log = 1")
        self.url = server.url(self.login, self.database)

    def _run(self, *statements: str) -> Sequence[Sequence[Any]]:
        with self._admin.cursor() as cursor:
            for sql in statements:
                cursor.execute(self._spelled(sql))
            self._admin.commit()
            return cursor.fetchall()

    def fill(self, table: str, rows: Sequence[Sequence[str]]) -> None:
        """Make a table of two columns of text, of which the first is its key."""
        text = "varchar(60) COLLATE utf8mb4_nopad_bin"
        self._run(f"CREATE TABLE {table} (k {text} NOT NULL PRIMARY KEY, v {text})")
        with self._admin.cursor() as cursor:
            cursor.executemany(f"INSERT INTO {table} VALUES (%s, %s)", rows)
        self._admin.commit()
        self._run(f"GRANT SELECT ON {self.database}.{table} TO '{self.login}'@'%'")

    def statements(self) -> list[str]:
        rows = self._run(
            "SELECT argument FROM mysql.general_log WHERE command_type IN ('Query', 'Execute') "
            f"AND user_host LIKE '{self.login}%'"
        )
        return [row[0].decode() if isinstance(row[0], bytes) else str(row[0]) for row in rows]

    def close(self) -> None:
        self._run(
            "SET GLOBAL general_log = 0",
            "TRUNCATE mysql.general_log",
            "SET GLOBAL log_output = 'FILE'",
            f"DROP USER '{self.login}'@'%'",
        )
        self._admin.close()
        self._server.drop_database(self.database)


@pytest.fixture(params=["postgresql", *FAMILY])
def server(request: pytest.FixtureRequest) -> Iterator[OnPostgreSQL | OnMariaDB]:
    made: OnPostgreSQL | OnMariaDB
    if request.param == "postgresql":
        made = OnPostgreSQL(request.getfixturevalue("postgresql"))
    else:
        made = OnMariaDB(request.getfixturevalue(request.param))
    yield made
    made.close()


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return forks.run([*SOURCE, *arguments], cwd=folder, env=environment(), timeout=60)


def recipe_of(description: pb.Description) -> Recipe:
    columns = tuple(
        Column(c.name, parse_type(c.type), c.nullable, c.ordinal) for c in description.columns
    )
    return Recipe(columns, description.key_columns, description.fingerprint_version)


def use(config: Path) -> None:
    """Ask a running agent for everything that costs a statement of its own."""
    with (
        SourceProcess(config, is_forked=True) as source,
        channel(int(source.address.rpartition(":")[2]), None) as c,
    ):
        describe = SourceStub(c).Describe
        assert len(describe(pb.DescribeRequest(protocol=1), timeout=30).relations) >= 6
        for relation in ("orders", "filtered", "asked", "loose"):
            request = pb.DescribeRequest(protocol=1, relation=relation)
            recipe = recipe_of(describe(request, timeout=30).description)
            for within in (None, pb.Within(first=-(1 << 63), last=50)):
                if within is not None and relation not in {"orders", "filtered", "loose"}:
                    continue
                asked = opening(recipe.id, relation=relation)
                if within is not None:
                    asked.open.within.CopyFrom(within)
                with Peer(c) as peer:
                    peer.send(asked)
                    assert peer.until("finished")
                    peer.end()
        derive(c)
        between(c)


def derive(over: Any) -> None:
    """Ask a running agent for derivations, also with hostile literals and a tile."""
    for relation, derivation in DERIVED:
        asked = pb.DescribeRequest(protocol=1, relation=relation, derivation=to_message(derivation))
        described = SourceStub(over).Describe(asked, timeout=30).description
        rows = "" if derivation.rows is None else text_of(canonical(derivation.rows))
        recipe = replace(recipe_of(described), rows=rows)
        for within in (None, pb.Within(first=-(1 << 63), last=50)):
            opened = opening(recipe.id, relation=relation)
            opened.open.features.append(FEATURE)
            opened.open.derivation.CopyFrom(to_message(derivation))
            if within is not None:
                opened.open.within.CopyFrom(within)
            with Peer(over) as peer:
                peer.send(opened)
                assert peer.until("finished")
                peer.end()


def between(over: Any) -> None:
    """Ask a running agent for tiles between keys, also of a derivation."""
    ends = ["2024-02-29", "1"], ["2024-03-01", "1"]
    derivation = Derivation(None, ColumnPredicate("number", Operator.LESS, ("2",)))
    for chosen, counts in ((None, [0, 2, 1, 3]), (derivation, [0, 1, 1, 2])):
        asked = pb.DescribeRequest(protocol=1, relation="days")
        if chosen is not None:
            asked.derivation.CopyFrom(to_message(chosen))
        described = SourceStub(over).Describe(asked, timeout=30).description
        rows = "" if chosen is None else text_of(canonical(chosen.rows))  # type: ignore[arg-type]
        recipe = replace(recipe_of(described), rows=rows)
        tiles: list[tuple[list[str], list[str]]] = [([], ends[0]), ends, (ends[1], []), ([], [])]
        with Peer(over) as peer:
            for (lower, upper), count in zip(tiles, counts, strict=True):
                opened = opening(recipe.id, relation="days")
                opened.open.features.append("between")
                opened.open.between.CopyFrom(pb.Between(lower=lower, upper=upper))
                if chosen is not None:
                    opened.open.features.append(FEATURE)
                    opened.open.derivation.CopyFrom(to_message(chosen))
                peer.send(opened)
                assert peer.until("finished")[-1].finished.count == count
            peer.end()


def receipt(folder: Path) -> str:
    """A receipt of nothing: the scan is what matters."""
    columns = [["id", "int8"], ["note", "text"], ["price", "numeric(9,2)"]]
    facts = {"relation": "orders", "columns": columns, "key_columns": 1, "as_of": "2026-01-01"}
    facts |= {"version": 0, "count": 0, "sum": "00" * 16}
    facts |= {"fragment_key": "00" * 32, "salt": "00" * 16}
    path = folder / "receipt.json"
    path.write_text(json.dumps(facts))
    return str(path)


def test_every_statement_of_the_log_is_a_template(
    server: OnPostgreSQL | OnMariaDB, tmp_path: Path
) -> None:
    secret = tmp_path / "reader.password"
    secret.write_text(server.password)
    secret.chmod(0o600)
    config = tmp_path / "source.toml"
    config.write_text(
        f'[database]\nurl = "{server.url}"\npassword_file = "reader.password"\n'
        'statement_timeout_s = 60\n[server]\nlisten = "127.0.0.1:0"\ninsecure = true\n'
        f"{RELATIONS}{server.more}"
    )
    explained = command(tmp_path, "explain", "--verbose")
    assert explained.returncode == 1, explained
    assert "relation absent cannot be served" in explained.stderr
    checked = command(tmp_path, "check")
    assert checked.returncode == 1, checked
    served = 7 if server.more else 6
    assert checked.stdout.endswith(f"\n{served} of {served + 4} relations can be served\n")
    differs = command(tmp_path, "total", "--receipt", receipt(tmp_path))
    assert "The table may have changed since" in differs.stdout, differs
    named = [f"--reads={name}" for name in ("orders", "filtered", "days", "asked", "loose")]
    compared = command(tmp_path, "check", *named, "--rows=50")
    assert compared.returncode == 0, compared
    use(config)
    seen = set(server.statements())
    assert len(seen) > 20
    assert any("NULL" in sql and "LIMIT 1" in sql for sql in seen), "of the tile"
    assert any(sql.startswith("EXPLAIN") for sql in seen)
    assert len([of for of in slots.explained(explained.stdout) if of.statements]) == 4
    assert any("it\\'s" in sql or "driftline.value3" in sql for sql in seen), "of a derivation"
    assert strangers(seen, explained.stdout) == []


def strangers(statements: Iterable[str], script: str) -> list[str]:
    """The statements that are none of the templates that `explain` printed."""
    known = templates_of(script)
    derived = [of for of in slots.explained(script) if of.statements]
    others = [sql for sql in statements if not any(t.fullmatch(_flat(sql)) for t in known)]
    return [sql for sql in others if not any(of.has(sql) for of in derived)]


def templates_of(script: str) -> list[re.Pattern[str]]:
    """The templates of `explain` as patterns: a placeholder stands for any value."""
    patterns = []
    for template in re.split(r";\n", "\n".join(_uncommented(script)) + "\n"):
        text = re.escape(_flat(template.replace("%%", "%")))
        text = text.replace("%s", r".+?").replace("…", r".+?")
        if text and "{columns}" not in template and "{rows}" not in template:
            patterns.append(re.compile(text))
    return patterns


def _uncommented(script: str) -> Iterator[str]:
    return (line for line in script.splitlines() if not line.startswith("-- "))


def _flat(sql: str) -> str:
    return " ".join(sql.split()).removesuffix(";")
