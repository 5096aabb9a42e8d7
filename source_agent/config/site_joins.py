"""The joins that a warehouse may ask of a relation, by the catalogue's foreign keys and the file.

A row is chosen by the row that it references. A join is offered if

 1. the file allows `joins` of the relation, and `rows` of the other one, which has no hours for
    scans: a join reads it at any time;
 2. the catalogue has the foreign key, and both relations are published to this client with its
    columns (`foreign_keys`), so that at most one row matches, and nothing unpublished is named;
 3. its columns have one type on both sides, whose equality means the same in Spark;
 4. no policy hides rows of the other relation: who reads the joined one could not tell it from a
    change of its rows.

A relation is never joined with itself, and paths have JOIN_REFERENCES_MAX steps.
"""

from __future__ import annotations

from collections.abc import Mapping

from driftline.errors import ConfigurationError, DatabaseRefused
from driftline.limits import JOIN_REFERENCES_MAX
from driftline.relations.derivations import DerivablePart, Operator
from driftline.relations.references import Reference
from driftline.values.types import INTEGER_WIDTHS

from source_agent.config.file import ServedRelation
from source_agent.engines.interface import Session
from source_agent.engines.relations.predicates import JoinedRelation
from source_agent.engines.relations.shapes import Shape


def site_joins(
    session: Session,
    served: ServedRelation,
    shape: Shape,
    published: Mapping[str, ServedRelation],
    *,
    path: tuple[str, ...] = (),
) -> tuple[JoinedRelation, ...]:
    """Return the joins of a described relation; none if its rows may not be chosen by others.

    Args:
        published: what the client may have, by name.
        path: the names of the relations that led to it.
    """
    own = session.capabilities
    is_wanted = DerivablePart.JOINS in served.derive and len(path) < JOIN_REFERENCES_MAX
    if not is_wanted or own.references is None or own.within is None:
        return ()
    path, described, joins = (*path, served.relation.name), dict[str, Shape | None](), []
    try:
        references = own.references(shape, [one.relation for one in published.values()])
    except DatabaseRefused:
        return ()
    for reference in references:
        other = published[reference.relation]
        is_open = DerivablePart.ROWS in other.derive and other.scan is None
        if not is_open or reference.relation in path:
            continue
        if reference.relation not in described:
            described[reference.relation] = _described(session, other)
        there = described[reference.relation]
        if there is not None and _has_one_meaning(reference, shape, there):
            joined = site_joins(session, other, there, published, path=path)
            joins.append(JoinedRelation(reference, there, joined))
    return tuple(joins)


def _described(session: Session, other: ServedRelation) -> Shape | None:
    """Return the shape of a relation that may choose rows; None: it may not."""
    try:
        shape = session.describe(other.relation)
    except (ConfigurationError, DatabaseRefused):
        return None
    hides = shape.row_security is not None and shape.row_security.policies
    return None if hides else shape


def _has_one_meaning(reference: Reference, shape: Shape, there: Shape) -> bool:
    """Return True if the columns of a foreign key are equal here when they are in Spark."""
    own = {column.name: column for column in shape.recipe.columns}
    other = {column.name: column for column in there.recipe.columns}
    for name, referenced in zip(reference.columns, reference.referenced, strict=True):
        if name not in own or referenced not in other:
            return False
        types = own[name].type, other[referenced].type
        if types[0] != types[1] and not all(type.kind in INTEGER_WIDTHS for type in types):
            return False
        sides = shape.comparable_by_name[name], there.comparable_by_name[referenced]
        if not all(side.allows(Operator.EQUAL) for side in sides):
            return False
    return True
