"""How many requests each command makes of the warehouse's files: one table, SQLite, small steps.

On a disk `tests/harness/counted_store.py` says what counts; in an object store a proxy counts
whatever is asked, by delta-rs too. The numbers stand in `requests.md` beside this, those of object
stores in docs/operating/requests.md; a test compares them, so that a change which asks for more, or
less, shows it there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests import ROOT
from tests.harness.counted_requests import RequestCounter
from tests.harness.counted_store import FRESH, OPERATIONS, RECORDS, Counted, counted
from tests.harness.legacy import SqliteLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.object_stores import Moto
from tests.harness.pair import Pair
from tests.harness.views import Sites
from warehouse_agent.cli import main
from warehouse_agent.storage import formats
from warehouse_agent.storage.backends import lease
from warehouse_agent.storage.store import PRIVATE, Store, read_at
from warehouse_agent.visible_versions import warehouse_versions
from warehouse_agent.visible_versions.flips import fragment_member
from warehouse_agent.visible_versions.readers import read

PAGE = ROOT / "docs" / "operating" / "requests.md"
BY_KIND = Path(__file__).with_name("requests.md")
ROWS = 400
KINDS = ("notes", "history", "memory", "log", "data")  # whose reads have a column each
HEADER = ("command", *(f"reads of {kind}" for kind in KINDS), *(f"{one}s" for one in OPERATIONS))
HEADER = (*HEADER, "of the record", "of freshness")
APART = (*RECORDS, FRESH)  # kinds
TABLES = {
    "erp": {"orders": "id INTEGER PRIMARY KEY, customer INT, amount INT"},
    "crm": {"customer": "id INTEGER PRIMARY KEY, name VARCHAR"},
}
VIEWS = {
    "joined": "SELECT o.id, o.amount, c.name FROM erp.orders o"
    " JOIN crm.customer c ON c.id = o.customer"
}
EDITS = ("UPDATE t SET note = 'x' WHERE id < 7", "DELETE FROM t WHERE id = 9")
NOTHING, PLAN = "`refresh`, nothing changed", "`plan`"
ROUNDED = 10  # of requests of a view
FLIP = "`refresh`, 7 of 399 rows changed, with a flip"
ONCE = (FLIP, "`status`", "`status --ask`", "`schedule`", "`schedule --ask`")
# What one table may cost. Both name small files that are read again and again.
READS_MAX = {(name, kind): 1 for name in (NOTHING, PLAN) for kind in ("notes", "history", "log")}
READS_MAX |= {(name, kind): 1 for name in ONCE for kind in ("notes", "history")}
WRITES_MAX = {"notes": 1, "history": 1, "memory": 1}  # of a refresh that finds nothing


Ask = Callable[..., Counted]  # runs a command of the agent, by its words


@contextmanager
def served(folder: Path) -> Iterator[Pair]:
    """A table of ROWS rows, and an empty warehouse."""
    folder.mkdir(exist_ok=True)
    legacy = SqliteLegacy(folder / "erp.db", wal=False)  # whose changes are counted
    legacy.execute("CREATE TABLE t (id INTEGER PRIMARY KEY NOT NULL, note TEXT)")
    legacy.many("INSERT INTO t VALUES (?, ?)", [(i, f"note {i}") for i in range(ROWS)])
    with Pair(NoSpark(), legacy, folder / "pair", {"t": 'table = "t"'}) as made:
        made.fragment_lines["t"] = 'method = "sketch"\nfreshness = "1h"'
        made.limits = "activity_seconds = 0.001"
        made.restart()
        yield made
    legacy.close()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with served(tmp_path_factory.mktemp("requests")) as made:
        yield made


def run(pair: Pair, *words: str) -> None:
    """Run a command of the agent in this process."""
    argv = ["driftline", "--config", str(pair.warehouse_toml()), *words]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", argv)
        with pytest.raises(SystemExit) as ended:
            main.main()
    assert not ended.value.code, words


def command(pair: Pair, *words: str) -> Counted:
    """Run a command on a disk; return the requests that it made."""
    with counted(pair.warehouse) as found:
        run(pair, *words)
    return found


def begin_versions(pair: Pair) -> None:
    """Begin the table of versions, as the first view does."""
    head = formats.head(pair.store, "t")
    assert head is not None
    member = fragment_member(pair.store, pair.config().fragments["t"], head)
    assert warehouse_versions.flip(pair.store, lambda _: {"t": member}) is not None


def asked(pair: Pair, ask: Ask, read_all: Callable[[], Counted] | None) -> dict[str, Counted]:
    """Return the requests of each command, in the order of the page."""
    made = {"`refresh`, first load": ask("refresh", "t")}
    ask("refresh", "t")  # learns what the next one knows
    made[NOTHING] = ask("refresh", "t")
    for edit in EDITS:
        pair.legacy.execute(edit)
    made["`refresh`, 8 of 400 rows changed"] = ask("refresh", "t")
    pair.check("t")
    made[PLAN] = ask("plan", "t")
    made["`status`"] = ask("status")
    made["`status --ask`"] = ask("status", "--ask")
    made["`history`"] = ask("history", "t")
    made["`schedule`"] = ask("schedule", "t")
    made["`schedule --ask`"] = ask("schedule", "t", "--ask")
    made["`refresh --due`, nothing due"] = ask("refresh", "--due")
    made["`verify`"] = ask("verify", "t")
    if read_all is not None:
        made["`warehouse_agent.read`"] = read_all()
    hours = "0" if pair.bucket is None else "24"  # less is refused where there are no locks
    made["`gc --yes`"] = ask("gc", "t", "--keep-hours", hours, "--yes")
    begin_versions(pair)
    pair.legacy.execute("UPDATE t SET note = 'y' WHERE id < 7")
    made[FLIP] = ask("refresh", "t")
    return made


@pytest.fixture(scope="module")
def found(pair: Pair, spark: SparkSession) -> dict[str, Counted]:
    """The requests of each command on a disk."""

    def read_all() -> Counted:
        with counted(pair.warehouse) as reading:
            assert read(spark, str(pair.warehouse), "t", storage=pair.storage).count() == ROWS - 1
        return reading

    return asked(pair, partial(command, pair), read_all)


def stated(file: Path, header: str) -> list[str]:
    """Return the lines of the table of a file that begins with a header."""
    page = file.read_text(encoding="utf-8")
    return page[page.index(header) :].split("\n\n")[0].rstrip().splitlines()[2:]


def line(name: str, one: Counted) -> str:
    """Return a command as a line of the table."""
    cells = [one["read", kind] for kind in KINDS]
    for operation in OPERATIONS:
        cells.append(sum(n for kind, n in one.of(operation).items() if kind not in APART))
    cells.append(sum(one.at(kind) for kind in RECORDS))
    cells.append(one.at(FRESH))
    return "| " + " | ".join([name, *map(str, cells)]) + " |"


@pytest.mark.spark
def test_the_table_is_what_commands_ask_for(found: dict[str, Counted]) -> None:
    counts = [line(name, one) for name, one in found.items()]
    header = "| " + " | ".join(HEADER)
    assert stated(BY_KIND, header) == counts, "\n".join(["the table is now:", *counts])


def test_the_table_is_what_an_object_store_is_asked_for(
    moto: Moto, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of a first load, and of all commands after it; delta-rs's requests are among them."""
    folder = tmp_path_factory.mktemp("object-store")
    with RequestCounter(moto) as counter, served(folder) as pair:
        bucket = pair.bucket = counter.bucket()

        def ask(*words: str) -> Counted:
            with counter.counted(bucket) as requests:
                run(pair, *words)
            return requests

        made = asked(pair, ask, None)
    cells = {
        name: [sum(n for kind, n in one.of(what).items() if kind != FRESH) for what in OPERATIONS]
        for name, one in made.items()
    }
    counts = [
        "| " + " | ".join([name, *map(str, [*some, made[name].at(FRESH)])]) + " |"
        for name, some in cells.items()
    ]
    names = ("| in an object store", *(f"{one}s" for one in OPERATIONS), "of freshness")
    header = " | ".join(names)
    assert stated(PAGE, header) == counts, "\n".join(["the table is now:", *counts])


@pytest.mark.spark
def test_the_table_is_what_a_view_asks_an_object_store_for(
    moto: Moto, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a refresh of the view and both fragments that it joins; Spark's tasks are among them.

    Leases are not renewed, which depends on the time.
    """
    monkeypatch.setattr(lease, "LEASE_S", 7200.0)
    monkeypatch.setattr(lease, "RENEW_S", 3600.0)
    made = dict[str, list[int]]()
    with RequestCounter(moto) as counter, Sites(spark, tmp_path / "s", TABLES, VIEWS) as sites:
        bucket = sites.bucket = counter.bucket()
        sites.small_bytes = 256 << 20

        def refresh(what: str, maintain: str = "auto") -> None:
            sites.view_lines["joined"] = f'maintain = "{maintain}"'
            with counter.counted(bucket) as found:
                sites.well()
            sites.check()
            made[what] = [sum(found.of(one).values()) for one in OPERATIONS]

        for key in range(ROWS):
            sites.sql("erp", "INSERT INTO orders VALUES (?, ?, 0)", key, key % 20)
        for key in range(20):
            sites.sql("crm", "INSERT INTO customer VALUES (?, 'name')", key)
        refresh("first load")
        refresh("nothing changed")  # learns what the next one knows
        refresh("nothing changed")
        for maintain, how in (("incremental", "by keys"), ("recompute", "recomputed")):
            sites.sql("erp", "UPDATE orders SET amount = amount + 1 WHERE id < 7")
            refresh(f"7 of {ROWS} rows changed, view {how}", maintain)
    header = " | ".join(("| two fragments and a view", *(f"{one}s" for one in OPERATIONS)))
    rows = [line.strip("| ").split(" | ") for line in stated(PAGE, header)]
    assert [name for name, *_ in rows] == list(made)
    for name, *cells in rows:  # rounded up: an answer that is late is asked for again
        above = [int(most) - found for most, found in zip(cells, made[name], strict=True)]
        assert all(0 <= some < ROUNDED for some in above), made


@pytest.mark.spark
def test_small_files_are_not_read_again_and_again(found: dict[str, Counted]) -> None:
    counts = {(name, kind): found[name]["read", kind] for name, kind in READS_MAX}
    assert all(counts[one] <= most for one, most in READS_MAX.items()), counts
    assert (
        found[NOTHING].of("write").items()
        <= {
            **WRITES_MAX,
            **dict.fromkeys(("commands", FRESH), 1),
        }.items()
    )
    assert max(found[name]["head", "log"] for name in (NOTHING, PLAN)) <= 1
    for name in (PLAN, *ONCE[1:], "`history`", "`verify`", "`warehouse_agent.read`"):
        assert not found[name].of("write"), name
        assert not found[name].of("remove"), name


def test_every_request_counts(tmp_path: Path) -> None:
    """Each method of the store that asks for something, and what comes past it by a URI."""
    store, place = Store(str(tmp_path)), (PRIVATE, "fragments", "t.json")
    history = (PRIVATE, "runs", "t.jsonl")
    with counted(tmp_path) as one:
        asked: list[tuple[Any, dict[tuple[str, str], int]]] = [
            (lambda: store.write(b"{}", *place), {("write", "notes"): 1}),
            (lambda: store.read(*place), {("head", "notes"): 1, ("read", "notes"): 1}),
            (lambda: store.read_json(*history), {("head", "history"): 1}),
            (
                lambda: store.append_line("{}", *history, bytes_max=9, shorten=bytes),
                {("write", "history"): 1},
            ),
            (
                lambda: list(store.lines_backwards(*history)),
                {("read", "history"): 1},
            ),
            (lambda: store.write_new(b"", PRIVATE, "keys", "t.key"), {("write", "keys"): 1}),
            (lambda: store.files("t", "_delta_log"), {("list", "log"): 1}),
            (lambda: store.modified("t", "data-0a-shipped", "x"), {("head", "data"): 1}),
            (lambda: store.walk("t"), {("list", "table"): 1}),
            (lambda: read_at(store.uri(*place)), {("read", "notes"): 1}),
            (lambda: store.remove_file(*place), {("remove", "notes"): 1}),
        ]
        for ask, expected in asked:
            one.requests.clear()
            ask()
            assert dict(one.requests) == expected
