"""Foreign keys as messages.

Apart from `references`, because protobuf takes longer to import than a short command needs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from driftline import wire_pb2 as pb
from driftline.errors import MalformedMessage
from driftline.limits import COLUMNS_MAX, JOIN_REFERENCES_MAX, NAME_BYTES_MAX, REFERENCES_MAX
from driftline.relations.derivations import Comparable, JoinableReference
from driftline.relations.references import OnDelete, Reference
from driftline.values.types import Column, parse_type

FEATURE = "references"  # of a source that tells them, so that none means that there is none
_RULES = {rule.value: rule for rule in OnDelete}


def to_messages(references: Iterable[Reference]) -> list[pb.Reference]:
    """Return the first REFERENCES_MAX foreign keys as messages."""
    return [
        pb.Reference(
            columns=reference.columns,
            relation=reference.relation,
            referenced=reference.referenced,
            on_delete=reference.on_delete.value,
        )
        for _, reference in zip(range(REFERENCES_MAX), references, strict=False)
    ]


def from_description(description: pb.Description) -> tuple[Reference, ...]:
    """Return the foreign keys of a description; without those whose rule is not known here.

    Raises:
        MalformedMessage: there are too many, one is no list of pairs of columns, or it names a
            column that the relation lacks.
    """
    _check(description, description.references)
    references = []
    for sent in description.references:
        if (rule := _RULES.get(sent.on_delete)) is not None:
            references.append(
                Reference(tuple(sent.columns), sent.relation, tuple(sent.referenced), rule)
            )
    return tuple(references)


def _check(description: pb.Description, sent: Collection[pb.Reference]) -> None:
    """Raise MalformedMessage for foreign keys, of either side, that no source tells."""
    if len(sent) > REFERENCES_MAX:
        raise MalformedMessage(
            f"A description has {len(sent):,} foreign keys; the maximum is {REFERENCES_MAX}."
        )
    own = {column.name for column in description.columns}
    for one in sent:
        count, names = len(one.columns), (one.relation, *one.referenced)
        is_whole = 0 < count == len(one.referenced) <= COLUMNS_MAX and own.issuperset(one.columns)
        if not is_whole or not all(0 < len(name.encode()) <= NAME_BYTES_MAX for name in names):
            raise MalformedMessage(
                "A foreign key of a description does not pair columns of the relation with columns"
                " of another one."
            )


def joinable(description: pb.Description, steps: int = 0) -> tuple[JoinableReference, ...]:
    """Return the foreign keys of a description along which rows may be chosen.

    Raises:
        MalformedMessage: as `from_description`, also of a referenced relation; or a path of more
            than JOIN_REFERENCES_MAX foreign keys, a type that is none, too many columns, or columns
            of one name.
    """
    _check(description, description.references)
    _check(description, description.referring)
    upwards = ((sent, False) for sent in description.references if sent.HasField("joined"))
    found = []
    for sent, is_referring in (*upwards, *((sent, True) for sent in description.referring)):
        there = sent.joined
        names = {column.name for column in there.columns}
        if steps == JOIN_REFERENCES_MAX or not len(names) == len(there.columns) <= COLUMNS_MAX:
            raise MalformedMessage("A description has a join that no source offers.")
        columns = tuple(
            Column(column.name, parse_type(column.type), column.nullable, column.ordinal)
            for column in there.columns
        )
        if not names.issuperset(sent.referenced):
            raise MalformedMessage("A description has a join with columns that are not there.")
        found.append(
            JoinableReference(
                tuple(sent.columns),
                sent.relation,
                tuple(sent.referenced),
                columns,
                {column.name: Comparable(column.comparable) for column in there.columns},
                joinable(there, steps + 1),
                is_referring=is_referring,
                rows_expected=there.rows_expected,
            )
        )
    return tuple(found)
