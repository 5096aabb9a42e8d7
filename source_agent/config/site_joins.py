"""The joins that a warehouse may ask of a relation, by the catalogue's foreign keys and the file.

A row is chosen by the row that it references or, for a warehouse that names the relations of its
view (`beside`), by rows that reference it. A join is offered if

 1. the file allows `joins` of the relation, and `rows` of the other one, which has no hours for
    scans: a join reads it at any time;
 2. the catalogue has the foreign key, and both relations are published to this client with its
    columns (`foreign_keys`), so that nothing unpublished is named. It need not be enforced: a
    semi-join is right whatever the rows are;
 3. its columns have one type on both sides, whose equality means the same in Spark;
 4. no policy hides rows of the other relation: who reads the joined one could not tell it from a
    change of its rows.

A relation is never joined with itself, and paths have JOIN_REFERENCES_MAX steps: to rows that
reference, and from there to rows that are referenced. Rejected: from a referenced row to others
that reference it, too. That some other order of a customer is large says little of this one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from driftline.errors import ConfigurationError, DatabaseRefused
from driftline.limits import JOIN_REFERENCES_MAX, JOINED_RELATIONS_MAX
from driftline.relations.derivations import DerivablePart, Derivation, Operator, relations_in
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
    beside: Collection[str] | None = None,
) -> tuple[JoinedRelation, ...]:
    """Return the joins of a described relation; none if its rows may not be chosen by others.

    Args:
        published: what the client may have, by name.
        beside: the relations that may choose rows; None: all that are referenced.
    """
    if session.capabilities.within is None:
        return ()
    return _Joins(session, published, beside).of(served, shape, (), is_upwards=beside is None)


def chosen(
    session: Session,
    served: ServedRelation,
    shape: Shape,
    derivation: Derivation,
    published: Mapping[str, ServedRelation],
) -> Shape:
    """Return what is derived from a described relation. Raises as `Session.derive`."""
    others = () if derivation.rows is None else tuple(relations_in(derivation.rows))
    joins = site_joins(session, served, shape, published, others) if others else ()
    return session.derive(shape, derivation, joins)


@dataclass(slots=True)
class _Joins:
    """The joins of one description; `left`: how many more there may be if relations are named."""

    session: Session
    published: Mapping[str, ServedRelation]
    beside: Collection[str] | None
    left: int = JOINED_RELATIONS_MAX
    described: dict[str, Shape | None] = field(default_factory=dict)

    def of(
        self, served: ServedRelation, shape: Shape, path: tuple[str, ...], *, is_upwards: bool
    ) -> tuple[JoinedRelation, ...]:
        """Return the joins of a relation to which `path` led.

        is_upwards: only to relations that are referenced.
        """
        if DerivablePart.JOINS not in served.derive or len(path) >= JOIN_REFERENCES_MAX:
            return ()
        path, joins = (*path, served.relation.name), dict[object, JoinedRelation]()
        for reference, is_referring in self._references(shape, path, is_upwards=is_upwards):
            there = self._described(reference.relation)
            if there is None or not _has_one_meaning(reference, shape, there):
                continue
            one = JoinedRelation(reference, there, is_referring=is_referring)
            if one.joinable.path in joins or self.left == 0:
                continue
            self.left -= self.beside is not None
            other = self.published[reference.relation]
            then = self.of(other, there, path, is_upwards=not is_referring)
            joins[one.joinable.path] = replace(one, joins=then)
        return tuple(joins.values())

    def _references(
        self, shape: Shape, path: Collection[str], *, is_upwards: bool
    ) -> Iterator[tuple[Reference, bool]]:
        """Yield foreign keys of a relation, then those of others to it, turned, and True."""
        references = self.session.capabilities.references
        if references is None:
            return
        others = {name: one for name, one in self.published.items() if self._may_choose(name, path)}
        try:
            for reference in references(shape, [one.relation for one in self.published.values()]):
                if reference.relation in others:
                    yield reference, False
            for name in () if is_upwards else sorted(others):
                if (there := self._described(name)) is None:
                    continue
                for one in references(there, [shape.relation]):
                    yield Reference(one.referenced, name, one.columns, one.on_delete), True
        except DatabaseRefused:
            return

    def _may_choose(self, name: str, path: Collection[str]) -> bool:
        other = self.published[name]
        is_open = DerivablePart.ROWS in other.derive and other.scan is None
        return is_open and name not in path and (self.beside is None or name in self.beside)

    def _described(self, name: str) -> Shape | None:
        """Return the shape of a relation that may choose rows; None: it may not."""
        if name not in self.described:
            self.described[name] = None
            try:
                shape = self.session.describe(self.published[name].relation)
            except (ConfigurationError, DatabaseRefused):
                return None
            hides = shape.row_security is not None and shape.row_security.policies
            self.described[name] = None if hides else shape
        return self.described[name]


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
