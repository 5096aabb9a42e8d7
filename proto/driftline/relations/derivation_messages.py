"""Derivations as messages.

Apart from `derivations`, because protobuf takes longer to import than a short command needs.
"""

from __future__ import annotations

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


def to_message(derivation: Derivation) -> pb.Derivation:
    """Return a derivation as a message."""
    return pb.Derivation(
        columns=derivation.columns or (),
        rows=None if derivation.rows is None else _message(derivation.rows),
    )


def from_message(message: pb.Derivation) -> Derivation:
    """Return the derivation of a message; `check` it against the relation.

    Raises:
        LimitExceeded: it is too large, or too deep.
        MalformedMessage: a node of its predicate is empty, or an operator is unknown.
    """
    if message.ByteSize() > DERIVATION_BYTES_MAX:
        raise LimitExceeded(f"A derivation has at most {DERIVATION_BYTES_MAX:,} bytes.")
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
