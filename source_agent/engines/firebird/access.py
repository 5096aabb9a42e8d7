"""Firebird: what the login may do, what to grant, and what errors mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from driftline.errors import (
    OPEN,
    ConfigurationError,
    DatabaseRefused,
    DatabaseUnavailable,
    DriftlineError,
)
from firebird.driver import DatabaseError, get_api

from source_agent.engines.interface import Ask, Privilege
from source_agent.engines.relations.select import quote, split_name
from source_agent.engines.relations.shapes import Relation
from source_agent.engines.rights import firebird as rights

_CANCELLED: Final = 335544794
# Of limits since Firebird 4.0, beside _CANCELLED: the server's, and one that a trigger has set. An
# older client library has no text for them.
_SERVER_TIMEOUT: Final = 335545127
_SESSION_TIMEOUTS: Final = frozenset({335545128, 335545129})
_UNKNOWN_TYPE: Final = 335544573  # alone: said by the client library; else, by the server
_NO_PRIVILEGE: Final = 335544352
_LOST: Final = frozenset(
    {335544344, 335544648, 335544721, 335544726, 335544727, 335544741, 335544856, 335544861}
)  # I/O, network, shutdown
_LOGIN: Final = 335544472
_SEVERAL_MAPPINGS: Final = 335545083


def message_of(error: BaseException) -> str:
    """Return what the database says, on one line."""
    return " ".join(str(error).split())


def client_version() -> str:
    """Return the release of the client library that this process has loaded, such as 3.0."""
    version = get_api().util.get_client_version()
    return f"{version >> 8}.{version & 0xFF}"


def translate(
    error: DatabaseError, relation: Relation | None = None, *, is_description: bool = False
) -> DriftlineError:
    """Return the error that a user sees for one of the driver's."""
    where = relation.name if relation else ""
    codes = set(getattr(error, "gds_codes", None) or ())
    text = f"Firebird says: {message_of(error)}."
    brief = f"Firebird refuses it ({', '.join(map(str, sorted(codes))) or type(error).__name__})."
    if _SERVER_TIMEOUT in codes or codes & _SESSION_TIMEOUTS:
        of_server = _SERVER_TIMEOUT in codes
        limit = (
            "StatementTimeout of the server" if of_server else "SET STATEMENT TIMEOUT of a trigger"
        )
        return DatabaseRefused(
            "Reading took longer than the database allows.",
            where=where,
            remedy=f"Raise {limit}, or publish less of the table.",
            abroad=OPEN,
        )
    if _CANCELLED in codes:
        return DatabaseRefused(
            "Reading took longer than the file allows.",
            where=where,
            remedy="Raise `statement_timeout_s`, or publish less of the table.",
            abroad=OPEN,
        )
    if _NO_PRIVILEGE in codes:
        return DatabaseRefused(
            text,
            where=where,
            remedy="GRANT SELECT on it to the login.",
            abroad="SELECT is not granted to the agent.",
        )
    if codes & _LOST:
        return DatabaseUnavailable(text, where=where, abroad=brief)
    if codes == {_UNKNOWN_TYPE}:
        return ConfigurationError(
            f"It has a column of a type that Firebird's client library on this machine, of "
            f"{client_version()}, does not know.",
            where=where,
            remedy="Install the client library (libfbclient) of the server's release, or publish "
            "a query without that column, or with a CAST of it.",
            abroad=OPEN,
        )
    if is_description:
        return ConfigurationError(
            text,
            where=where,
            remedy="Correct the table or the query in the file.",
            abroad=brief,
        )
    return DatabaseRefused(text, where=where, abroad=brief)


def connect_error(error: DatabaseError, database: str) -> DriftlineError:
    """Return the error for a database that could not be opened."""
    text = f"Firebird says of {database!r}: {message_of(error)}."
    codes = set(getattr(error, "gds_codes", None) or ())
    if codes & {_LOGIN, _SEVERAL_MAPPINGS}:
        return DatabaseRefused(
            text,
            where="database.url",
            remedy="Leave the login one mapping to a role (RDB$AUTH_MAPPING)."
            if _SEVERAL_MAPPINGS in codes
            else "Check the user and password.",
            abroad="Firebird refused the login.",
        )
    return DatabaseUnavailable(
        text,
        where="database.url",
        remedy="Check the URL, the server and the account's rights.",
        abroad="Firebird cannot be reached.",
    )


def begin_error(error: DatabaseError) -> DriftlineError:
    """Return the error for a transaction that did not begin, before anything was asked."""
    if set(getattr(error, "gds_codes", None) or ()) & _LOST:
        return translate(error)
    return DatabaseRefused(
        f"Firebird does not begin a transaction: {message_of(error)}.",
        remedy="Have a trigger ON TRANSACTION START, if there is one, let the agent pass.",
        abroad="Firebird does not begin a transaction, as where a trigger of the owner refuses it.",
    )


def privileges(ask: Ask, relations: Sequence[Relation]) -> list[Privilege]:
    """Return what the login may do, for `Engine.privileges`."""
    tables = {split_name(r.table)[-1] for r in relations if r.table is not None}
    return rights.privileges(ask, tables, has_queries=any(r.query for r in relations))


def grants(relations: Sequence[Relation], login: str, connections: int) -> str:
    """Return the script for `Engine.grants`. Firebird grants SELECT on whole tables alone."""
    user = quote(login.upper())  # as Firebird takes the name of a connection
    lines = [
        f"-- Least privilege for driftline-source, which opens {connections} connections at most.",
        "-- Run by isql as the owner of the tables. It is one transaction, which the first error",
        "-- ends, and can be run again. SELECT is granted on whole tables: to publish some",
        "-- columns of one, grant it on a view of them.",
        f"-- If the user does not exist: CREATE USER {user} PASSWORD '…';",
        "SET BAIL ON;",
        "SET AUTODDL OFF;",
    ]
    for relation in relations:
        if relation.table is None:
            lines.append(f"-- {relation.name} is a query: GRANT SELECT ON … TO USER {user};")
        else:
            table = quote(split_name(relation.table)[-1])
            lines.append(f"GRANT SELECT ON {table} TO USER {user};")
    lines += [
        "COMMIT;",
        "-- What PUBLIC may do stays; REVOKE … FROM PUBLIC takes it from every user and role.",
    ]
    return "\n".join([*lines, ""])
