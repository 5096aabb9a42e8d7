"""PostgreSQL: the rows of one COPY in binary, taken from libpq as they come.

A binary tuple is one message, and is copied once: 0.4 µs for a row of TPC-H orders. (`bytes(view)`
takes 0.04 µs longer than `tobytes`.)

Rejected: keeping libpq's memoryviews without copying. Each holds one allocation of libpq, and scan,
hash and join together took 1.7–1.9 s instead of 1.4 s (1.5 M TPC-H orders).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import repeat
from time import monotonic
from typing import Final

from driftline.limits import ROW_BYTES_MAX
from psycopg import Error, pq

from source_agent.engines.encoding.rows import check_size
from source_agent.engines.interface import (
    BATCH_BYTES,
    BATCH_ROWS,
    BATCH_S,
    Rows,
)
from source_agent.engines.postgresql import locators
from source_agent.engines.postgresql.access import error_of
from source_agent.engines.postgresql.sql import copy_of
from source_agent.engines.postgresql.waits import DRIVER, ResultSocket
from source_agent.engines.relations.select import plan_of
from source_agent.engines.relations.shapes import Shape
from source_agent.engines.sessions import driven

_HEADER_BYTES: Final = 19  # signature, flags, no extension; in front of the first tuple
_TRAILER: Final = b"\xff\xff"
_RESULTS_MAX: Final = 4  # on a broken connection libpq may repeat the state of the COPY


def copy_rows(
    results: ResultSocket, shape: Shape, select_sql: str, *, on_sent: Callable[[], None]
) -> Iterator[Rows]:
    """Return the tuples of a SELECT in batches; of a shape with locators, `LocatedRows`.

    Args:
        on_sent: called once the statement is sent and can be cancelled; it may raise.

    Raises:
        psycopg.Error: the server refused the statement or ended it.
        DatabaseUnavailable: nothing came for too long; the driver has no memory left.
        DatabaseRefused: the driver failed otherwise.
        LimitExceeded: a row is too large.
    """
    return driven(_copied(results, shape, select_sql, on_sent), DRIVER, Error)


def _copied(
    results: ResultSocket, shape: Shape, select_sql: str, on_sent: Callable[[], None]
) -> Iterator[Rows]:
    pgconn = results.pgconn
    pgconn.send_query_params(copy_of(select_sql).encode(), None)
    results.flush()
    on_sent()
    result = results.next_result()
    if result is None or result.status != pq.ExecStatus.COPY_OUT:
        while results.next_result() is not None:
            pass
        raise error_of(result)
    try:
        yield from _tuples(results, shape)
    except Error as error:
        raise _server_error(pgconn, error) from None
    while (result := results.next_result()) is not None:
        if result.status != pq.ExecStatus.COMMAND_OK:
            raise error_of(result)


def _server_error(pgconn: pq.abc.PGconn, error: Error) -> Error:
    """Return the server's reason for ending the connection, or `error` if it sent none.

    A server that terminates a session sends the reason and closes. libpq then reports the closed
    connection, while the reason is still in its buffer, behind the rows that came before it.
    """
    with contextlib.suppress(Error):
        while pgconn.get_copy_data(1)[0] > 0:
            pass
    for _ in range(_RESULTS_MAX):
        result = pgconn.get_result()
        if result is None:
            break
        if result.status == pq.ExecStatus.FATAL_ERROR and result.error_field(
            pq.DiagnosticField.SQLSTATE
        ):
            return error_of(result)
    return error


def _tuples(results: ResultSocket, shape: Shape) -> Iterator[Rows]:
    """Yield batches. This is the hot loop: it does only what every row needs."""
    get, take = results.pgconn.get_copy_data, results.take
    is_located = bool(plan_of(shape).locators)
    is_first = True
    length = 1
    while length >= 0:
        rows: Rows = []
        ends_at = monotonic() + BATCH_S
        append = rows.append
        size = 0
        for _ in repeat(None, BATCH_ROWS):
            length, data = get(1)
            while length == 0 and take(max(ends_at - monotonic(), 0) if rows else None):
                length, data = get(1)
            if length <= 0:  # the end, or no row for a while
                break
            append(data.tobytes())
            size += length
            if size >= BATCH_BYTES:
                break
        if is_first and rows:
            rows[0] = rows[0][_HEADER_BYTES:]
            is_first = False
        if rows and rows[-1] == _TRAILER:
            rows.pop()
        if is_located and rows:
            rows = locators.parted(shape, rows)
        if size > ROW_BYTES_MAX:
            check_size(shape, rows)
        if rows:
            yield rows
