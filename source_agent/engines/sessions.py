"""What the sessions of all engines share: their state, and a record of what describing asks.

The session of an engine derives from `SnapshotSession` and adds what `interface.Session` lists
beyond it. Connections, statements and the error classes of a driver are each engine's own; what a
driver raises beside its own classes becomes an error by its cause here (`foreseen`), because it is
no mistake of ours: a TypeError of a login, a codec, a socket.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from driftline.errors import (
    OPEN,
    ConfigurationError,
    DatabaseRefused,
    DatabaseUnavailable,
    DriftlineError,
)
from driftline.relations.activity import Activity
from driftline.relations.derivations import Derivation

from source_agent.engines.interface import (
    Capabilities,
    Pulse,
    ServerFacts,
    SnapshotState,
    TimeLimit,
)
from source_agent.engines.relations.predicates import JoinedRelation, derived
from source_agent.engines.relations.select import plan_of
from source_agent.engines.relations.shapes import Consistency, Relation, Shape

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


def end_quietly(*ends: Callable[[], object]) -> None:
    """Call what rolls back and closes objects of a driver: each, whatever another one raises.

    Nobody could act on its failure, which would take the place of the error that is being handled.
    """
    for close in ends:
        with contextlib.suppress(Exception):
            close()


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


def answers(connect: Callable[[], Any], within_s: float) -> bool:
    """Return what `Session.answers` does, by a whole connection: for a driver without a timeout."""
    answered = threading.Event()

    def try_it() -> None:
        with contextlib.suppress(Exception):
            connect().close()
            answered.set()

    threading.Thread(target=try_it, daemon=True).start()
    return answered.wait(within_s)


def by_own_clock() -> SnapshotState:
    """Return the state of a snapshot that is about to be taken, for a database without a clock."""
    return SnapshotState(f"{dt.datetime.now(dt.UTC).replace(tzinfo=None).isoformat()}Z")


class SnapshotSession:
    """Base of a session with one snapshot, read by one connection, whose readers block no writer.

    It has no capabilities but the `activities`, and no limits of time. An engine whose snapshot can
    change sets `snapshot` again.
    """

    server = ServerFacts()
    snapshot: SnapshotState  # set by the engine when it has taken the snapshot

    def __init__(self) -> None:
        self.activities: Mapping[str, Activity] = {}
        self.pulse = Pulse()
        self._is_interrupted = False

    @property
    def time_limits(self) -> Sequence[TimeLimit]:
        """Return none: nothing ends a statement or a session."""
        return ()

    @property
    def capabilities(self) -> Capabilities:
        """Return none but the activities."""
        return Capabilities(self.activities)

    def derive(
        self, shape: Shape, derivation: Derivation, joins: Sequence[JoinedRelation] = ()
    ) -> Shape:
        """Return the shape of a derivation, without asking the database."""
        own = self.capabilities
        return derived(shape, derivation, own.compare, own.within, joins)

    def pause(self) -> None:
        """Do nothing: readers block no writer."""

    def note_consistency(self, shape: Shape) -> None:
        """Note that a relation is about to be read, perhaps without a snapshot."""
        if plan_of(shape).consistency is Consistency.FUZZY:
            self.snapshot = replace(self.snapshot, consistency=Consistency.FUZZY)

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
