"""Derivations as messages.

Apart from `derivations`, because protobuf takes longer to import than a short command needs.

Joins name the same columns and types again and again: one of 500 bytes is 250 under DEFLATE. A
preset dictionary of types and operators saves 20 more, and was rejected: both releases would have
to keep it for ever. So was zstd, whose header takes these 20.
"""

from __future__ import annotations

import zlib

from google.protobuf.message import DecodeError

from driftline import wire_pb2 as pb
from driftline.errors import LimitExceeded, MalformedMessage
from driftline.limits import DERIVATION_BYTES_MAX, DERIVATION_DEPTH_MAX
from driftline.relations.derivations import (
    AndPredicate,
    ColumnPredicate,
    Derivation,
    NotPredicate,
    Operator,
    OrPredicate,
    Predicate,
    ReferencePredicate,
    too_deep,
)

_RAW_DEFLATE = -zlib.MAX_WBITS


def to_message(derivation: Derivation) -> pb.Derivation:
    """Return a derivation as a message."""
    return pb.Derivation(
        columns=derivation.columns or (),
        rows=None if derivation.rows is None else _message(derivation.rows),
    )


def deflated(message: pb.Derivation) -> bytes:
    """Return the message under DEFLATE, for `Open.deflated`."""
    packer = zlib.compressobj(zlib.Z_BEST_COMPRESSION, zlib.DEFLATED, _RAW_DEFLATE)
    return packer.compress(message.SerializeToString()) + packer.flush()


def inflated(data: bytes) -> pb.Derivation:
    """Return the message of `deflated`, whose unknown fields are not checked.

    No more than DERIVATION_BYTES_MAX is unpacked, whatever came. Raises LimitExceeded: it has more;
    MalformedMessage: it is damaged.
    """
    unpacker = zlib.decompressobj(_RAW_DEFLATE)
    try:
        raw = unpacker.decompress(data, DERIVATION_BYTES_MAX + 1)
        if len(raw) > DERIVATION_BYTES_MAX:
            raise _too_large()
        if not unpacker.eof or unpacker.unused_data:
            raise MalformedMessage("A compressed derivation does not end where its bytes do.")
        return pb.Derivation.FromString(raw)
    except (zlib.error, DecodeError):
        raise MalformedMessage("A compressed derivation is damaged.") from None


def from_message(message: pb.Derivation) -> Derivation:
    """Return the derivation of a message; `check` it against the relation.

    Raises:
        LimitExceeded: it is too large, or too deep.
        MalformedMessage: a node of its predicate is empty, or an operator is unknown.
    """
    if message.ByteSize() > DERIVATION_BYTES_MAX:
        raise _too_large()
    rows = _predicate(message.rows, 1) if message.HasField("rows") else None
    return Derivation(tuple(message.columns) or None, rows)


def _message(predicate: Predicate) -> pb.Predicate:
    match predicate:
        case ColumnPredicate(column, operator, values):
            one = pb.Comparison(column=column, operator=operator.value, values=values)
            return pb.Predicate(comparison=one)
        case AndPredicate(parts):
            return pb.Predicate(every=pb.Predicates(parts=map(_message, parts)))
        case OrPredicate(parts):
            return pb.Predicate(some=pb.Predicates(parts=map(_message, parts)))
        case NotPredicate(part):
            return pb.Predicate(negated=_message(part))
        case ReferencePredicate(columns, relation, referenced, rows, types):
            names, kinds = zip(*types, strict=True) if types else ((), ())
            return pb.Predicate(
                referenced=pb.Referenced(
                    columns=columns,
                    relation=relation,
                    referenced=referenced,
                    rows=_message(rows),
                    names=names,
                    types=kinds,
                )
            )


def _predicate(message: pb.Predicate, level: int) -> Predicate:
    if level > DERIVATION_DEPTH_MAX:
        raise too_deep()
    match message.WhichOneof("node"):
        case "comparison":
            return _comparison(message.comparison)
        case "negated":
            return NotPredicate(_predicate(message.negated, level + 1))
        case "referenced":
            return _referenced(message.referenced, level)
        case "every":
            return AndPredicate(_parts(message.every, level))
        case "some":
            return OrPredicate(_parts(message.some, level))
        case _:
            raise MalformedMessage("A node of a predicate is empty.")


def _parts(message: pb.Predicates, level: int) -> tuple[Predicate, ...]:
    if not message.parts:
        raise MalformedMessage("AND or OR of a predicate has no operand.")
    return tuple(_predicate(part, level + 1) for part in message.parts)


def _referenced(message: pb.Referenced, level: int) -> ReferencePredicate:
    if not 0 < len(message.columns) == len(message.referenced):
        raise MalformedMessage("A join of a predicate pairs no columns.")
    if len(message.names) != len(message.types):
        raise MalformedMessage("A join of a predicate does not say a type for each name.")
    return ReferencePredicate(
        tuple(message.columns),
        message.relation,
        tuple(message.referenced),
        _predicate(message.rows, level + 1),
        tuple(zip(message.names, message.types, strict=True)),
    )


def _comparison(message: pb.Comparison) -> ColumnPredicate:
    try:
        operator = Operator(message.operator)
    except ValueError:
        raise MalformedMessage(f"{message.operator[:20]!a} is not an operator.") from None
    return ColumnPredicate(message.column, operator, tuple(message.values))


def _too_large() -> LimitExceeded:
    return LimitExceeded(f"A derivation has at most {DERIVATION_BYTES_MAX:,} bytes.")
