"""Which link broke where a proof fails: from digests that all of its parts have.

Ours were read and reduced, some rows came, some of ours gave way, the others stayed, files were
written and read back. Each of these has a digest under the salt of the exchange, and each link says
how two of them add up. The first that does not is to blame. No Spark here.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from driftline.digests import Digest


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


def broken(parts: Parts) -> str:
    """What broke, for a person."""
    if parts.gone is not None and parts.stayed + parts.gone != parts.ours:
        return "rows of ours were lost, doubled or altered when their files were written again"
    if parts.came.count and parts.shipped != parts.came:
        return "rows that came were not written as they came"
    result = parts.shipped + parts.stayed
    if result == parts.theirs:
        return "the values in the files are not those that were written to them"
    if result.count == parts.theirs.count:
        return (
            "as many rows as the source has, but not the same: a changed row may have been taken "
            "for an unchanged one, as its hashes agree once in 2^32 updates"
        )
    return "not all rows that differ came, or some stayed that should have given way"
