"""The simulated database: tables in memory with all their states, and the sessions that read them.

A state holds every table. An edit makes the next state, at any step. A session reads one of them,
or none: `Isolation` says what the engine can.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum

from driftline.arrays import Positions
from driftline.errors import DatabaseUnavailable
from driftline.relations.derivations import Comparable
from driftline.rows.key_order import KeyRange
from driftline.values.types import Column, Recipe, parse_type

from source_agent.engines.interface import Capabilities, Rows, SnapshotState
from source_agent.engines.relations.shapes import Consistency, Plan, Relation, Shape
from source_agent.engines.sessions import SnapshotSession
from tests.reference.rows import row_bytes
from tests.simulation import clock

Row = tuple[int | str | None, ...]  # in tuple order
Table = Mapping[tuple[int | str, ...], Row]  # by key
State = Mapping[str, Table]  # by relation


class Isolation(Enum):
    """What a session sees of edits that happen while it reads."""

    SNAPSHOT = "snapshot"  # none
    PAUSES = "pauses"  # those that were made while it waited for the network
    NONE = "none"  # all, between two batches


@dataclass(frozen=True)
class Schema:
    """Columns in tuple order, the key first; `types` are int8, int4 and text."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    key_columns: int
    vouched: bool = True

    @property
    def recipe(self) -> Recipe:
        count = self.key_columns
        return Recipe(
            tuple(
                Column(name, parse_type(kind), nullable=at >= count, ordinal=at)
                for at, (name, kind) in enumerate(zip(self.columns, self.types, strict=True))
            ),
            count,
        )

    def encode(self, row: Row) -> bytes:
        return row_bytes([_encoded(v, kind) for v, kind in zip(row, self.types, strict=True)])

    def key(self, row: Row) -> tuple[int | str, ...]:
        return tuple(v for v in row[: self.key_columns] if v is not None)


def _encoded(value: int | str | None, kind: str) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    return struct.pack(">q" if kind == "int8" else ">i", value)


INTEGER = Schema(("id", "a", "b"), ("int8", "text", "int4"), 1)
LOOSE = Schema(("id", "a", "b"), ("int8", "text", "int4"), 1, vouched=False)
TEXT = Schema(("code", "a", "b"), ("text", "text", "int4"), 1)
COMPOSITE = Schema(("day", "code", "a"), ("int8", "text", "text"), 2, vouched=False)
SCHEMAS = (INTEGER, LOOSE, TEXT, COMPOSITE)


@dataclass
class History:
    """All states of the source, in their order. `instants`: the states that a session's `as_of`
    may stand for, by its text: the clock of the source may be set back."""

    schemas: Mapping[str, Schema]
    states: list[State]
    rng: random.Random
    clock_error_s: float = 0.0
    instants: dict[str, set[int]] = field(default_factory=dict)
    names: int = 0

    @property
    def newest(self) -> State:
        return self.states[-1]

    def as_of(self) -> str:
        """Return the time by the source's clock."""
        now_s = clock.current().now_s + self.clock_error_s
        return datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def edit(self, share: float) -> None:
        """Insert, update and delete about a share of the rows of some relations."""
        rng, after = self.rng, dict(self.newest)
        for name in sorted(after):
            if rng.random() < 0.3:
                continue
            schema, rows = self.schemas[name], dict(after[name])
            count = max(1, round(len(rows) * share * rng.random()))
            for key in rng.sample(sorted(rows), min(count, len(rows))):
                if rng.random() < 0.4:
                    del rows[key]
                else:
                    rows[key] = self.row(schema, key)
            for _ in range(rng.randrange(count + 1)):
                row = self.row(schema, self.new_key(schema))
                rows[schema.key(row)] = row
            after[name] = rows
        self.states.append(after)

    def empty(self, name: str) -> None:
        """Delete every row of a relation."""
        self.states.append({**self.newest, name: {}})

    def restore(self) -> None:
        """Go back to the content of an earlier state, as after a restore of the database."""
        self.states.append(self.states[self.rng.randrange(len(self.states))])

    def new_key(self, schema: Schema) -> tuple[int | str, ...]:
        number = self.rng.randrange(-100, 400)
        if schema.key_columns == 2:
            return (number % 7, f"k{number % 90}")
        return (number,) if schema.types[0] == "int8" else (f"k{number:04d}",)

    def row(self, schema: Schema, key: tuple[int | str, ...]) -> Row:
        """Return a row that no state had: its text is new."""
        self.names += 1
        text: str | None = f"{self.names:x}" * self.rng.choice((1, 1, 3))
        number = self.rng.choice((None, 0, -1, self.names))
        rest = (text, number)[: len(schema.columns) - schema.key_columns]
        return (*key, *rest)


@dataclass
class Engine:
    """`interface.Engine`, as far as an exchange needs it."""

    history: History
    isolation: Isolation
    rng: random.Random
    fail_in: int | None = None  # batches until the database is lost
    batch_rows: int = 16
    name = "simulated"

    def open(self, probed: Sequence[Relation] = (), named: Sequence[Relation] = ()) -> Session:
        self.beat()
        return Session(self)

    def beat(self) -> None:
        """Count a step of the database; raise DatabaseUnavailable if it is lost."""
        if self.fail_in is not None:
            self.fail_in -= 1
            if self.fail_in < 0:
                self.fail_in = None
                raise DatabaseUnavailable("The simulated database is lost.")
        if self.rng.random() < self.edits:
            self.history.edit(0.1)

    edits: float = 0.0  # probability of an edit at a step of the database


class Session(SnapshotSession):
    """`interface.Session`."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine, self._history = engine, engine.history
        self._state = len(self._history.states) - 1
        self._is_paused = False
        self.snapshot = SnapshotState(self._history.as_of())
        self._history.instants.setdefault(self.snapshot.as_of, set()).add(self._state)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(read_between=self.read_between)

    def answers(self, within_s: float) -> bool:
        return True

    def describe(self, relation: Relation) -> Shape:
        self._engine.beat()
        self._look()
        schema = self._history.schemas[relation.name]
        is_none = self._engine.isolation is Isolation.NONE
        return Shape(
            relation,
            schema.recipe,
            vouched=schema.vouched,
            ordered=False,
            rows_expected=len(self._history.newest[relation.name]),
            indexed=schema.recipe.integer_key,
            comparable=(Comparable.NOTHING,) * len(schema.columns),
            plan=Plan(
                relation.name, consistency=Consistency.FUZZY if is_none else Consistency.EXACT
            ),
        )

    def scan(self, shape: Shape, *, ordered: bool = False) -> Iterator[Rows]:
        return self._read(shape, lambda key: True)

    def read_ranges(
        self, shape: Shape, first: Positions, last: Positions, *, rows_max: int | None = None
    ) -> Iterator[Rows]:
        ranges = list(zip(first.tolist(), last.tolist(), strict=True))
        return self._read(shape, lambda key: any(a <= key[0] <= b for a, b in ranges))

    def read_between(
        self, shape: Shape, within: KeyRange, *, rows_max: int | None = None
    ) -> Iterator[Rows]:
        kinds = self._history.schemas[shape.relation.name].types

        def bound(key: tuple[str, ...]) -> tuple[int | str, ...]:
            return tuple(int(v) if k == "int8" else v for v, k in zip(key, kinds, strict=False))

        lower, upper = (None if k is None else bound(k) for k in (within.lower, within.upper))
        return self._read(
            shape,
            lambda key: (lower is None or key >= lower) and (upper is None or key < upper),
        )

    def pause(self) -> None:
        self._is_paused = True

    def interrupt(self) -> None:
        self._is_interrupted = True

    def close(self) -> None:
        pass

    def _read(self, shape: Shape, wanted) -> Iterator[Rows]:
        self.note_consistency(shape)
        self._look()
        name, schema = shape.relation.name, self._history.schemas[shape.relation.name]
        after: tuple[int | str, ...] | None = None
        table = self._history.states[self._state][name]
        while True:
            self._engine.beat()
            self.refuse_interrupted()
            if self._engine.isolation is Isolation.NONE:
                self._look()
                table = self._history.states[self._state][name]
            keys = sorted(k for k in table if (after is None or k > after) and wanted(k))
            keys = keys[: self._engine.batch_rows]
            if not keys:
                return
            after = keys[-1]
            self.pulse.beat()
            yield [schema.encode(table[key]) for key in keys]

    def _look(self) -> None:
        """Move to the newest state where nothing holds the one that was read."""
        isolation, newest = self._engine.isolation, len(self._history.states) - 1
        is_held = isolation is Isolation.SNAPSHOT
        if isolation is Isolation.PAUSES and not self._is_paused:
            is_held = True
        self._is_paused = False
        if not is_held and newest != self._state:
            self._state = newest
            if isolation is Isolation.PAUSES:
                now, generation = self._history.as_of(), self.snapshot.generation + 1
                self.snapshot = SnapshotState(now, Consistency.FUZZY, generation)
                self._history.instants.setdefault(now, set()).add(self._state)
