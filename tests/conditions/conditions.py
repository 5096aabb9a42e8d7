"""The conditions of docs/errors.md as they are registered, and what they are made with.

A condition is a generator that takes a `Bench`, makes the condition, yields the pair of agents that
has it, ends it, lets the pair converge, and cleans up. No test here.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.harness.fault_rig import SESSION_S_MAX
from tests.harness.legacy import Legacy, MariaLegacy, PostgresLegacy, SqliteLegacy, of_family
from tests.harness.servers import FamilyServer, PostgreSQL
from tests.harness.tls_pair import TlsPair

ROWS = 300


class Bench:
    """The fixtures of one test, made when they are asked for."""

    def __init__(self, request: pytest.FixtureRequest, folder: Path, engine: str) -> None:
        """`engine`: of the condition, where several have it."""
        self.engine = engine
        self.folder = folder
        self.has_converged = False
        self._request = request

    def fixture(self, name: str) -> Any:
        return self._request.getfixturevalue(name)

    @contextmanager
    def sqlite(self, rows: int = ROWS, note_bytes: int = 0) -> Iterator[SqliteLegacy]:
        """A SQLite file with `orders(id, note)`."""
        made = SqliteLegacy(self.folder / "erp.db")
        try:
            fill(made, rows, note_bytes)
            yield made
        finally:
            made.close()

    @contextmanager
    def postgresql(
        self, server: PostgreSQL | None = None, rows: int = ROWS, note_bytes: int = 0
    ) -> Iterator[PostgresLegacy]:
        """A database of PostgreSQL with `orders(id, note)`."""
        made = PostgresLegacy(server or self.fixture("postgresql"))
        try:
            fill(made, rows, note_bytes)
            yield made
        finally:
            made.close()

    @contextmanager
    def family(
        self, server: FamilyServer | None = None, rows: int = ROWS, note_bytes: int = 0
    ) -> Iterator[MariaLegacy]:
        """A database of MariaDB or MySQL, the test's, with `orders(id, note)`."""
        made = of_family(server or self.fixture(self.engine))
        try:
            fill(made, rows, note_bytes)
            yield made
        finally:
            made.close()

    def pair(self, legacy: Legacy, **options: Any) -> TlsPair:
        """Both agents; close it."""
        return TlsPair(self.fixture("spark"), legacy, self.folder / "pair", **options)

    def converge(
        self,
        pair: TlsPair,
        relation: str = "orders",
        *,
        then: Callable[[], object] = lambda: None,
    ) -> None:
        """Refresh when the condition is over, compare with what the owner reads, find no session.

        Args:
            relation: a table or view with the rows that are published as `orders`.
            then: called when rows have changed; the agent sees that afterwards.
        """
        legacy = pair.legacy
        assert isinstance(legacy, SqliteLegacy | PostgresLegacy | MariaLegacy)
        legacy.execute("UPDATE orders SET note = 'after' WHERE id < 9")
        then()
        pair.refresh("orders")
        pair.check("orders", relation)
        deadline = time.monotonic() + SESSION_S_MAX
        while legacy.sessions():
            assert time.monotonic() < deadline, "a database session is left"
            time.sleep(0.02)
        self.has_converged = True


Provoke = Callable[[Bench], Iterator[TlsPair]]


@dataclass(frozen=True, slots=True)
class Cause:
    """One row of the table, and how its condition is made.

    `says`: words that the error must have in its place, message or remedy. `engines`: each has it;
    empty for one that the condition names.
    """

    condition: str
    code: str
    exit: int
    is_retried: bool
    says: tuple[str, ...]
    engines: tuple[str, ...]
    provoke: Provoke

    def provoked(self, bench: Bench) -> AbstractContextManager[TlsPair]:
        return contextmanager(self.provoke)(bench)


CAUSES: list[Cause] = []


def cause(
    condition: str,
    code: str,
    exit_code: int,
    *says: str,
    retried: bool,
    engines: tuple[str, ...] = (),
) -> Callable[[Provoke], Provoke]:
    """Register a condition under its words in docs/errors.md."""

    def register(provoke: Provoke) -> Provoke:
        CAUSES.append(Cause(condition, code, exit_code, retried, says, engines, provoke))
        return provoke

    return register


def fill(legacy: Legacy, rows: int, note_bytes: int = 0) -> None:
    """Make `orders` and fill it; each note ends with `note_bytes` that do not compress."""
    rng = random.Random(3)
    legacy.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY NOT NULL, note TEXT)")
    legacy.many(
        "INSERT INTO orders VALUES (?, ?)",
        [(i, f"n{i}" + rng.randbytes(note_bytes // 2).hex()) for i in range(rows)],
    )
