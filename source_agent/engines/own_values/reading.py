"""Read bare columns as the driver itself decodes them, in the snapshot of a session.

An engine has an `OwnValues` for its sessions (`own_values_of`), so that `comparison` can set its
read expressions and its encoders against something that has passed through neither: the column as
it is, decoded by the driver. An engine that has none is reported as not compared.

Invariants: SELECT alone, in the session's own transaction; values are bound; every text is made
here, so that `explain` can print it. A zero byte marks the place of a value until `text`.

Not here: the engine's own `read_keys` and its catalogue. A read that shared them would share their
mistakes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from driftline.rows.key_order import Key

from source_agent.engines.interface import Rows
from source_agent.engines.relations.select import plan_of, quote, select_sql
from source_agent.engines.relations.shapes import Shape

KEYS_PER_READ: Final = 50  # of one SELECT; always as many, so the text is always the same
PLACE: Final = "\0"
ROWS_PER_READ: Final = 100 * KEYS_PER_READ  # of keys that are not unique
DriverKey = tuple[Any, ...]  # values of the driver, of a key or of a row


class NotComparable(Exception):
    """A value of the driver that has no published form here; the text says why."""


Fetch = Callable[[Shape, str, Sequence[object], int], list[tuple[Any, ...]]]
Read = Callable[[Shape, str, Sequence[object]], Iterator[Rows]]


class OwnValues(ABC):
    """Base: the reads of one session, whose SQL has double quotes, `?` and LIMIT."""

    place: ClassVar[str] = "?"  # of a bound value
    limit: ClassVar[str] = f"\nLIMIT {PLACE}"
    equals: ClassVar[str] = "="
    at_least: ClassVar[str] = ">="
    reads_backwards: ClassVar[bool] = True  # an index gives the last keys first, as cheaply
    stored: ClassVar[str] = (  # which rows are compared where no index helps
        "no index of its key can be used, so they are the first that the database gives"
    )
    cost: ClassVar[str] = ""  # what the limits of a statement do not bound, for the report

    @abstractmethod
    def fetch(self, shape: Shape, sql: str, values: Sequence[object], most: int) -> list[DriverKey]:
        """Return `most` rows of a SELECT at most, as the driver decodes them. Raises as `scan`."""

    @abstractmethod
    def read(
        self, shape: Shape, keys: Sequence[DriverKey], published: Sequence[Key]
    ) -> Iterator[Rows]:
        """Yield the rows with these keys as a scan sends them. Raises as `Session.scan`.

        Args:
            keys: of a shape whose key is not one integer.
            published: the same keys in canonical string forms.
        """

    def prepare(self) -> None:  # noqa: B027 - few databases need it
        """Let two reads of the first rows begin at the same place."""

    def can_name(self, shape: Shape) -> bool:
        """Return True if rows are found by the values of a key that is not one integer."""
        del shape
        return True

    def quote(self, name: str) -> str:
        """Return a name as an identifier."""
        return quote(name)

    def column(self, shape: Shape, number: int) -> str:
        """Return the SQL of a bare column of the recipe."""
        return self.quote(shape.recipe.columns[number].name)

    def plain(self, shape: Shape, number: int, value: Any, published: str | None) -> Any:
        """Return a value of the driver, other than NULL, without what is this driver's alone.

        Args:
            number: of the column in the recipe.
            published: the value as it is published, for a type that the driver shows in part.

        Raises:
            NotComparable: the driver shows too little of it.
        """
        del shape, number, published
        return value

    def bindable(self, value: Any) -> Any:
        """Return a value of the driver as it is bound, to find the row by it."""
        return value

    def indexed(self, shape: Shape) -> list[str]:
        """Return the columns beside the key with which an index of the table begins, so that the
        least and the greatest value are found by it."""
        del shape
        return []

    def text(self, sql: str) -> str:
        """Return a statement as it is executed: with the driver's placeholders."""
        return sql.replace(PLACE, self.place)

    def all_sql(self, shape: Shape) -> str:
        """Return the SELECT of the first rows in no order, bare."""
        return self.text(select_sql(self._bare(shape, len(shape.recipe.columns)), tail=self.limit))

    def keys_sql(self, shape: Shape, *, begins: bool = False, backwards: bool = False) -> str:
        """Return the SELECT of keys in the order of the key; `begins`: from a value of its first
        column on."""
        names = [self.quote(column.name) for column in shape.recipe.key]
        down = " DESC" if backwards else ""
        order = ", ".join(name + down for name in names)
        lower = f"{names[0]} {self.at_least} {PLACE}" if begins else ""
        keys = self._bare(shape, shape.recipe.key_columns)
        return self.text(select_sql(keys, lower, tail=f"\nORDER BY {order}{self.limit}"))

    def extreme_sql(self, shape: Shape, name: str, *, backwards: bool) -> str:
        """Return the SELECT of the keys of rows with the least or greatest values of a column."""
        column, down = self.quote(name), " DESC" if backwards else ""
        keys = self._bare(shape, shape.recipe.key_columns)
        tail = f"\nORDER BY {column}{down}{self.limit}"
        return self.text(select_sql(keys, f"{column} IS NOT NULL", tail=tail))

    def rows_sql(self, shape: Shape) -> str:
        """Return the SELECT of the rows with KEYS_PER_READ keys, bare."""
        bare = self._bare(shape, len(shape.recipe.columns))
        return self.text(select_sql(bare, self.named(shape)))

    def read_sql(self, shape: Shape) -> str:
        """Return the SELECT of the same rows by the expressions of the shape."""
        return self.text(select_sql(shape, self.named(shape)))

    def named(self, shape: Shape) -> str:
        """Return the condition of rows with KEYS_PER_READ keys."""
        names = [self.quote(column.name) for column in shape.recipe.key]
        one = " AND ".join(f"{name} {self.equals} {PLACE}" for name in names)
        return f"({' OR '.join([f'({one})'] * KEYS_PER_READ)})"

    def bound(self, keys: Sequence[DriverKey]) -> list[object]:
        """Return the values of `named`; the last key is repeated, which an OR does not mind."""
        every = [*keys, *[keys[-1]] * (KEYS_PER_READ - len(keys))]
        return [self.bindable(value) for key in every for value in key]

    def rows(self, shape: Shape, keys: Sequence[DriverKey]) -> list[DriverKey]:
        """Return the rows with these keys, KEYS_PER_READ at most, as the driver decodes them."""
        return self.fetch(shape, self.rows_sql(shape), self.bound(keys), ROWS_PER_READ)

    def limited(self, most: int) -> list[object]:
        """Return what is bound to `limit`."""
        return [most] if self.limit else []

    def statements(self, shape: Shape) -> list[str]:
        """Return every SQL text about a shape, for `explain`."""
        statements = [self.all_sql(shape), self.keys_sql(shape), self.rows_sql(shape)]
        statements += [self.keys_sql(shape, backwards=True), self.keys_sql(shape, begins=True)]
        statements.append(self.read_sql(shape))
        for name in self.indexed(shape):
            statements += [self.extreme_sql(shape, name, backwards=down) for down in (False, True)]
        return statements

    def _bare(self, shape: Shape, columns: int) -> Shape:
        """Return a shape that reads its first columns as they are."""
        reads = tuple(self.column(shape, number) for number in range(columns))
        return replace(shape, plan=replace(plan_of(shape), reads=reads))


class SessionValues(OwnValues):
    """Reads by two functions of a session.

    Args:
        fetch: executes a statement; returns some of its rows.
        read: executes a SELECT of a shape as the session's reads do.
    """

    def __init__(self, fetch: Fetch, read: Read) -> None:
        self._fetch, self._read = fetch, read

    def fetch(self, shape: Shape, sql: str, values: Sequence[object], most: int) -> list[DriverKey]:
        return self._fetch(shape, sql, values, most)

    def read(
        self, shape: Shape, keys: Sequence[DriverKey], published: Sequence[Key]
    ) -> Iterator[Rows]:
        del published
        return self._read(shape, self.read_sql(shape), self.bound(keys))


def beside_key(shape: Shape, names: Sequence[DriverKey]) -> list[str]:
    """Return which columns of a relation, beside its key, are among these, a row each."""
    listed = {name for (name,) in names}
    return [c.name for c in shape.recipe.columns[shape.recipe.key_columns :] if c.name in listed]


def own_values_of(engine: object, session: object) -> OwnValues | None:
    """Return the reads of a session of an engine: of its `own_values(session)`. None: it has none.

    The method is no part of `interface.Engine`, so that engines of other packages can do without.
    """
    made: Callable[[object], OwnValues] | None = getattr(engine, "own_values", None)
    return None if made is None else made(session)


def why_none(engine: object) -> str:
    """Return why an engine shows no values of its driver: its `no_own_values`, if it says so."""
    return str(getattr(engine, "no_own_values", "the engine does not show what its driver returns"))
