"""Every error that a user can meet.

    DriftlineError
    ├── ConfigurationError
    ├── UsageError
    ├── NotFound
    ├── Unauthenticated
    ├── SourceUnreachable        retryable
    ├── DatabaseUnavailable      retryable
    ├── DatabaseRefused
    ├── SnapshotLost             retryable
    ├── VersionMismatch
    ├── RecipeChanged
    ├── DerivationRefused
    ├── TableShrank
    ├── NullKey
    ├── DuplicateKey
    ├── ValueDoesNotFit
    ├── MalformedMessage
    │   └── FrameDamaged         retryable
    ├── LimitExceeded
    ├── NotNow                   retryable
    ├── ProofFailed              retryable
    ├── ViewFailed
    ├── WarehouseUnavailable
    ├── SparkLost                retryable
    ├── Locked                   retryable
    ├── CommandKilled            retryable
    └── InternalError

An error says what went wrong, where, why and what to do. `code` is stable and documented in
`docs/errors.md`; `exit_code` is the exit code of the command; `is_retryable` is True if the same
command may simply be run again. Nothing here imports gRPC: `GRPC_STATUS` holds names only.

At the source, an error is for two readers. Its DBA reads all of it. The warehouse may know no name
that it did not ask for, and databases, drivers and the DBA's file write names into their texts. So
an error of a class with words for `abroad` crosses the border with those words instead of its own,
unless it was raised with `abroad=OPEN`, because its texts hold only what the request named.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import ClassVar

from driftline.limits import COLUMNS_NAMED_MAX, ERROR_CHARACTERS_MAX
from driftline.peer_text import folded

BY_CODE: dict[str, type[DriftlineError]] = {}  # every class below
NEXT_SCAN, QUIET_UNTIL = "next scan", "quiet until"  # details of NotNow: instants, ISO 8601
WAIT_SECONDS = "wait seconds"  # a detail of NotNow, where a question came too soon
REFERENCE = "reference"  # a detail: under what the source's log has an error
OPEN = "\0"  # as `abroad`: the error crosses the border as it is

_shown = partial(folded, characters_max=ERROR_CHARACTERS_MAX)


class DriftlineError(Exception):
    """An error with its place and its remedy.

    Args:
        message: what went wrong and why, one or two sentences, naming the thing concerned.
        remedy: what to do next, imperative; empty when the message is enough.
        where: the place, such as `orders`, `source.toml: server.listen` or `orders.o_comment`.
        details: further facts by name (samples, columns), small and printable.
        abroad: what a warehouse reads instead of all of these, in our own words; OPEN: these
            themselves; empty: the words of the class.
    """

    code: ClassVar[str] = "INTERNAL"
    exit_code: ClassVar[int] = 1
    is_retryable: bool = False  # of the class; an instance may know better
    default_remedy: ClassVar[str] = ""
    words_abroad: ClassVar[str] = OPEN

    def __init_subclass__(
        cls, *, code: str, exit_code: int = 1, is_retryable: bool = False, abroad: str = OPEN
    ) -> None:
        cls.code, cls.exit_code, cls.is_retryable = code, exit_code, is_retryable
        cls.words_abroad = abroad
        BY_CODE.setdefault(code, cls)

    def __init__(
        self,
        message: str,
        *,
        remedy: str = "",
        where: str = "",
        details: dict[str, str] | None = None,
        abroad: str = "",
    ) -> None:
        # Databases and the other side wrote parts of these texts.
        self.message = _shown(message)
        super().__init__(self.message)
        self.remedy = _shown(remedy or self.default_remedy)
        self.where = _shown(where)
        self.details = {_shown(name): _shown(text) for name, text in (details or {}).items()}
        self.abroad = abroad or self.words_abroad

    @property
    def is_local(self) -> bool:
        """Return True if a warehouse must not read it as it is, but its words for `abroad`."""
        return self.abroad != OPEN

    @property
    def message_abroad(self) -> str:
        """Return the message as a warehouse may read it."""
        return self.abroad if self.is_local else self.message

    def crossing(self, reference: str, where: str) -> DriftlineError:
        """Return the error as a warehouse may read it; `where` is the relation that it named."""
        if not self.is_local:
            return self
        first = "Try again later, or ask" if self.is_retryable else "Ask"
        if self.default_remedy:
            first = f"{self.default_remedy} Or ask"
        return type(self)(
            self.message_abroad,
            where=where,
            remedy=f"{first} the DBA: the log of the source's agent has the reason under"
            f" {reference}.",
            details={REFERENCE: reference},
            abroad=OPEN,
        )

    def __str__(self) -> str:
        where = f"{self.where}: " if self.where else ""
        remedy = f" {self.remedy}" if self.remedy else ""
        return f"{where}{self.message}{remedy}"

    def __reduce__(self) -> tuple[object, ...]:
        again = partial(
            type(self),
            remedy=self.remedy,
            where=self.where,
            details=self.details,
            abroad=self.abroad,
        )
        return (again, (self.message,))


class ConfigurationError(
    DriftlineError,
    code="CONFIGURATION",
    exit_code=2,
    abroad="The source's database does not have what the DBA's file says of this relation.",
):
    """A configuration file is wrong; nothing was contacted."""


class UsageError(DriftlineError, code="USAGE", exit_code=2):
    """The command line is wrong."""


class NotFound(DriftlineError, code="NOT_FOUND"):
    """The relation does not exist or is not published to the caller; both look alike."""

    default_remedy = "Check the name."


class Unauthenticated(DriftlineError, code="UNAUTHENTICATED", exit_code=5):
    """A certificate or a host name was refused."""


class SourceUnreachable(DriftlineError, code="UNREACHABLE", exit_code=4, is_retryable=True):
    """Nothing answers at the source's address."""


class DatabaseUnavailable(
    DriftlineError,
    code="DATABASE_UNAVAILABLE",
    exit_code=4,
    is_retryable=True,
    abroad="The source's database cannot be read now.",
):
    """The agent answers, but its database does not."""


class DatabaseRefused(
    DriftlineError, code="DATABASE_REFUSED", abroad="The source's database refuses to be read."
):
    """The database refused a login or a statement."""


class SnapshotLost(
    DriftlineError,
    code="SNAPSHOT_LOST",
    exit_code=75,
    is_retryable=True,
    abroad="The source's data changed while it was read.",
):
    """The source changed between two reads."""

    default_remedy = "Run the refresh again; nothing was published and what arrived is kept."


class VersionMismatch(DriftlineError, code="VERSION"):
    """The two agents speak different versions."""


class RecipeChanged(DriftlineError, code="RECIPE", exit_code=6):
    """Columns, types, the key or row security changed."""


class DerivationRefused(DriftlineError, code="DERIVE", exit_code=6):
    """The source does not let a warehouse choose these columns or rows of a relation."""

    default_remedy = (
        "Ask the DBA for `derive` of the relation, or run the view's command again with a query"
        " that the source still evaluates."
    )


class TableShrank(DriftlineError, code="SHRANK", exit_code=6):
    """More than half of the rows are gone."""


class NullKey(DriftlineError, code="NULL_KEY"):
    """A key column holds NULL."""


class DuplicateKey(DriftlineError, code="DUPLICATE_KEY"):
    """Two rows have the same key."""


class ValueDoesNotFit(DriftlineError, code="VALUE"):
    """A value does not fit the type that its column has, at the source or in the warehouse."""


class MalformedMessage(DriftlineError, code="MALFORMED"):
    """The other side sent what the protocol forbids."""


class FrameDamaged(MalformedMessage, code="DAMAGED", exit_code=75, is_retryable=True):
    """The rows of a frame do not match its digest."""


class LimitExceeded(DriftlineError, code="LIMIT"):
    """A limit of `limits` or of the DBA's file was exceeded."""


class NotNow(DriftlineError, code="NOT_NOW", exit_code=75, is_retryable=True):
    """The source is paused, in its quiet hours, or has no free place."""

    def until(self) -> datetime | None:
        """Return the instant before which the source refuses the same; None: it says none."""
        for name in (QUIET_UNTIL, NEXT_SCAN):
            with contextlib.suppress(ValueError):
                instant = datetime.fromisoformat(self.details.get(name, ""))
                return instant if instant.tzinfo else None
        return None

    def wait_s(self) -> float | None:
        """Return the seconds until a question is answered that came too soon; None: none did."""
        text = self.details.get(WAIT_SECONDS, "")
        return float(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


class ProofFailed(DriftlineError, code="PROOF", exit_code=75, is_retryable=True):
    """The result differs from the source and was not published."""


class ViewFailed(DriftlineError, code="VIEW_FAILED"):
    """Spark cannot evaluate a view: its query, or an expression on one of the rows."""


class WarehouseUnavailable(DriftlineError, code="WAREHOUSE"):
    """The warehouse's storage cannot be read or written."""


class SparkLost(DriftlineError, code="SPARK", exit_code=75, is_retryable=True):
    """A process of Spark ended: killed, or out of memory."""


class Locked(DriftlineError, code="LOCKED", exit_code=75, is_retryable=True):
    """Another agent works on this table."""


class CommandKilled(DriftlineError, code="KILLED", exit_code=75, is_retryable=True):
    """An earlier command was killed before it had ended."""

    default_remedy = "Refresh again. If it repeats, the system's log may tell of too little memory."


class InternalError(DriftlineError, code="INTERNAL"):
    """A mistake of Driftline itself."""

    default_remedy = "Please report it with the log; run with --debug for the traceback."


def together(
    errors: Sequence[DriftlineError], *, where: str = "", remedy: str = ""
) -> DriftlineError:
    """Return one error for one or more of a class, so that a user can correct all at once.

    Errors beyond COLUMNS_NAMED_MAX are only counted. `where` is the place that several share;
    `remedy` is by default that of each error, once.
    """
    first = errors[0]
    if len(errors) == 1:
        return first
    shown = errors[:COLUMNS_NAMED_MAX]
    message = " ".join(error.message for error in shown)
    if more := len(errors) - len(shown):
        message += f" And {more} more."
    details = {
        f"{number}. {name}": text
        for number, error in enumerate(shown, start=1)
        for name, text in error.details.items()
    }
    remedies = dict.fromkeys(error.remedy for error in shown if error.remedy)
    words = " ".join(dict.fromkeys(error.message_abroad for error in shown))
    return type(first)(
        message,
        where=where,
        remedy=remedy or " ".join(remedies),
        details=details,
        abroad=words if any(error.is_local for error in errors) else OPEN,
    )


# The gRPC status of an error outside an exchange.
GRPC_STATUS: dict[type[DriftlineError], str] = {
    MalformedMessage: "INVALID_ARGUMENT",
    FrameDamaged: "DATA_LOSS",
    ConfigurationError: "FAILED_PRECONDITION",
    NotFound: "NOT_FOUND",
    Unauthenticated: "UNAUTHENTICATED",
    DatabaseUnavailable: "UNAVAILABLE",
    DatabaseRefused: "FAILED_PRECONDITION",
    SnapshotLost: "ABORTED",
    VersionMismatch: "FAILED_PRECONDITION",
    RecipeChanged: "FAILED_PRECONDITION",
    DerivationRefused: "FAILED_PRECONDITION",
    NullKey: "FAILED_PRECONDITION",
    DuplicateKey: "FAILED_PRECONDITION",
    ValueDoesNotFit: "FAILED_PRECONDITION",
    LimitExceeded: "RESOURCE_EXHAUSTED",
    NotNow: "RESOURCE_EXHAUSTED",
}


def from_code(
    code: str, message: str, *, remedy: str = "", where: str = "", details: dict[str, str]
) -> DriftlineError:
    """Return the error that the other side sent as `Refused(code, message, remedy, details)`.

    An unknown code becomes InternalError: the other side is of a newer release.
    """
    if code not in BY_CODE:
        newer = "The other agent has a newer release, whose error is unknown here:"
        remedy = f"{remedy} {newer} install the same release on both sides.".lstrip()
    return BY_CODE.get(code, InternalError)(message, remedy=remedy, where=where, details=details)


def meaning(code: str) -> str:
    """Return what errors of a code say in general, which names no row; empty: it is not known."""
    known = BY_CODE.get(code)
    return "" if known is None else " ".join((known.__doc__ or "").split())


BRIEF: dict[str, str] = {
    "CONFIGURATION": "a setting is wrong",
    "USAGE": "the command is wrong",
    "NOT_FOUND": "no such table",
    "UNAUTHENTICATED": "certificate refused",
    "UNREACHABLE": "source does not answer",
    "DATABASE_UNAVAILABLE": "database is down",
    "DATABASE_REFUSED": "database refused",
    "SNAPSHOT_LOST": "source changed meanwhile",
    "VERSION": "releases do not fit",
    "RECIPE": "columns changed",
    "DERIVE": "selection not allowed",
    "SHRANK": "most rows are gone",
    "NULL_KEY": "a key is NULL",
    "DUPLICATE_KEY": "a key occurs twice",
    "VALUE": "a value does not fit",
    "MALFORMED": "a message is wrong",
    "DAMAGED": "rows were damaged",
    "LIMIT": "a limit is exceeded",
    "NOT_NOW": "source is closed now",
    "PROOF": "copy was not equal",
    "VIEW_FAILED": "view cannot be computed",
    "WAREHOUSE": "storage fails",
    "SPARK": "Spark ended",
    "LOCKED": "another command has it",
    "KILLED": "command was killed",
    "INTERNAL": "mistake of Driftline",
}  # what each code means, where a line has room for few words


def named(code: str) -> str:
    """Return a code with what it means in few words: `SHRANK (most rows are gone)`."""
    return f"{code} ({BRIEF[code]})" if code in BRIEF else code
