"""Refreshes that withdraw trust from what is published, killed at any point, and their oracle.

A mark that no longer fits, a restored table, rows that were not compared, damage, other columns,
another program's version: each is a case that brings a table there and names the command that is
killed. The rig keeps every state of the source with its time, and reads commits, notes and rows
without the product: what a version or a note claims must be true after the kill, after the next
refresh, and after one more.
"""

from __future__ import annotations

import itertools
import json
import random
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from driftline.failpoints import VARIABLE
from pyarrow import ArrowInvalid

from tests.harness.fault_rig import Violation, expect
from tests.harness.forks import WAREHOUSE, run
from tests.harness.legacy import Legacy
from tests.harness.no_spark import NoSpark
from tests.harness.older_tables import declare
from tests.harness.pair import Pair, environment
from tests.harness.places import Place
from warehouse_agent.failpoints import WarehouseFailpoint
from warehouse_agent.refresh.job import Options

ROWS = 300
PART_ROWS = 1200  # a part has 1,000
TICK = timedelta(milliseconds=2)  # a source's clock counts milliseconds
MARKER = """table = "m"
marker = { column = "changed", late = "1m", zone = "UTC" }"""
KEYS = 'proof = "keys"\naudit = "36500d"'
PART = 'require = "fuzzy"\nread_at_most = 1000'
SKETCH = 'method = "sketch"'

Rows = Counter[tuple[Any, ...]]


class TrustRig:
    """The tables `r`, `m` with a marker, and `p` compared in parts. A context manager."""

    tables: tuple[str, ...] = ("r", "m", "p")
    time_type = "DATETIME"

    def __init__(self, legacy: Legacy, folder: Path, *, seed: int = 0) -> None:
        self.legacy = legacy
        self.random = random.Random(seed)
        self.numbers = itertools.count()
        self.states: dict[str, list[tuple[datetime, Rows]]] = {}
        for name in self.tables:
            columns = f"id INTEGER PRIMARY KEY NOT NULL, note TEXT, changed {self.time_type}"
            self.legacy.execute(f"CREATE TABLE {name} ({columns})")
            rows = [(i, f"note {i}", _now()) for i in range(PART_ROWS if name == "p" else ROWS)]
            self.legacy.many(f"INSERT INTO {name} VALUES (?, ?, ?)", rows)
            self.began(name)
            self.seen(name)
        relations = {"r": 'table = "r"', "m": MARKER, "p": 'table = "p"'}
        known = {name: relations[name] for name in self.tables}
        self.pair = Pair(NoSpark(), self.legacy, folder / "pair", known)
        self.pair.small_bytes = 256 << 20
        self.pair.fragment_lines = {"r": SKETCH, "m": KEYS, "p": PART}
        self.log = folder / "log"
        for name in self.tables:
            self.refresh(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.pair.stop()
        self.legacy.close()

    # The source

    def began(self, name: str) -> None:
        """Do what a table needs at the source after it was made."""

    def seen(self, name: str) -> None:
        """Keep the state of a table at the source after an edit."""
        self.states.setdefault(name, []).append((datetime.now(UTC), self.source(name)))

    def source(self, name: str) -> Rows:
        """Return the rows that the source's owner reads, without times: a marker's are for it."""
        return Counter((row[0], row[1], *row[3:]) for row in self.legacy.rows(name))

    def edit(self, name: str, *, is_marked: bool = True) -> None:
        """Change some rows; without `is_marked` no marker shows it, as after a restore."""
        key, word = self.random.randrange(ROWS - 10), f"edit {next(self.numbers)}"
        changed = ", changed = ?" if is_marked else ""
        values = (word, *([_now()] if is_marked else ()))
        self.legacy.execute(
            f"UPDATE {name} SET note = ?{changed} WHERE id BETWEEN ? AND ?", *values, key, key + 5
        )
        if is_marked:
            self.legacy.execute(f"DELETE FROM {name} WHERE id = ?", ROWS + 10_000)
            self.legacy.execute(
                f"INSERT INTO {name} (id, note, changed) VALUES (?, ?, ?)",
                10_000 + next(self.numbers), word, _now(),
            )  # fmt: skip
        self.seen(name)

    def at(self, name: str, as_of: str) -> Rows:
        """Return the rows that a table had at an instant of the source."""
        moment = datetime.fromisoformat(as_of) + TICK
        known = [rows for at, rows in self.states[name] if at <= moment]
        expect(bool(known), f"{name} was never read as of {as_of}")
        return known[-1]

    # The warehouse, without the product

    def entries(self, name: str) -> list[tuple[int, dict[str, Any]]]:
        """Return number and record of each version of ours, the newest first."""
        found = []
        log = self.pair.root / name / "_delta_log"
        for file in sorted(log.glob("*.json"), reverse=True):
            for line in file.read_text().splitlines():
                text = json.loads(line).get("commitInfo", {}).get("driftline")
                if text is not None:
                    found.append((int(file.stem), json.loads(text)))
        return found

    def rows(self, name: str, version: int) -> Rows:
        """Return the rows of a version, as a reader of Delta finds them."""
        table = self.pair.delta(name, version).to_pyarrow_table()
        names = [
            n for n in table.column_names if n != "changed" and not n.startswith("_driftline_")
        ]
        return Counter(zip(*(table[n].to_pylist() for n in names), strict=True))

    def notes(self, name: str) -> dict[str, Any]:
        """Return the notes, by their JSON."""
        file = self.pair.root / "_driftline" / "fragments" / f"{name}.json"
        found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        return found

    def check_claims(self, name: str, *, may_be_damaged: bool = False) -> None:
        """Raise Violation if the newest version or a note says more than is true.

        may_be_damaged: a file of it may be damaged, so that nobody reads its rows.
        """
        (version, record), *_ = self.entries(name)
        try:
            rows = self.rows(name, version)
        except ArrowInvalid:
            expect(may_be_damaged, f"{name}: version {version} cannot be read")
            return
        checked = self.notes(name).get("checked") or {}
        claims = [("the version", record["as_of"], record["proof"])]
        if checked.get("version") == version:
            claims.append(("the note", checked["as_of"], checked.get("proof") or record["proof"]))
        for what, as_of, proof in claims:
            if "part" in (proof, record["proof"]):
                self._check_loose(name, rows, as_of, what)
            elif rows != self.at(name, as_of):
                raise Violation(f"{name}: {what} {version} is not the source as of {as_of}")

    def _check_loose(self, name: str, rows: Rows, as_of: str, what: str) -> None:
        """Check rows of several instants: each was at the source at `as_of`, or later."""
        moment = datetime.fromisoformat(as_of) + TICK
        later = [rows for at, rows in self.states[name] if at > moment]
        there = set(self.at(name, as_of)).union(*later)
        expect(rows.keys() <= there, f"{name}: {what} has rows from before {as_of}")

    # Commands

    def command(self, *words: str, armed: str | None = None) -> int:
        """Run a command as a process; return its exit code."""
        more = {} if armed is None else {VARIABLE: armed}
        line = [*WAREHOUSE, "--config", str(self.pair.warehouse_toml()), *words]
        with self.log.open("a") as log:
            return run(line, env=environment(**more), stdout=log, stderr=log).returncode

    def refresh(self, name: str, *, accepts: bool = False) -> dict[str, Any] | None:
        """Refresh by an agent that is well; return its error."""
        options = Options(accept_schema=accepts, accept_restored=accepts, allow_shrink=True)
        (report,) = self.pair.reports(name, options=options)
        return report.error

    def kill(self, case: str, point: WarehouseFailpoint, *, nth: int = 1) -> bool:
        """Bring a table to where trust is withdrawn, kill the command, and check what follows.

        Returns:
            False if the point was not reached so often: then the command ended by itself.

        Raises:
            Violation: something is trusted that should not be, or the next refresh is not equal.
        """
        name, words = _policies(self) if case == POLICIES else CASES[case](self)
        code = self.command(*words, armed=f"{point.value}:kill:{nth}")
        accepted = any(word.startswith("--accept") for word in words)
        self._recover(name, accepted=accepted, is_damaged=case.startswith("damage"))
        return code == -signal.SIGKILL

    def kill_twice(self, name: str) -> bool:
        """Kill a refresh before its commit, and the next one after its own, which has the number
        that the first would have had. Return False and raise as `kill`."""
        _published(self, name)
        codes = []
        for point in (WarehouseFailpoint.COMMITTING, WarehouseFailpoint.COMMITTED):
            self.edit(name)
            self.pair.end_leases()
            codes.append(self.command("refresh", name, armed=f"{point.value}:kill"))
        self._recover(name)
        return codes == [-signal.SIGKILL] * 2

    def _recover(self, name: str, *, accepted: bool = False, is_damaged: bool = False) -> None:
        """Check what a kill left; refresh until the table is equal to its source.

        Nothing but what was `accepted` already may have to be accepted: no note accuses wrongly.
        """
        self.pair.end_leases()
        self.check_claims(name, may_be_damaged=is_damaged)
        self.edit(name)
        # What was accepted is asked again; damage that nobody noted is found by one refresh.
        errors = []
        for accepts in (False, accepted, accepted):
            error = self.refresh(name, accepts=accepts)
            self.check_claims(name, may_be_damaged=is_damaged and error is not None)
            if error is None:
                break
            errors.append(error)
        expect(error is None, f"the next refreshes: {errors}")
        if name == "p":
            self._compare_all(name)
        self._check_equal(name)
        expect(self.refresh(name) is None, "one more refresh")
        self._check_equal(name)

    def _compare_all(self, name: str) -> None:
        lines = self.pair.fragment_lines[name]
        self.pair.fragment_lines[name] = SKETCH
        expect(self.refresh(name) is None, "a refresh of all rows")
        self._check_equal(name)
        self.pair.fragment_lines[name] = lines

    def _check_equal(self, name: str) -> None:
        self.check_claims(name)
        version, _ = self.entries(name)[0]
        expect(self.rows(name, version) == self.source(name), f"{name} is not its source")


class PolicyRig(TrustRig):
    """The table `r` in PostgreSQL, of which row security hides each tenth row from the agent."""

    tables = ("r",)
    time_type = "TIMESTAMP"
    hidden = 7

    def began(self, name: str) -> None:
        self.legacy.execute(f"ALTER TABLE {name} ENABLE ROW LEVEL SECURITY")
        self.legacy.execute(f"CREATE POLICY tenths ON {name} FOR SELECT USING (id % 10 <> 7)")

    def source(self, name: str) -> Rows:
        found = super().source(name)
        return Counter({row: n for row, n in found.items() if row[0] % 10 != self.hidden})


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")


def _published(rig: TrustRig, name: str) -> Place:
    """Publish an edit, and find nothing after it, so that notes speak of the version."""
    rig.edit(name)
    for _ in range(2):
        expect(rig.refresh(name) is None, "a refresh before the case")
    return rig.pair.root / name


def _mark(rig: TrustRig) -> tuple[str, Sequence[str]]:
    """The database was changed in a way that no mark survives, and a row that no marker shows."""
    _published(rig, "m")
    rig.legacy.execute(f"CREATE TABLE other_{next(rig.numbers)} (id INTEGER)")
    rig.edit("m", is_marked=False)
    return "m", ("refresh", "m")


def _restored(rig: TrustRig, name: str) -> tuple[str, Sequence[str]]:
    """The newest entry of the log is gone, as after a restore, which is accepted."""
    log = _published(rig, name) / "_delta_log"
    newest = max(log.glob("*.json"))
    while (log / f"{newest.stem}.checkpoint.parquet").exists():
        _published(rig, name)
        newest = max(log.glob("*.json"))
    newest.unlink()
    rig.edit(name)
    return name, ("refresh", name, "--accept-restored")


def _part(rig: TrustRig) -> tuple[str, Sequence[str]]:
    """More rows changed than a part compares."""
    rig.edit("p")
    rig.legacy.execute("UPDATE p SET note = note || '.' WHERE id % 3 = 0")
    rig.seen("p")
    return "p", ("refresh", "p")


def _damage(rig: TrustRig) -> None:
    """Damage the smallest of at least two data files."""
    _published(rig, "r")
    files = [rig.pair.place(uri) for uri in rig.pair.delta("r").file_uris()]
    smallest = min(files, key=lambda file: len(file.read_bytes()))
    expect(len(files) > 1, "a table of several files")
    smallest.write_bytes(smallest.read_bytes()[:-50] + bytes(50))


def _damaged(rig: TrustRig) -> tuple[str, Sequence[str]]:
    _damage(rig)
    return "r", ("verify", "r")


def _repaired(rig: TrustRig) -> tuple[str, Sequence[str]]:
    _damage(rig)
    expect(rig.command("verify", "r") != 0, "the damage is found")
    return "r", ("refresh", "r")


def _columns(rig: TrustRig) -> tuple[str, Sequence[str]]:
    _published(rig, "r")
    has = len(rig.legacy.rows("r")[0]) > 3
    rig.legacy.execute(f"ALTER TABLE r {'DROP COLUMN more' if has else 'ADD COLUMN more INTEGER'}")
    rig.edit("r")
    return "r", ("refresh", "r", "--accept-schema")


def _compacted(rig: TrustRig) -> tuple[str, Sequence[str]]:
    """Another program's version with the same rows is adopted."""
    _published(rig, "r")
    rig.pair.delta("r").optimize.compact()
    rig.edit("r")
    return "r", ("refresh", "r")


def _written(rig: TrustRig) -> tuple[str, Sequence[str]]:
    """Another program's version with other rows is put back."""
    _published(rig, "r")
    rig.pair.delta("r").update(updates={"note": "'theirs'"}, predicate="id < 9")
    return "r", ("refresh", "r", "--accept-restored")


def _declared(rig: TrustRig) -> tuple[str, Sequence[str]]:
    """Bookkeeping columns that an older release declared, and nothing changed."""
    _published(rig, "r")
    declare(rig.pair.store, "r")
    return "r", ("refresh", "r")


def _declared_and_changed(rig: TrustRig) -> tuple[str, Sequence[str]]:
    ended = _declared(rig)
    rig.edit("r")
    return ended


def _policies(rig: TrustRig) -> tuple[str, Sequence[str]]:
    """Row security hides other rows than before, which is accepted."""
    assert isinstance(rig, PolicyRig)
    _published(rig, "r")
    rig.hidden = (rig.hidden + 1) % 10
    rig.legacy.execute(f"ALTER POLICY tenths ON r USING (id % 10 <> {rig.hidden})")
    rig.edit("r")
    return "r", ("refresh", "r", "--accept-schema")


POLICIES = "other policies"  # the case of a PolicyRig
CASES: dict[str, Callable[[TrustRig], tuple[str, Sequence[str]]]] = {
    "a mark that no longer fits": _mark,
    "a restored table": lambda rig: _restored(rig, "r"),
    "a restored table with a mark": lambda rig: _restored(rig, "m"),
    "a part": _part,
    "damage that is noted": _damaged,
    "damage that is repaired": _repaired,
    "other columns": _columns,
    "another program's maintenance": _compacted,
    "another program's rows": _written,
    "declared columns of ours": _declared,
    "declared columns of ours, and other rows": _declared_and_changed,
}
