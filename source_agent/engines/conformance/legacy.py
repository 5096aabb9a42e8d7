"""A database as the suite sees it: who writes to it, its URL, and how its engine's SQL is written.

A `Legacy` is one empty database. `run` executes statements as somebody who may do anything and
commits; `url` is what the agent would find in the DBA's file. What engines write differently, and
what a test must do below the agent's own code, is an attribute or a method here, so that the suite
names no engine.

The SQL of the suite has its names in double quotes: `sql` gives them the marks of the engine. Its
types are VARCHAR, INT, BIGINT and DECIMAL.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from decimal import Decimal
from types import ModuleType
from typing import Any

import pytest

from source_agent.engines import registry
from source_agent.engines.conformance.capabilities import Capability
from source_agent.engines.encoding import rows
from source_agent.engines.interface import Engine, Limits, Session
from source_agent.engines.relations.shapes import Relation, Shape

# (declaration, declared type, literals, texts): each literal is another value. Texts are what they
# must read as; empty: not checked.
Case = tuple[str, str, list[str], list[str]]
Refusal = tuple[str, str, str]  # (declaration, literal, what the error shows)


class Legacy(ABC):
    """One empty database of one engine."""

    name: str
    url: str
    text_key: str  # a type for text that can be a key
    hostile_where: str  # true of every row of `items`, and a trap for whoever formats SQL
    blob: str  # a type for many bytes
    mark: str = '"'  # around a name
    null: str = ""  # behind a type whose column may be NULL
    types: Sequence[Case]
    prelude: Sequence[str] = ()  # statements that make the types of `types`
    refused: Sequence[Refusal] = ()  # values that a column holds and its declared type does not
    refused_types: Sequence[str] = ()  # declarations that are refused by name, without `as_text`
    row_limits: Sequence[ModuleType] = (rows,)  # the modules that apply ROW_BYTES_MAX
    names_wide_rows: bool = True  # the error for a row above the limit contains its key
    grants_columns: bool = True  # SELECT is granted on columns, not on whole tables alone
    write_errors: tuple[type[Exception], ...] = ()  # of the driver, for a statement that writes
    lacks: frozenset[Capability] = frozenset()

    @abstractmethod
    def run(self, *statements: str) -> None:
        """Execute statements as the owner, and commit."""

    @abstractmethod
    def insert(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        """Insert rows as the owner, and commit."""

    def connect(self, **budgets: Any) -> Engine:
        """Return the engine of the URL; `budgets` are fields of `Limits`."""
        return registry.connect(self.url, None, Limits(**budgets))

    def described(self, session: Session, relation: Relation) -> Shape:
        """Describe a relation of the suite, which names a table or has a query."""
        return session.describe(relation)

    def sql(self, text: str) -> str:
        """Return SQL of the suite with this engine's marks around names."""
        return text.replace('"', self.mark)

    def write(self, session: Any, sql: str) -> None:
        """Execute a statement that writes on a session, as the agent executes its own."""
        session.ask(sql)

    def raw_write(self, session: Any, sql: str) -> None:
        """Execute a statement on a session's connection, outside its transaction and without the
        limits that the agent sets after it has connected."""
        raise NotImplementedError(f"{self.name}: {Capability.READ_ONLY_CONNECTION}")

    def record(self, monkeypatch: pytest.MonkeyPatch, issued: list[str]) -> None:
        """Append each statement that reaches the driver to `issued`."""
        raise NotImplementedError(f"{self.name}: {Capability.TEMPLATES}")

    def insert_unchecked(self, table: str, *rows: str) -> None:
        """Insert rows, of literals, that the engine takes only when it is told not to check."""
        self.run(*(self.sql(f'INSERT INTO "{table}" VALUES ({row})') for row in rows))

    def analyze(self, table: str) -> None:  # noqa: B027 - not every engine needs it
        """Let the engine know how many rows a table has."""

    def index_plans(self, session: Any, shape: Shape) -> list[str]:
        """Return the engine's plans of looking for a key that is NULL."""
        raise NotImplementedError(f"{self.name}: {Capability.PLANS}")

    def number(self, text: str) -> object:
        """Return the value that the owner's driver inserts for a decimal number."""
        return Decimal(text)

    def general(self, sql: str) -> str:
        """Return a statement in the form in which `Engine.templates` has it."""
        return " ".join(sql.split())

    def granted(self, script: str, login: str) -> str:
        """Execute the script of grants for a new login; return the URL of this login."""
        raise NotImplementedError(f"{self.name}: {Capability.LOGINS}")

    def drop_login(self, login: str) -> None:
        """Drop a login that `granted` made."""
        raise NotImplementedError(f"{self.name}: {Capability.LOGINS}")

    def close(self) -> None:  # noqa: B027 - a file goes with its folder
        """Drop the database."""
