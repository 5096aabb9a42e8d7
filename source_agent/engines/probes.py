"""What the engines share to probe relations: which ones cannot be probed, and opaque values.

A probe reads counters of the catalogue, never a row. A relation that reads anything but its own
table, or depends on the clock, may change while the counters of that table stand still, so nothing
is said of it. What a value is made of stays at the source: the warehouse gets a hash.
"""

from __future__ import annotations

from collections.abc import Iterable

import blake3
from driftline.relations.activity import UnknownActivity

from source_agent.engines.relations.shapes import Relation

NO_TABLE = UnknownActivity("there is no such table, or the login may not see it")
VIEW = UnknownActivity("it is a view, which has no counters of its own")
_DOMAIN = b"driftline activity\n"
_OPAQUE_BYTES = 16


def never_probed(relation: Relation) -> UnknownActivity | None:
    """Return why a relation is not probed in any engine; None: its engine decides."""
    if relation.query is not None:
        return UnknownActivity("it is a query, whose tables are not known")
    if relation.where is not None:
        return UnknownActivity("its `where` may read other tables, or the clock")
    return None


def opaque(facts: Iterable[object]) -> str:
    """Return a hash, in hex, of facts that are told apart by their text."""
    text = "\0".join(map(str, facts)).encode()
    return blake3.blake3(_DOMAIN + text).hexdigest(length=_OPAQUE_BYTES)
