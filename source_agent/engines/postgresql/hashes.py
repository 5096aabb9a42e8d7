"""PostgreSQL: the expression by which it makes a row's hash itself (protocol, section 5).

A chain: each value's bytes are hashed under the hash of the value before, the first under a word
that tells which columns are NULL, that one under a seed. A value's bytes are those of the row
bytes, its binary send form, so the warehouse makes the same hash from the row, and every type that
can be read can be hashed: equal hashes mean equal bytes, not equal values.

Invariants: functions, types and the collation are named with their schema; the seed is the value of
a setting of this transaction, as key bounds are. Whether this server hashes as we do is asked, not
taken for granted: machines with the other byte order do not.

Rejected, with prices in `benchmarks/RESULTS.md`: MD5 and SHA-256 of the sent record, two and three
times the COPY; `hash_record_extended` of the row, which is blind to the sign of a numeric and to
rows that exchange a value. It serves here only before PostgreSQL 18, for a record of one value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from driftline.fingerprints import NULLS_PER_WORD
from driftline.lookup3 import hash_spans, hash_words
from psycopg import Error

from source_agent.engines.interface import Ask, Relation, Shape
from source_agent.engines.postgresql.sql import EXPLAIN
from source_agent.engines.relations import ReadColumn, refused_fingerprint, scan_sql

SEED: Final = "SELECT pg_catalog.set_config('driftline.seed', %s, true)"
FUNCTIONS: Final = """
SELECT pg_catalog.to_regprocedure('pg_catalog.hashbyteaextended(bytea,bigint)') IS NOT NULL,
       pg_catalog.to_regprocedure('pg_catalog.hash_record_extended(record,bigint)') IS NOT NULL,
       pg_catalog.current_setting('server_encoding') = 'UTF8',
       pg_catalog.current_setting('server_version')"""

_SEED_READ: Final = "(SELECT pg_catalog.current_setting('driftline.seed')::pg_catalog.int8)"
_EMPTY: Final = "''::pg_catalog.bytea"
# Of bytea. A record of one column hashes as the column does, and is slower.
BYTES: Final = "pg_catalog.hashbyteaextended({}, {})"
BYTES_BEFORE_18: Final = "pg_catalog.hash_record_extended(ROW({}), {})"
_TEXT: Final = 'pg_catalog.hashtextextended({} COLLATE pg_catalog."C", {})'
_WORD: Final = "pg_catalog.hashint4extended({}, {})"
_SENDS: Final = {  # by kind, or by `form` where a cast to text is not what is sent
    "bool": "boolsend",
    "int2": "int2send",
    "int4": "int4send",
    "int8": "int8send",
    "oid": "oidsend",
    "float4": "float4send",
    "float8": "float8send",
    "numeric": "numeric_send",
    "money": "numeric_send",
    "text": "textsend",
    "date": "date_send",
    "timestamp": "timestamp_send",
    "timestamptz": "timestamptz_send",
    "time": "time_send",
    "timetz": "timetz_send",
    "interval": "interval_send",
    "uuid": "uuid_send",
    "jsonb": "jsonb_send",
    "bpchar": "bpcharsend",
    "json": "json_send",
}

_NOT_HERE: Final = {"42501", "54001"}  # a function is not granted; the chain is too deep
_TRIED: Final = b"every byte counts"  # more than one chunk, and no multiple of one
_TRIED_SEED: Final = 0x0123456789ABCDEF


def row_hash(ask: Ask, relation: Relation, found: Sequence[ReadColumn]) -> str:
    """The expression of a row's hash, for columns in tuple order.

    Raises:
        ConfigurationError: this server has no such hash, or it is another one.
    """
    has_bytes, has_record, is_utf8, version = ask(FUNCTIONS)[0]
    if not has_record:
        raise refused_fingerprint(
            relation, f"PostgreSQL {version} has no hash of every type; PostgreSQL 14 has."
        )
    form = BYTES if has_bytes else BYTES_BEFORE_18
    if ask(trial(form))[0] != _expected():
        raise refused_fingerprint(relation, f"PostgreSQL {version} hashes otherwise here.")
    return expression(found, form=form, is_utf8=is_utf8)


def refuse_unplanned(ask: Ask, shape: Shape) -> None:
    """Have the scan of hashes planned, which asks for the functions' privileges; none is called.

    Raises:
        ConfigurationError: this login, or this server's stack, cannot make the hashes.
    """
    ask(EXPLAIN + scan_sql(shape))  # what is wrong with this is not the hash's fault
    try:
        ask(EXPLAIN + scan_sql(shape.hashed(seed=0)))
    except Error as error:
        if error.sqlstate not in _NOT_HERE:
            raise
        text = f"The hashes cannot be made: {error.diag.message_primary}."
        raise refused_fingerprint(shape.relation, text) from error


def expression(found: Sequence[ReadColumn], *, form: str = BYTES, is_utf8: bool = True) -> str:
    """The chain. `form` hashes a bytea; `is_utf8`: text is stored in the bytes that are sent."""
    if form == BYTES_BEFORE_18:  # 0 for a NULL, wherever it comes from: nothing would tell
        found = [replace(column, nullable=True) for column in found]
    chain = _SEED_READ
    for first in range(0, len(found), NULLS_PER_WORD):
        chain = _WORD.format(_nulls(found[first : first + NULLS_PER_WORD]), chain)
    for column in found:
        chain = _link(column, chain, form, is_utf8)
    return chain


def trial(form: str) -> str:
    """A statement that hashes a constant in each way that is used."""
    seed = f"{_TRIED_SEED}::pg_catalog.int8"
    text = f"'{_TRIED.decode()}'::pg_catalog.text"
    data = f"pg_catalog.textsend({text})"
    hashes = (form.format(data, seed), _TEXT.format(text, seed), _WORD.format("5", seed))
    return f"SELECT {', '.join(hashes)}"


CATALOGUE: Final = (FUNCTIONS, trial(BYTES), trial(BYTES_BEFORE_18))  # what `row_hash` may ask


def _expected() -> tuple[int, int, int]:
    seeds = np.array([_TRIED_SEED], np.uint64)
    at, size = np.zeros(1, np.int64), np.array([len(_TRIED)], np.int64)
    data = int(hash_spans(np.frombuffer(_TRIED, np.uint8), at, size, seeds).view(np.int64)[0])
    word = int(hash_words(np.array([5], np.uint32), seeds).view(np.int64)[0])
    return data, data, word


def _nulls(found: Sequence[ReadColumn]) -> str:
    """Which of these columns are NULL, as bits of an int4."""
    bits = [
        f"(CASE WHEN {column.read} IS NULL THEN {1 << place} ELSE 0 END)"
        for place, column in enumerate(found)
        if column.nullable
    ]
    return " OPERATOR(pg_catalog.|) ".join(bits) or "0"


def _link(column: ReadColumn, chain: str, form: str, is_utf8: bool) -> str:
    """The hash of one column's value under the chain so far; of no bytes where it is NULL."""
    kind = column.form or column.type.kind
    if kind == "text":
        text = f"({column.read})::pg_catalog.text"
        if is_utf8:
            return _TEXT.format(f"COALESCE({text}, '')" if column.nullable else f"({text})", chain)
        data = f"pg_catalog.textsend({text})"
    elif kind == "bytea":
        data = column.read
    elif kind == "enum":  # beside a NULL a domain becomes what lies below, as `anyenum` wants it
        data = f"pg_catalog.enum_send(COALESCE({column.read}, NULL))"
    else:
        data = f"pg_catalog.{_SENDS[kind]}({column.read})"
    return form.format(f"COALESCE({data}, {_EMPTY})" if column.nullable else data, chain)
