"""Which link broke where a proof fails: from digests that all of its parts have.

Ours were read and reduced, some rows came, some of ours gave way, the others stayed, files were
written and read back. Each of these has a digest under the salt of the exchange, and each link says
how two of them add up. The first that does not is to blame. No Spark here.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from driftline.digests import Digest
from driftline.sketches import PRIME


@dataclass(frozen=True, slots=True)
class Parts:
    """Digests of rows by what became of them.

    Attributes:
        theirs, ours: what was compared.
        came: as their sender digested them; of none where that is not known.
        shipped: as they were written.
        stayed, gone: of ours; `gone` is None where it is not known.
    """

    theirs: Digest
    ours: Digest
    came: Digest
    shipped: Digest
    stayed: Digest
    gone: Digest | None

    def counted(self) -> str:
        """How many rows each has."""
        found = ((field.name, getattr(self, field.name)) for field in fields(self))
        return ", ".join(f"{name} {part.count}" for name, part in found if part is not None)


def is_missed_update(parts: Parts) -> bool:
    """Whether all went well but that one changed row was taken for an unchanged one.

    In the cells of a sketch m₀ mod (p − 1) stands for a row, so an update that changes m₀ by a
    multiple of p − 1 is in none of them (protocol, section 7): one in 2^32. The sum of 128 bits
    that is missing tells it, m₁'s borrow and the sign apart; by chance it says so of anything else
    once in 10^9 times.
    """
    if parts.came.count and parts.shipped != parts.came:
        return False
    if parts.gone is not None and parts.stayed + parts.gone != parts.ours:
        return False
    result = parts.shipped + parts.stayed
    if result.count != parts.theirs.count or result == parts.theirs:
        return False
    missing = ((parts.theirs.sum - result.sum) % (1 << 128)) >> 64
    by = [missing + borrow - sign for borrow in (0, 1) for sign in (0, 1 << 64)]
    return any(change % (PRIME - 1) == 0 for change in by)


def broken(parts: Parts) -> str:
    """What broke, for a person."""
    if parts.gone is not None and parts.stayed + parts.gone != parts.ours:
        return "rows of ours were lost, doubled or altered when their files were written again"
    if parts.came.count and parts.shipped != parts.came:
        return "rows that came were not written as they came"
    result = parts.shipped + parts.stayed
    if result == parts.theirs:
        return "the values in the files are not those that were written to them"
    if is_missed_update(parts):
        return (
            "one changed row was taken for an unchanged one: in the sketch both its values look "
            "alike, as happens to one update in 2^32 and not twice to the same"
        )
    if result.count == parts.theirs.count:
        return "as many rows as the source has, but not the same"
    return "not all rows that differ came, or some stayed that should have given way"
