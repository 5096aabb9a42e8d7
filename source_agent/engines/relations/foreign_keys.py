"""From the foreign keys of a catalogue to the references that a client may see; no I/O.

Invariant: nothing that is not published to this client is named. A foreign key is left out whole if
its table is not published, or a column on either side is not.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from driftline.relations.references import OnDelete, Reference

from source_agent.engines.relations.shapes import Relation, Shape


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A foreign key as a catalogue has it; `table` tells its table from others in the database."""

    columns: tuple[str, ...]
    table: Hashable
    referenced: tuple[str, ...]
    on_delete: OnDelete


def references(
    shape: Shape,
    keys: Iterable[ForeignKey],
    published: Sequence[Relation],
    table_of: Callable[[Relation], Hashable | None],
) -> tuple[Reference, ...]:
    """Return the references of a relation, each once.

    Of several relations over one table the first without a condition is named, else the first.

    Args:
        shape: the relation, with the columns that it has for this client.
        keys: of its table.
        published: what the client may have.
        table_of: returns the table of a relation, as `ForeignKey.table`; None: it has none.
    """
    named: dict[Hashable, Relation] = {}
    for one in sorted(published, key=lambda one: one.where is not None):
        if (table := table_of(one)) is not None:
            named.setdefault(table, one)
    own = {column.name for column in shape.recipe.columns}
    resolved = [
        Reference(key.columns, relation.name, key.referenced, key.on_delete)
        for key in keys
        if (relation := named.get(key.table)) is not None
        and own.issuperset(key.columns)
        and _publishes(relation, key.referenced)
    ]
    return tuple(dict.fromkeys(resolved))


def _publishes(relation: Relation, columns: Sequence[str]) -> bool:
    """Return True if source.toml publishes these columns of a table."""
    return relation.columns is None or {*relation.columns, *(relation.key or ())}.issuperset(
        columns
    )
