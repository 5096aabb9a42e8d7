"""What the sessions of all engines share: their state, and a record of what describing asks.

The session of an engine derives from `SnapshotSession` and adds what `interface.Session` lists
beyond it. Connections, statements and the error classes of a driver are each engine's own; what a
driver raises beside its own classes becomes an error by its cause here (`foreseen`), because it is
no mistake of ours: a TypeError of a login, a codec, a socket.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from driftline.errors import (
    OPEN,
    ConfigurationError,
    DatabaseRefused,
    DatabaseUnavailable,
    DriftlineError,
)
from driftline.relations.activity import Activity
from driftline.relations.derivations import ColumnPredicate, Derivation
from driftline.relations.references import Reference
from driftline.rows.key_order import Key
from driftline.values.types import Column

from source_agent.engines.interface import MarkedRead, Pulse, Rows, Split
from source_agent.engines.relations.markers import Mark, RunningTransactions
from source_agent.engines.relations.predicates import derived
from source_agent.engines.relations.select import plan_of
from source_agent.engines.relations.shapes import Condition, Consistency, Relation, Shape

T = TypeVar("T")

_ASKING = frozenset({"ask", "row_description", "fields"})  # each takes the SQL text first


@contextlib.contextmanager
def foreseen(driver: str, *own: type[Exception]) -> Iterator[None]:
    """Turn what a driver raises beside its `own` classes, which the engine translates, into an
    error by its cause. Only calls of the driver stand under it, so that it hides no mistake of
    ours."""
    try:
        yield
    except Exception as error:
        if isinstance(error, (DriftlineError, *own)):
            raise
        raise _unforeseen(error, driver) from error


def driven(items: Iterable[T], driver: str, *own: type[Exception]) -> Iterator[T]:
    """Yield what a driver gives, under `foreseen`."""
    with foreseen(driver, *own):
        yield from items


def _unforeseen(error: Exception, driver: str) -> DriftlineError:
    kind: type[DriftlineError] = DatabaseRefused
    remedy = "Try another release of the driver; with --debug there is a traceback."
    if isinstance(error, MemoryError):
        kind, remedy = DatabaseUnavailable, "The agent's machine has too little memory."
    elif isinstance(error, (OSError, EOFError)):
        kind, remedy = DatabaseUnavailable, "Check that the database can be reached; try again."
    elif isinstance(error, ImportError):
        kind, remedy = ConfigurationError, "Install what the driver needs."
    elif isinstance(error, UnicodeError):
        remedy = "A text of the database is not in the encoding that it declares: correct it."
    name = type(error).__name__
    text = " ".join(str(error).split()).rstrip(".")
    return kind(
        f"{driver} failed: {name}{': ' if text else ''}{text}.",
        remedy=remedy,
        abroad=f"{driver} failed ({name}).",
    )


class SnapshotSession:
    """Base of a session with one snapshot, read by one connection, whose readers block no writer.

    An engine whose snapshot can change counts `generation` itself.
    """

    holds_back: ClassVar[str] = ""
    pooler = ""
    release = ""  # an engine whose servers differ by it sets it
    backend = 0  # the process of the server; an engine that knows it sets it
    as_of: str  # set by the engine when it has taken the snapshot

    def __init__(self) -> None:
        self.consistency = Consistency.EXACT
        self.generation = 0
        self.activities: Mapping[str, Activity] = {}
        self.pulse = Pulse()
        self._is_interrupted = False

    def compare(self, comparison: ColumnPredicate, column: Column, place: str) -> Condition:
        """Return a comparison as SQL, for an engine that compares columns."""
        raise NotImplementedError(f"{comparison.operator} of {column.name}, value {place}")

    def derive(self, shape: Shape, derivation: Derivation) -> Shape:
        """Return the shape of a derivation, without asking the database."""
        return derived(shape, derivation, self.compare)

    def mark(self, shape: Shape) -> Mark:
        """Refuse: this engine has no markers. Raises ConfigurationError."""
        raise ConfigurationError(
            "This engine has no markers.",
            where=shape.relation.name,
            abroad=OPEN,
        )

    def identity(self) -> Mapping[str, str]:
        """Return nothing: no mark is made that would carry it."""
        return {}

    def count_future(self, shape: Shape) -> int:
        """Count rows with a time in the future, for an engine that has markers."""
        raise NotImplementedError(f"times of {shape.relation.name}")

    def running(self) -> RunningTransactions | None:
        """Return None: the transactions of others are hidden from a login that may only SELECT."""
        return None

    def marked_read(self, shape: Shape) -> MarkedRead | None:  # noqa: ARG002
        """Return None: this engine has no markers."""
        return None

    def read_marked(self, shape: Shape, mark: Mark) -> Iterator[Rows]:
        """Read the rows behind a mark, for an engine that has markers."""
        raise NotImplementedError(f"rows of {shape.relation.name} behind {mark.at}")

    def hash_keys(self, shape: Shape, seed: int) -> tuple[int, int] | None:  # noqa: ARG002
        """Return None: the database has no hash that the warehouse can make."""
        return None

    def references(
        self,
        shape: Shape,  # noqa: ARG002 - of engines that know some
        published: Sequence[Relation],  # noqa: ARG002
    ) -> tuple[Reference, ...]:
        """Return no foreign keys: the engine has none."""
        return ()

    def read_keys(
        self,
        shape: Shape,
        keys: Sequence[Key],  # noqa: ARG002
        *,
        rows_max: int | None = None,  # noqa: ARG002
    ) -> Iterator[Rows]:
        """Raise ConfigurationError: this engine looks up no key that is not one integer."""
        raise ConfigurationError(
            "This database is not asked for rows by keys that are not one integer.",
            where=shape.relation.name,
            remedy="Use `incremental`, or ask the DBA for hours in which a scan may begin.",
            abroad=OPEN,
        )

    def split(self, shape: Shape, *, rows_max: int | None = None) -> Split | None:  # noqa: ARG002
        """Return None: two connections cannot read one snapshot."""
        return None

    def pause(self) -> None:
        """Do nothing: readers block no writer."""

    def note_consistency(self, shape: Shape) -> None:
        """Note that a relation is about to be read, perhaps without a snapshot."""
        if plan_of(shape).consistency is Consistency.FUZZY:
            self.consistency = Consistency.FUZZY

    def refuse_interrupted(self) -> None:
        """Raise DatabaseUnavailable if `interrupt` was called."""
        if self._is_interrupted:
            raise DatabaseUnavailable(
                "The read was interrupted.",
                abroad=OPEN,
            )


class _Recorded:
    """A session that records the SQL texts it is asked, and passes everything else on."""

    def __init__(self, session: object, issued: list[str]) -> None:
        self._session, self._issued = session, issued

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._session, name)
        if name not in _ASKING:
            return attribute

        def recorded(sql: str, *values: object) -> Any:
            self._issued.append(sql)
            return attribute(sql, *values)

        return recorded


def attempted(
    describe: Callable[[Any, Relation], Shape],
    session: object,
    relation: Relation,
    refusals: type[Exception],
) -> list[str]:
    """Return the SQL texts that `describe` issues, also if it refuses the relation.

    `explain` prints them: a relation that is refused has no templates, because these are made of
    its columns, but what describing it issued is in the server's log all the same.

    Args:
        describe: the engine's own function, which takes a session and a relation.
        session: the session to describe with; the texts it is asked are recorded.
        relation: as the DBA published it.
        refusals: the driver's error, if the session does not translate it.
    """
    issued: list[str] = []
    with contextlib.suppress(DriftlineError, refusals):  # the caller has met and shown it
        describe(_Recorded(session, issued), relation)
    return list(dict.fromkeys(issued))
