"""DDL at each point of an exchange about two relations: what is sent is one instant of each table.

A real agent serves two partitioned tables. Before the n-th statement of its session somebody
commits a change of both in one transaction and then issues DDL, which may have to wait. There are
three states of the two tables: before, after the change, after the DDL. What the agent sends as of
one instant has to be one of these as a whole; `SNAPSHOT_LOST`, or other columns, is an answer too.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from driftline import wire_pb2 as pb
from driftline.errors import RecipeChanged, SnapshotLost
from driftline.limits import FOLLOWING_RELATIONS_MAX
from driftline.rows import frames
from driftline.rows.columns import join
from driftline.values.types import Column, Recipe, parse_type
from driftline.wire.negotiation import FOLLOWING
from driftline.wire_pb2_grpc import SourceStub

from source_agent.config.file import load
from source_agent.engines.conformance.reads import decoded
from source_agent.engines.mysql_family.session import FamilySession
from source_agent.engines.mysql_family.sql import BEGIN, BEGIN_LATER
from source_agent.engines.relations.shapes import Relation, Shape
from source_agent.server.service import start
from tests.harness.agents import Peer, channel, opening
from tests.harness.legacies import OfMariaDB

COLUMNS: Final = "id int PRIMARY KEY, v int, tag varchar(8)"
PARTS: Final = (
    "PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (50), "
    "PARTITION p1 VALUES LESS THAN (100))"
)
DDL: Final = {
    "swapped by RENAME": "RENAME TABLE {t} TO old, staged TO {t}",
    "exchanged": "ALTER TABLE {t} EXCHANGE PARTITION p0 WITH TABLE staged",
    "partition dropped": "ALTER TABLE {t} DROP PARTITION p1",
    "partition truncated": "ALTER TABLE {t} TRUNCATE PARTITION p0",
    "column added": "ALTER TABLE {t} ADD COLUMN more int DEFAULT 7, ALGORITHM = INSTANT",
    "copied": "ALTER TABLE {t} MODIFY COLUMN v bigint, ALGORITHM = COPY",
    "truncated": "TRUNCATE {t}",
}
RELATIONS: Final = """
[relations.t]
table = "t"
[relations.u]
table = "u"
[relations.q]
query = "SELECT id, v, tag FROM u WHERE id >= 0"
key = ["id"]
"""
RUNS: Final = 250  # of each server, under --soak
WAIT_S: Final = 0.2  # for DDL that may have to wait for the exchange
IDS: Final = range(0, 100, 10)
TILES: Final = ((0, 49), (50, 99))

State = dict[str, list[tuple[str | None, ...]]]  # rows by relation


@dataclass(slots=True)
class Hook:
    """Issues SQL before the n-th statement of sessions, counted from before their beginning."""

    family: OfMariaDB
    at: int = -1
    sql: tuple[str, ...] = ()
    count: int | None = None  # None: no snapshot has begun
    thread: threading.Thread | None = None
    said: list[str] = field(default_factory=list)

    def reach(self, sql: str) -> None:
        """Count a statement of the agent."""
        if self.count is None and sql not in {BEGIN, BEGIN_LATER}:
            return
        self.count = 0 if self.count is None else self.count + 1
        self.said.append(sql)
        if self.count == self.at and self.thread is None:
            self.thread = threading.Thread(target=self.family.run, args=self.sql, daemon=True)
            self.thread.start()
            self.thread.join(WAIT_S)

    def done(self) -> None:
        """Wait for the DDL; issue it now if its point was not reached."""
        if self.thread is None:
            self.family.run(*self.sql)
        else:
            self.thread.join(60)
            assert not self.thread.is_alive()


class Bench:
    """A server, its two tables, and an agent that serves them."""

    def __init__(self, family: OfMariaDB, over: Any) -> None:
        self.family, self._over = family, over
        self.hook = Hook(family)
        self._made()
        describe = SourceStub(over).Describe
        self.shapes = {}
        for name in ("t", "u", "q"):
            asked = pb.DescribeRequest(protocol=1, relation=name)
            self.shapes[name] = _shape(describe(asked, timeout=30).description)

    def _made(self) -> None:
        rows = {name: ", ".join(f"({i}, {i}, '{name}')" for i in IDS) for name in "tu"}
        self.family.run(
            "DROP TABLE IF EXISTS t, u, old, staged",
            f"CREATE TABLE t ({COLUMNS}) {PARTS}",
            f"CREATE TABLE u ({COLUMNS}) {PARTS}",
            f"CREATE TABLE staged ({COLUMNS})",
            f"INSERT INTO t VALUES {rows['t']}",
            f"INSERT INTO u VALUES {rows['u']}",
            "INSERT INTO staged VALUES (1, 1, 'staged'), (20, 2, 'staged')",
        )

    def state(self) -> State:
        """What is in the tables now."""
        found: State = {}
        with self.family.server.admin(self.family.database) as one, one.cursor() as cursor:
            for name in "tu":
                cursor.execute(f"SELECT id, v, tag FROM {name} ORDER BY id")
                found[name] = [tuple(str(value) for value in row) for row in cursor.fetchall()]
        return found | {"q": found["u"]}

    def run(self, ddl: str, at: int, relations: tuple[str, ...], changed: str) -> list[str]:
        """Exchange once with DDL at a point, and judge what came. Returns what became of each."""
        self._made()
        before = self.state()
        after: State = {name: [(i, str(int(v or 0) + 1), tag) for i, v, tag in rows]
                 for name, rows in before.items()}  # fmt: skip
        change = ("BEGIN", "UPDATE t SET v = v + 1", "UPDATE u SET v = v + 1", "COMMIT")
        self.hook = Hook(self.family, at, (*change, DDL[ddl].format(t=changed)))
        came: dict[str, State] = {}
        outcomes: list[str] = []
        try:
            for stream in [relations] if "tile" not in relations else [("0",), ("1",)]:
                outcomes += self._exchange(stream, came)
        finally:
            self.hook.done()
        states: list[State] = [before, after, self.state()]
        for as_of, found in came.items():
            assert any(_agrees(found, state) for state in states), (ddl, at, as_of, found, states)
        return outcomes

    def _exchange(self, relations: tuple[str, ...], came: dict[str, State]) -> list[str]:
        outcomes = []
        with Peer(self._over) as peer:
            for number, name in enumerate(relations):
                relation = "t" if name in {"0", "1"} else name
                asked = opening(self.shapes[relation].recipe.id, relation=relation)
                if name in {"0", "1"}:
                    first, last = TILES[int(name)]
                    asked.open.within.CopyFrom(pb.Within(first=first, last=last))
                elif not number:
                    asked.open.features.append(FOLLOWING)
                    asked.open.following.extend(relations[1:])
                peer.send(asked)
                outcomes.append(self._take(peer, relation, name, came))
            peer.end()
        return outcomes

    def _take(self, peer: Peer, relation: str, name: str, came: dict[str, State]) -> str:
        rows: list[tuple[str | None, ...]] = []
        while True:
            reply = peer.reply()
            match reply.WhichOneof("message"):
                case "rows":
                    block = join(frames.decode(reply.rows.frame).columns)
                    rows += [tuple(decoded(r, self.shapes[relation])) for r in block.rows()]
                case "refused":
                    assert reply.refused.code in {SnapshotLost.code, RecipeChanged.code}, reply
                    return str(reply.refused.code)
                case "finished":
                    found = came.setdefault(reply.finished.as_of, {})
                    found[name] = sorted(rows, key=lambda row: int(row[0] or 0))
                    return "sent"


def _agrees(found: State, state: State) -> bool:
    """Whether relations, or tiles of `t`, are those of a state."""
    for name, rows in found.items():
        expected = state[name if name in state else "t"]
        if name not in state:
            first, last = TILES[int(name)]
            expected = [row for row in expected if first <= int(row[0] or 0) <= last]
        if rows != expected:
            return False
    return True


def _shape(description: pb.Description) -> Shape:
    columns = (
        Column(c.name, parse_type(c.type), c.nullable, c.ordinal) for c in description.columns
    )
    recipe = Recipe(tuple(columns), description.key_columns, description.fingerprint_version)
    return Shape(Relation("t"), recipe, True, True, 0, True)


@contextmanager
def _bench(family: OfMariaDB, folder: Path) -> Iterator[Bench]:
    family.run(f"CREATE TABLE t ({COLUMNS})", f"CREATE TABLE u ({COLUMNS})")
    path = folder / "source.toml"
    path.write_text(
        f'[database]\nurl = "{family.url}"\nlock_timeout_s = 2\n'
        f'[server]\nlisten = "127.0.0.1:0"\ninsecure = true\n{RELATIONS}'
    )
    server = start(load(path))
    try:
        with channel(server.port, None) as over:
            yield Bench(family, over)
    finally:
        server.stop()


@pytest.fixture(params=["mariadb", "mysql"])
def bench(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bench]:
    family = OfMariaDB(request.getfixturevalue(request.param))
    current: list[Bench] = []
    execute, prepared = FamilySession._execute, FamilySession._prepared

    def executed(session: FamilySession, cursor: Any, sql: str, *more: Any) -> Any:
        for made in current:
            made.hook.reach(sql)
        return execute(session, cursor, sql, *more)

    def prepares(session: FamilySession, sql: str) -> Any:
        for made in current:
            made.hook.reach(sql)
        return prepared(session, sql)

    monkeypatch.setattr(FamilySession, "_execute", executed)
    monkeypatch.setattr(FamilySession, "_prepared", prepares)
    with _bench(family, tmp_path) as made:
        current.append(made)
        yield made
    family.close()


def _points(bench: Bench, relations: tuple[str, ...]) -> list[str]:
    """The statements of an exchange that nobody disturbs, from the begin of its snapshot on."""
    bench.run("copied", -1, relations, "t")
    assert bench.hook.said, "an exchange begins a snapshot"
    return bench.hook.said


KINDS: Final = (("t", "u"), ("u", "t"), ("t", "q"), ("tile",))


@pytest.mark.parametrize("ddl", DDL)
def test_ddl_is_never_seen_in_part(bench: Bench, ddl: str) -> None:
    """Before anything is locked, before the snapshot, and behind it, with two relations."""
    said = _points(bench, ("t", "u"))
    opened = next(i for i, sql in enumerate(said) if "LIMIT 1" in sql)
    for at in (0, opened, opened + 2, len(said) - 3):
        outcomes = bench.run(ddl, at, ("t", "u"), "u")
        assert outcomes[0] == "sent"
        assert at < opened or outcomes[1] == "sent", "it was locked, so the DDL waited"


@pytest.mark.soak
def test_ddl_at_any_point(bench: Bench) -> None:
    """RUNS runs, with what becomes of them."""
    chance, sizes = random.Random(f"{bench.family.name}"), dict[tuple[str, ...], int]()
    outcomes: dict[str, int] = {}
    for kind in KINDS:
        sizes[kind] = len(_points(bench, kind))
    for _ in range(RUNS):
        kind = chance.choice(KINDS)
        at, ddl = chance.randrange(sizes[kind]), chance.choice([*DDL])
        for outcome in bench.run(ddl, at, kind, chance.choice("tu")):
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
    assert outcomes["sent"] > RUNS


def test_names_that_a_client_may_not_have_are_passed_over(bench: Bench) -> None:
    """They are neither locked nor told from names that do not exist; there are not too many."""
    asked = opening(bench.shapes["t"].recipe.id, relation="t")
    asked.open.following.extend(["absent", "u", "", "t", "u"])
    asked.open.features.append(FOLLOWING)
    bench.hook = Hook(bench.family)
    with Peer(bench._over) as peer:
        peer.send(asked)
        assert peer.until("finished")[-1].finished.count == len(IDS)
        locked = [sql for sql in bench.hook.said if sql.startswith("SELECT EXISTS")]
        assert len(locked) == 3, "two before the snapshot, and one by describing"
        asked.open.following.extend(["u"] * FOLLOWING_RELATIONS_MAX)
        peer.send(asked)
        assert peer.reply().refused.code == "LIMIT"
        peer.end()
