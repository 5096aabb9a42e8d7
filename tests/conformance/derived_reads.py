"""Reads of what an engine derives, for its tests."""

from __future__ import annotations

from driftline.relations.derivations import Derivation, Predicate

from source_agent.engines.conformance.legacy import Legacy
from source_agent.engines.conformance.reads import decoded, flat, session_of
from source_agent.engines.interface import Session
from source_agent.engines.relations.shapes import Relation, Shape

TABLE = Relation("t", table="t")


def derived_keys(session: Session, shape: Shape, predicate: Predicate) -> list[str]:
    """The keys of the rows that an engine keeps, ascending."""
    made = session.derive(shape, Derivation(None, predicate))
    return [str(decoded(row, made)[0]) for row in flat(session.scan(made, ordered=True))]


def kept_raw(legacy: Legacy, condition: str) -> list[str]:
    """The keys that the engine's own operators keep."""
    relation = Relation("raw", table="t", key=("id",), columns=("id",), where=condition)
    with session_of(legacy) as session:
        shape = session.describe(relation)
        return [str(decoded(row, shape)[0]) for row in flat(session.scan(shape, ordered=True))]
