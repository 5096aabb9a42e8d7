"""A refresh that is killed at any step between staging and commit, in both places.

Readers see the version before or the next one, the next refresh converges, and `gc` finds what the
killed one left.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from driftline.errors import WarehouseUnavailable

from tests import ROOT
from tests.harness.forks import run
from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair, environment
from tests.harness.warm_jvm import warm_jvm
from warehouse_agent.refresh.job import Options
from warehouse_agent.storage.formats import head
from warehouse_agent.storage.store import PRIVATE
from warehouse_agent.storage.table import Snapshot
from warehouse_agent.table_maintenance.garbage import unreferenced

ROWS = 1200
SMALL_BYTES = {"driver": 32 << 20, "spark": 0}
# SIGKILL before or after a call of a function that ends a step or begins one.
KILLED = """
import importlib, os, signal
from warehouse_agent.cli.main import main
module, *path, name = {function!r}.split(":")
owner = importlib.import_module("warehouse_agent." + module)
for part in path:
    owner = getattr(owner, part)
whole, calls = getattr(owner, name), []
def killed(*args, **kwargs):
    calls.append(name)
    found = whole(*args, **kwargs) if {when!r} == "after" or len(calls) < {call} else None
    if len(calls) == {call}:
        os.kill(os.getpid(), signal.SIGKILL)
    return found
setattr(owner, name, killed)
main()
"""
STAGED, WRITTEN = "tasks.staging:FrameWriter:flush", "tasks.staged_rows:write_staged"
# What is refreshed, the function, when, the number of its call.
PUBLISHED = [("change", "storage.formats:commit", "after", 1)]
PUBLISHED.append(("change", "tasks.staging:Staging:clear", "before", 1))
EVERYWHERE = [
    ("load", WRITTEN, "after", 1),
    ("change", "refresh.finish:rewrite", "after", 1),
    ("change", "tasks.proof:prove", "after", 1),
    ("change", "tasks.change_feed:write", "after", 1),
    ("change", "storage.formats:commit", "before", 1),
    ("column", "refresh.prepare:restate", "after", 1),
    ("leftovers", "refresh.recovery.leftovers:rewrite_without", "after", 1),
    PUBLISHED[0],
]
IN_DRIVER = [
    ("load", STAGED, "after", 1),
    ("load", WRITTEN, "before", 1),
    ("load", "tasks.proof:prove", "before", 1),
    ("load", "storage.formats:commit", "before", 1),
    ("load", "tasks.write:Sink:finish", "before", 1),
    ("change", STAGED, "after", 1),
    ("change", "tasks.write:Sink:finish", "before", 1),
    ("change", "tasks.write:Sink:finish", "after", 2),
    ("change", WRITTEN, "before", 1),
    ("change", WRITTEN, "after", 1),
    ("change", "tasks.proof:prove", "before", 1),
    ("change", "tasks.change_feed:write", "before", 1),
    ("column", "refresh.prepare:restate", "before", 1),
    ("column", WRITTEN, "after", 1),
    ("leftovers", "refresh.recovery.leftovers:superseded", "before", 1),
    ("leftovers", "refresh.recovery.leftovers:rewrite_without", "after", 2),
    ("leftovers", WRITTEN, "after", 3),
    ("leftovers", "tasks.proof:prove", "after", 1),
    ("leftovers", "storage.formats:commit", "after", 1),
    PUBLISHED[1],
]
KILLS = [
    *(("driver", *kill) for kill in (*EVERYWHERE, *IN_DRIVER[::2], PUBLISHED[1])),
    *(pytest.param("driver", *kill, marks=pytest.mark.soak) for kill in IN_DRIVER[1:-1:2]),
    *(pytest.param("spark", *kill, marks=pytest.mark.spark) for kill in EVERYWHERE[1::2]),
    *(pytest.param("spark", *kill, marks=pytest.mark.soak) for kill in EVERYWHERE[::2]),
]
EDITS = (
    "UPDATE t SET note = 'one' WHERE id % 10 = 0",
    "DELETE FROM t WHERE id BETWEEN 300 AND 320",
    "INSERT INTO t (id, note) VALUES (5001, 'new'), (5002, 'new')",
)
LATER = (
    "UPDATE t SET note = 'two' WHERE id % 20 = 0",
    "DELETE FROM t WHERE id IN (5001, 40)",
    "INSERT OR REPLACE INTO t (id, note) VALUES (300, 'back'), (5003, 'new')",
)


@pytest.fixture
def pair(place: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    legacy = SqliteLegacy(tmp_path / "erp.db")
    legacy.execute("CREATE TABLE t (id INTEGER PRIMARY KEY NOT NULL, note TEXT)")
    legacy.many("INSERT INTO t VALUES (?, ?)", [(i, f"note {i}") for i in range(ROWS)])
    session = NoSpark() if place == "driver" else request.getfixturevalue("spark")
    with Pair(session, legacy, tmp_path / "pair", {"t": 'table = "t"'}) as made:
        made.small_bytes = SMALL_BYTES[place]
        made.fragment_lines["t"] = 'method = "sketch"'  # a copy would rewrite nothing
        yield made
    legacy.close()


def edit(pair: Pair, edits: tuple[str, ...]) -> None:
    for sql in edits:
        pair.legacy.execute(sql)


def prepare(pair: Pair, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bring the pair to where the refresh begins that is killed."""
    if what == "load":
        return
    pair.refresh("t")
    edit(pair, EDITS)
    if what == "column":
        pair.legacy.execute("ALTER TABLE t ADD COLUMN more TEXT")
        pair.restart()
    if what == "leftovers":  # two exchanges that were not published, with some keys in both

        def cut(*_: Any, **__: Any) -> None:
            raise WarehouseUnavailable("cut")

        for edits in (("UPDATE t SET note = 'cut' WHERE id % 15 = 0",), ()):
            with monkeypatch.context() as patch:
                patch.setattr("warehouse_agent.storage.formats.commit", cut)
                pair.error("t")
            edit(pair, edits)
        pair.legacy.execute("UPDATE t SET note = 'three' WHERE id % 30 = 0")
        assert len(pair.store.folders(PRIVATE, "staging", "t")) == 2


def kill(pair: Pair, place: str, function: str, when: str, call: int, *, accept: bool) -> None:
    """Run a refresh as a process that is killed there."""
    more = '[spark]\n"spark.master" = "local[1]"' if place == "spark" else ""
    words = ["--config", str(pair.warehouse_toml(more)), "refresh", "t"]
    code = KILLED.format(function=function, when=when, call=call)
    log = pair.folder / "log"
    with log.open("w") as out:  # a pipe would be open as long as its JVM takes to notice
        done = run(
            ["-c", code, *words, *(["--accept-schema"] if accept else [])],
            cwd=ROOT,
            env=environment(**(warm_jvm() if place == "spark" else {})),
            stdout=out,
            stderr=out,
        )
    assert done.returncode == -signal.SIGKILL, log.read_text()


def published(pair: Pair) -> set[tuple[Any, ...]]:
    """What a reader without Spark and without Driftline sees."""
    table = pair.delta("t").to_pyarrow_table()
    names = [name for name in table.column_names if not name.startswith("_driftline")]
    return once(zip(*(table[name].to_pylist() for name in names), strict=True))


def source(pair: Pair) -> set[tuple[Any, ...]]:
    return once(pair.legacy.rows("t"))


def once(rows: Any) -> set[tuple[Any, ...]]:
    """Return the rows, of which none is there twice."""
    counts = Counter(map(tuple, rows))
    assert not counts or max(counts.values()) == 1
    return set(counts)


def newest(pair: Pair) -> Snapshot:
    found = head(pair.store, "t")
    assert found is not None
    return found


def check_feed(pair: Pair, before: set[tuple[Any, ...]]) -> None:
    """The feed of the newest version says what became of each key."""
    record, after = newest(pair).record, published(pair)
    old, new = ({row[0]: row for row in rows} for rows in (before, after))
    expected = Counter(("delete", *old[key]) for key in old.keys() - new.keys())
    expected += Counter(("insert", *new[key]) for key in new.keys() - old.keys())
    for key in old.keys() & new.keys():
        if old[key] != new[key]:
            expected += Counter([("update_before", *old[key]), ("update_after", *new[key])])
    found: Counter[tuple[Any, ...]] = Counter()
    if record.changes is not None:
        folder = pair.warehouse / PRIVATE / "changes" / "t" / record.changes
        for name in record.changes_files or ():
            rows = pq.read_table(folder / name, partitioning=None).to_pylist()
            found += Counter(tuple(row.values()) for row in rows)
    assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize(("place", "what", "function", "when", "call"), KILLS)
def test_killed_at(
    pair: Pair,
    place: str,
    what: str,
    function: str,
    when: str,
    call: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepare(pair, what, monkeypatch)
    before = None if what == "load" else published(pair)
    is_column = what == "column"
    kill(pair, place, function, when, call, accept=is_column)
    is_published = any(kill[1:] == (function, when, call) for kill in PUBLISHED)
    if before is None:
        assert pair.version("t") is None
    else:
        assert pair.version("t") == int(is_published)
        before = published(pair)
        assert not is_published or before == source(pair)

    edit(pair, LATER)
    options = Options(accept_schema=is_column and not is_published, allow_shrink=True)
    report = pair.refresh("t", options=options)
    assert set(report.places.values()) == {place}
    assert published(pair) == source(pair)
    assert report.version == (0 if before is None else 1 + is_published)
    if before is not None and not is_column:
        check_feed(pair, before)
    assert not pair.store.folders(PRIVATE, "staging", "t")
    collect(pair)
    assert published(pair) == source(pair)
    assert pair.refresh("t").version == report.version


def collect(pair: Pair) -> None:
    """After `gc` there are the files of the newest version, and nothing that a kill left."""
    later = datetime.now(UTC) + timedelta(hours=2)
    found = unreferenced(pair.store, "t", keep_hours=1, now=later)
    for place in found.places:
        pair.store.remove_file(*place)
    files = {f.path for f in newest(pair).files}
    table = pair.warehouse / "t"
    assert {str(f.relative_to(table)) for f in table.glob("data-*/**/*.parquet")} == files
    feeds = pair.warehouse / PRIVATE / "changes" / "t"
    changes = newest(pair).record.changes
    left = {str(f.parent.relative_to(feeds)) for f in feeds.rglob("*.parquet")}
    assert left == ({changes} if changes else set())
