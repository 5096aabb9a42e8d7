"""Every error a user can meet, once.

    DriftlineError
    ├── ConfigurationError      the file is wrong; nothing was contacted
    ├── UsageError              the command line is wrong
    ├── NotFound                no such relation, or none for you (both answer alike)
    ├── Unauthenticated         certificate or host name refused
    ├── SourceUnreachable       nothing answers at the address                     retryable
    ├── DatabaseUnavailable     the agent answers, its database does not           retryable
    ├── DatabaseRefused         the database refused a login or a statement
    ├── SnapshotLost            the source changed between two reads               retryable
    ├── VersionMismatch         the two agents speak different versions
    ├── RecipeChanged           columns, types, key or row security changed
    ├── TableShrank             more than half of the rows are gone
    ├── NullKey                 a key column holds NULL
    ├── DuplicateKey            two rows have one key
    ├── ValueDoesNotFit         a value its declared type or carrier cannot hold
    ├── MalformedMessage        the other side sent what the protocol forbids
    │   └── FrameDamaged        a frame is not what its digest says            retryable
    ├── LimitExceeded           a named limit of `limits.py` or of the DBA's file
    ├── NotNow                  paused, quiet hours, or no place free              retryable
    ├── ProofFailed             the result differs from the source; not published  retryable
    ├── WarehouseUnavailable    the warehouse's storage cannot be written or read
    ├── SparkLost               a process of Spark ended, killed or out of memory  retryable
    ├── Locked                  another agent works on this fragment               retryable
    └── InternalError           our own mistake

An error says what, where, why and what to do. `code` is stable and documented in
`docs/errors.md`; `exit_code` is what the command line ends with; `is_retryable` says whether the
same command may simply be run again. This file knows no gRPC: `GRPC_STATUS` holds names only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from driftline.limits import COLUMNS_NAMED_MAX
from driftline.peer_text import visible


class DriftlineError(Exception):
    """What happened, where, and what to do about it.

    Args:
        message: what went wrong and why, one or two sentences, naming the thing concerned.
        remedy: what to do next, imperative; empty when the message says it all.
        where: the place, such as `orders`, `source.toml: server.listen` or `orders.o_comment`.
        details: further facts by name (samples, columns), small and printable.
    """

    code: ClassVar[str] = "INTERNAL"
    exit_code: ClassVar[int] = 1
    is_retryable: bool = False  # of a kind; of one error more may be known
    default_remedy: ClassVar[str] = ""

    def __init__(
        self,
        message: str,
        *,
        remedy: str = "",
        where: str = "",
        details: dict[str, str] | None = None,
    ) -> None:
        # Names and values of databases and of the other side are in here.
        self.message = visible(message)
        super().__init__(self.message)
        self.remedy = visible(remedy or self.default_remedy)
        self.where = visible(where)
        self.details = {visible(name): visible(text) for name, text in (details or {}).items()}

    def __str__(self) -> str:
        where = f"{self.where}: " if self.where else ""
        remedy = f" {self.remedy}" if self.remedy else ""
        return f"{where}{self.message}{remedy}"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.remedy, self.where, self.details))


def _rebuild(
    kind: type[DriftlineError], message: str, remedy: str, where: str, details: dict[str, str]
) -> DriftlineError:
    return kind(message, remedy=remedy, where=where, details=details)


class ConfigurationError(DriftlineError):
    code = "CONFIGURATION"
    exit_code = 2


class UsageError(DriftlineError):
    code = "USAGE"
    exit_code = 2


class NotFound(DriftlineError):
    code = "NOT_FOUND"
    default_remedy = "Check the name, or ask the DBA to publish it to this certificate."


class Unauthenticated(DriftlineError):
    code = "UNAUTHENTICATED"
    exit_code = 5


class SourceUnreachable(DriftlineError):
    code = "UNREACHABLE"
    exit_code = 4
    is_retryable = True


class DatabaseUnavailable(DriftlineError):
    code = "DATABASE_UNAVAILABLE"
    exit_code = 4
    is_retryable = True


class DatabaseRefused(DriftlineError):
    code = "DATABASE_REFUSED"


class SnapshotLost(DriftlineError):
    code = "SNAPSHOT_LOST"
    exit_code = 75
    is_retryable = True
    default_remedy = "Run the refresh again; nothing was published and what arrived is kept."


class VersionMismatch(DriftlineError):
    code = "VERSION"


class RecipeChanged(DriftlineError):
    code = "RECIPE"
    exit_code = 6


class TableShrank(DriftlineError):
    code = "SHRANK"
    exit_code = 6


class NullKey(DriftlineError):
    code = "NULL_KEY"


class DuplicateKey(DriftlineError):
    code = "DUPLICATE_KEY"


class ValueDoesNotFit(DriftlineError):
    code = "VALUE"


class MalformedMessage(DriftlineError):
    code = "MALFORMED"


class FrameDamaged(MalformedMessage):
    code = "DAMAGED"
    exit_code = 75
    is_retryable = True


class LimitExceeded(DriftlineError):
    code = "LIMIT"


class NotNow(DriftlineError):
    code = "NOT_NOW"
    exit_code = 75
    is_retryable = True


class ProofFailed(DriftlineError):
    code = "PROOF"
    exit_code = 75
    is_retryable = True


class WarehouseUnavailable(DriftlineError):
    code = "WAREHOUSE"


class SparkLost(DriftlineError):
    code = "SPARK"
    exit_code = 75
    is_retryable = True


class Locked(DriftlineError):
    code = "LOCKED"
    exit_code = 75
    is_retryable = True


class InternalError(DriftlineError):
    code = "INTERNAL"
    default_remedy = "Please report it with the log; run with --debug for the traceback."


def together(
    errors: Sequence[DriftlineError], *, where: str = "", remedy: str = ""
) -> DriftlineError:
    """Return one error for several of one kind, so that all are mended before the next run.

    Args:
        errors: at least one; those beyond COLUMNS_NAMED_MAX are counted only.
        where: the place that they share; one error keeps its own.
        remedy: what to do about all; by default their own remedies, each once.
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
    return type(first)(message, where=where, remedy=remedy or " ".join(remedies), details=details)


def _all_errors(kind: type[DriftlineError]) -> list[type[DriftlineError]]:
    found = []
    for child in kind.__subclasses__():
        found += [child, *_all_errors(child)]
    return found


BY_CODE: dict[str, type[DriftlineError]] = {e.code: e for e in _all_errors(DriftlineError)}

# The gRPC status under which an error leaves the source outside an exchange.
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
    NullKey: "FAILED_PRECONDITION",
    DuplicateKey: "FAILED_PRECONDITION",
    ValueDoesNotFit: "FAILED_PRECONDITION",
    LimitExceeded: "RESOURCE_EXHAUSTED",
    NotNow: "RESOURCE_EXHAUSTED",
}

NEWER = (
    "The other agent is of a newer release, whose error is not known here: install the same "
    "release on both sides."
)


def from_code(
    code: str, message: str, *, remedy: str = "", where: str = "", details: dict[str, str]
) -> DriftlineError:
    """The error that the other side sent as `Refused(code, message, remedy, details)`.

    A code that is not known here is INTERNAL: the other side is of a newer release.
    """
    kind = BY_CODE.get(code, InternalError)
    if code not in BY_CODE:
        remedy = f"{remedy} {NEWER}".lstrip()
    return kind(message, remedy=remedy, where=where, details=details)
