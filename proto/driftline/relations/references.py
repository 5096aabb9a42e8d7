"""Foreign keys between published relations: the edges of the dependency graph of Gal and Eckstein.

A source names the columns of its own relation and, of the other one, what is published to the same
client: a relation by its published name, and columns that it has there. A foreign key to anything
else is not told, not even that it exists. They are what the catalogue declares; a refresh depends
on none of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class OnDelete(Enum):
    """Rules for a row whose referenced row is deleted, as the SQL standard names them."""

    NO_ACTION = "no action"
    RESTRICT = "restrict"
    CASCADE = "cascade"
    SET_NULL = "set null"
    SET_DEFAULT = "set default"


@dataclass(frozen=True, slots=True)
class Reference:
    """A foreign key: `columns` of one relation are those `referenced` of another, in this order."""

    columns: tuple[str, ...]
    relation: str
    referenced: tuple[str, ...]
    on_delete: OnDelete
