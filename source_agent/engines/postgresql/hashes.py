"""PostgreSQL: the expression by which the server hashes a row itself (protocol, section 5).

A chain: a seed, then words that tell which columns are NULL, then each value's bytes, each hashed
under the hash before it. A value's bytes are those of the row bytes, its binary send form. So the
warehouse computes the same hash from the row, every type that can be read can be hashed, and equal
hashes mean equal bytes, not equal values.

Invariants: functions, types and the collation are named with their schema. The seed is the value of
a setting of this transaction. The server must prove that it hashes as we do, since with the other
byte order it does not.

Rejected, with prices in `docs/results/source.md`: MD5 and SHA-256 of the sent record cost two and
three times the COPY; rows packed by `string_agg` and sums by range cost the server more; one sum of
all rows needs a second scan whenever something changed. `hash_record_extended` of the row ignores
the sign of a numeric and an exchange of values between rows; it is used only before PostgreSQL 18,
for a record of one value, at nearly twice the processor time of the database.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from driftline.rows.fingerprints import NULLS_PER_WORD
from driftline.rows.lookup3 import hash_spans, hash_words
from psycopg import Error

from source_agent.engines.interface import Ask
from source_agent.engines.postgresql.sql import EXPLAIN
from source_agent.engines.relations.select import ReadColumn, refused_fingerprint, scan_sql
from source_agent.engines.relations.shapes import Relation, Shape

SEED: Final = "SELECT pg_catalog.set_config('driftline.seed', %s, true)"
FUNCTIONS: Final = """
SELECT pg_catalog.to_regprocedure('pg_catalog.hashbyteaextended(bytea,bigint)') IS NOT NULL,
       pg_catalog.to_regprocedure('pg_catalog.hash_record_extended(record,bigint)') IS NOT NULL,
       pg_catalog.current_setting('server_encoding') = 'UTF8',
       pg_catalog.current_setting('server_version')"""

_SEED_READ: Final = "(SELECT pg_catalog.current_setting('driftline.seed')::pg_catalog.int8)"
_EMPTY: Final = "''::pg_catalog.bytea"
# Hashes of a bytea. A record of one column has the hash of the column, but is slower.
BYTES: Final = "pg_catalog.hashbyteaextended({}, {})"
BYTES_BEFORE_18: Final = "pg_catalog.hash_record_extended(ROW({}), {})"
_TEXT: Final = 'pg_catalog.hashtextextended({} COLLATE pg_catalog."C", {})'
_WORD: Final = "pg_catalog.hashint4extended({}, {})"
# Send functions by kind, or by `form` where the sent bytes are not those of a cast to text.
_SENDS: Final = {"money": "numeric_send"} | {
    kind: kind + suffix
    for suffix, kinds in (
        ("send", "bool int2 int4 int8 oid float4 float8 text bpchar"),
        ("_send", "numeric date timestamp timestamptz time timetz interval uuid jsonb json"),
    )
    for kind in kinds.split()
}
_IMPOSSIBLE: Final = {"42501", "54001"}  # a function is not granted; the chain is too deep
_SAMPLE: Final = b"every byte counts"  # more than one chunk, and no multiple of one
_SAMPLE_SEED: Final = 0x0123456789ABCDEF


def row_hash(ask: Ask, relation: Relation, columns: Sequence[ReadColumn]) -> str:
    """Return the expression of a row's hash, for columns in tuple order.

    Raises:
        ConfigurationError: this server has no such hash, or hashes differently.
    """
    has_bytes, has_record, is_utf8, version = ask(FUNCTIONS)[0]
    if not has_record:
        raise refused_fingerprint(
            relation, f"PostgreSQL {version} has no hash of every type; PostgreSQL 14 has."
        )
    form = BYTES if has_bytes else BYTES_BEFORE_18
    if ask(trial(form))[0] != _expected():
        raise refused_fingerprint(relation, f"PostgreSQL {version} hashes differently here.")
    return expression(columns, form=form, is_utf8=is_utf8)


def key_hash(ask: Ask, key: Sequence[ReadColumn]) -> str:
    """Return the expression of the hash of a row's key; empty if this server has none like ours."""
    has_bytes, has_record, is_utf8, _ = ask(FUNCTIONS)[0]
    form = BYTES if has_bytes else BYTES_BEFORE_18
    if not has_record or ask(trial(form))[0] != _expected():
        return ""
    return expression(key, form=form, is_utf8=is_utf8)


def refuse_unplanned(ask: Ask, shape: Shape) -> None:
    """Plan the scan of hashes, which checks the privileges on the functions without a call.

    Raises:
        ConfigurationError: this login, or this server's stack, cannot make the hashes.
    """
    ask(EXPLAIN + scan_sql(shape))  # raises errors that are not the hash's fault
    try:
        ask(EXPLAIN + scan_sql(shape.hashed(seed=0)))
    except Error as error:
        if error.sqlstate not in _IMPOSSIBLE:
            raise
        text = f"The hashes cannot be made: {error.diag.message_primary}."
        raise refused_fingerprint(shape.relation, text) from error


def expression(columns: Sequence[ReadColumn], *, form: str = BYTES, is_utf8: bool = True) -> str:
    """Return the chain of hashes over columns in tuple order.

    Args:
        form: the expression that hashes a bytea.
        is_utf8: text is stored in the bytes that are sent.
    """
    if form == BYTES_BEFORE_18:  # its hash of a NULL is 0: an unexpected NULL would go unnoticed
        columns = [replace(column, nullable=True) for column in columns]
    chain = _SEED_READ
    for first in range(0, len(columns), NULLS_PER_WORD):
        chain = _WORD.format(_nulls(columns[first : first + NULLS_PER_WORD]), chain)
    for column in columns:
        chain = _link(column, chain, form, is_utf8)
    return chain


def trial(form: str) -> str:
    """Return the statement that hashes a constant in each way that is used."""
    seed = f"{_SAMPLE_SEED}::pg_catalog.int8"
    text = f"'{_SAMPLE.decode()}'::pg_catalog.text"
    data = f"pg_catalog.textsend({text})"
    hashes = (form.format(data, seed), _TEXT.format(text, seed), _WORD.format("5", seed))
    return f"SELECT {', '.join(hashes)}"


CATALOGUE: Final = (FUNCTIONS, trial(BYTES), trial(BYTES_BEFORE_18))


def _expected() -> tuple[int, int, int]:
    seeds = np.array([_SAMPLE_SEED], np.uint64)
    at, size = np.zeros(1, np.int64), np.array([len(_SAMPLE)], np.int64)
    data = int(hash_spans(np.frombuffer(_SAMPLE, np.uint8), at, size, seeds).view(np.int64)[0])
    word = int(hash_words(np.array([5], np.uint32), seeds).view(np.int64)[0])
    return data, data, word


def _nulls(columns: Sequence[ReadColumn]) -> str:
    """Return the expression of an int4 whose bits tell which columns are NULL."""
    bits = [
        f"(CASE WHEN {column.read} IS NULL THEN {1 << place} ELSE 0 END)"
        for place, column in enumerate(columns)
        if column.nullable
    ]
    return " OPERATOR(pg_catalog.|) ".join(bits) or "0"


def _link(column: ReadColumn, chain: str, form: str, is_utf8: bool) -> str:
    """Return the hash of a column's value under the chain so far; a NULL is hashed as no bytes."""
    kind = column.form or column.type.kind
    if kind == "text":
        text = f"({column.read})::pg_catalog.text"
        if is_utf8:
            return _TEXT.format(f"COALESCE({text}, '')" if column.nullable else f"({text})", chain)
        data = f"pg_catalog.textsend({text})"
    elif kind == "bytea":
        data = column.read
    elif kind == "enum":  # COALESCE turns a domain into its base type, which `anyenum` requires
        data = f"pg_catalog.enum_send(COALESCE({column.read}, NULL))"
    else:
        data = f"pg_catalog.{_SENDS[kind]}({column.read})"
    return form.format(f"COALESCE({data}, {_EMPTY})" if column.nullable else data, chain)
