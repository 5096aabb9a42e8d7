"""Drivers that fail at a step or several, with any class of exception: `test_driver_failures`."""

from __future__ import annotations

import random
import sqlite3
import ssl
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pymysql
import pytest

from tests.conformance.border_cases import SECRET

WORDS = f"{SECRET}_salaries"
OTHERS: Sequence[Callable[[], Exception]] = (
    lambda: TypeError(WORDS),
    lambda: ValueError(WORDS),
    lambda: UnicodeDecodeError("utf-8", WORDS.encode(), 0, 1, WORDS),
    lambda: UnicodeEncodeError("ascii", WORDS, 0, 1, WORDS),
    lambda: OSError(5, WORDS, WORDS),
    lambda: ConnectionResetError(104, WORDS),
    lambda: TimeoutError(WORDS),
    lambda: ssl.SSLError(1, WORDS),
    lambda: EOFError(WORDS),
    MemoryError,
    lambda: KeyError(WORDS),
    lambda: IndexError(WORDS),
    lambda: AttributeError(WORDS),
    lambda: OverflowError(WORDS),
    lambda: RecursionError(WORDS),
    lambda: NotImplementedError(WORDS),
    lambda: RuntimeError(WORDS),
    lambda: ImportError(WORDS),
    lambda: struct.error(WORDS),
    lambda: AssertionError(WORDS),
    lambda: Exception(WORDS),
)


def raisers(engine: str) -> list[Callable[[], Exception]]:
    """Everything that a driver of this engine is tried with: its own classes, then others'."""
    own: list[type[Exception]] = []
    arguments: tuple[Any, ...] = (WORDS,)
    if engine == "postgresql":
        from psycopg import errors

        own = [*_below(errors.Error), *_states(errors)]
    elif engine == "mariadb":
        own, arguments = _below(pymysql.Error), (1142, WORDS)
    elif engine == "firebird":
        from firebird import driver

        own = _below(driver.Error)
    else:
        own = _below(sqlite3.Error)
    return [*(lambda kind=kind: kind(*arguments) for kind in own), *OTHERS]


def _below(kind: type[Exception]) -> list[type[Exception]]:
    found = [kind]
    for child in kind.__subclasses__():
        found += _below(child)
    return found


def _states(errors: Any) -> list[type[Exception]]:
    states = ("42501", "42P01", "57014", "40001", "55000", "22021")
    return [errors.lookup(state) for state in states]


@dataclass(frozen=True)
class Fault:
    """The failure of a call of a driver, after `calls` that went well."""

    calls: int
    error: Callable[[], Exception]

    def __str__(self) -> str:
        return f"after {self.calls} calls {self.error()!r}"


class Failing:
    """Functions of a driver that raise the faults that they are `armed` with, one after another."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._calls_left = -1
        self.calls = 0

    def call(self) -> None:
        self.calls += 1
        if self._calls_left == 0:
            error = self._faults.pop(0).error()
            self._next()
            raise error
        self._calls_left -= 1

    def _next(self) -> None:
        self._calls_left = self._faults[0].calls if self._faults else -1

    @contextmanager
    def armed(self, faults: Sequence[Fault]) -> Iterator[None]:
        self._faults = list(faults)
        self._next()
        try:
            yield
        finally:
            self._faults = []
            self._next()

    def wrap(self, patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def failing(*arguments: Any, **options: Any) -> Any:
            if name == "close":  # it closes, and fails
                real(*arguments, **options)
            self.call()
            return None if name == "close" else real(*arguments, **options)

        patch.setattr(owner, name, failing)


class Wrapped:
    """An object of a driver, each of whose methods may fail."""

    def __init__(self, made: Failing, of: Any) -> None:
        self._made, self._of = made, of

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._of, name)
        if not callable(real):
            return real

        def failing(*arguments: Any, **options: Any) -> Any:
            self._made.call()
            return real(*arguments, **options)

        return failing


def failing(engine: str, patch: pytest.MonkeyPatch) -> Failing:
    """Make the calls that connect, execute, describe and fetch fail on demand."""
    made = Failing()
    if engine == "postgresql":
        import psycopg

        from source_agent.engines.postgresql.waits import BoundedConnection, ResultSocket

        made.wrap(patch, psycopg, "connect")  # by SQLAlchemy
        for name in ("execute", "fetchall", "fetchmany", "fetchone", "close"):
            made.wrap(patch, psycopg.Cursor, name)
        for name in ("rollback", "close"):
            made.wrap(patch, psycopg.Connection, name)
        connect = BoundedConnection.connect

        def connected(**options: Any) -> Any:
            made.call()
            return connect(**options)

        patch.setattr(BoundedConnection, "connect", connected)
        taken = ResultSocket.__init__

        def take(self: Any, pgconn: Any, *arguments: Any) -> None:
            taken(self, pgconn, *arguments)
            self.pgconn = Wrapped(made, pgconn)

        patch.setattr(ResultSocket, "__init__", take)
    elif engine == "mariadb":
        from pymysql.cursors import Cursor, SSCursor

        made.wrap(patch, pymysql, "connect")
        made.wrap(patch, SSCursor, "read_next")
        for name in ("execute", "fetchall", "fetchmany"):
            made.wrap(patch, Cursor, name)
        for name in ("rollback", "close"):
            made.wrap(patch, pymysql.Connection, name)
    elif engine == "firebird":
        from firebird import driver

        from source_agent.engines.firebird import session

        made.wrap(patch, session, "connect")
        made.wrap(patch, driver.core.TransactionManager, "begin")
        for name in ("execute", "fetchone", "fetchmany", "fetchall"):
            made.wrap(patch, driver.Cursor, name)
        for name in ("rollback", "close"):
            made.wrap(patch, driver.Connection, name)
    else:
        _sqlite(made, patch)
    return made


def _sqlite(made: Failing, patch: pytest.MonkeyPatch) -> None:
    connect = sqlite3.connect

    class Rows(sqlite3.Cursor):
        def execute(self, *arguments: Any) -> Any:
            made.call()
            return super().execute(*arguments)

        def fetchall(self) -> Any:
            made.call()
            return super().fetchall()

        def fetchmany(self, *arguments: Any) -> Any:
            made.call()
            return super().fetchmany(*arguments)

        def __next__(self) -> Any:
            made.call()
            return super().__next__()

    class Connection(sqlite3.Connection):
        def cursor(self, *_: Any) -> Any:
            return super().cursor(Rows)

        def execute(self, sql: str, *values: Any) -> Any:
            return self.cursor().execute(sql, *values)

        def rollback(self) -> None:
            made.call()
            super().rollback()

        def close(self) -> None:
            super().close()
            made.call()

    def connected(*arguments: Any, **options: Any) -> Any:
        made.call()
        return connect(*arguments, **options | {"factory": Connection})

    for module in (sqlite3, sqlite3.dbapi2):  # SQLAlchemy has the second
        patch.setattr(module, "connect", connected)


def chosen(
    rng: random.Random, steps: int, errors: Sequence[Callable[[], Exception]]
) -> list[Fault]:
    """Draw where a driver fails, at one to three steps, and how.

    As often by an error that is not its own. Later failures come soon, while the first is handled.
    """

    def fault(calls: int) -> Fault:
        return Fault(calls, rng.choice(rng.choice((errors, OTHERS))))

    return [
        fault(rng.randrange(steps)),
        *(fault(rng.randrange(4)) for _ in range(rng.randrange(3))),
    ]
