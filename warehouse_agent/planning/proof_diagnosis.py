"""The diagnosis of a failed proof: which step lost, added or altered rows.

Our rows were read, some rows came, some of ours were replaced or deleted, the others stayed, and
files were written and read back. Each of these sets of rows has a digest under the salt of the
exchange, and after each step some digests must add up. The first step whose digests do not is the
cause. No Spark here.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from driftline.reconciliation.sketches import PRIME
from driftline.rows.digests import Digest


@dataclass(frozen=True, slots=True)
class StepDigests:
    """Digests of the rows of each step.

    Attributes:
        theirs, ours: the rows that were compared.
        came: rows that came, as their sender digested them; of no rows if that is not known.
        shipped: the same rows, as they were written.
        stayed, gone: our rows that stayed, and the others; `gone` is None if it is not known.
        is_listed: the rows that stayed were staged before and listed by chunks; none was compared.
    """

    theirs: Digest
    ours: Digest
    came: Digest
    shipped: Digest
    stayed: Digest
    gone: Digest | None
    is_listed: bool = False

    def counted(self) -> str:
        """Return the number of rows of each, as text."""
        parts = ((field.name, getattr(self, field.name)) for field in fields(self))
        sizes = ((name, part.count) for name, part in parts if isinstance(part, Digest))
        return ", ".join(f"{name} {count}" for name, count in sizes)


def is_missed_update(parts: StepDigests) -> bool:
    """Return True if the only fault is one changed row that was taken for an unchanged one.

    In the cells of a sketch a row is m₀ mod (p − 1), so an update that changes m₀ by a multiple of
    p − 1 is in no cell (protocol, section 7): one in 2^32. The missing sum of 128 bits shows it, up
    to the borrow of m₁ and the sign; any other fault looks like it once in 10^9 times.
    """
    result = parts.shipped + parts.stayed
    if parts.is_listed or _failed_step(parts):
        return False
    if result.count != parts.theirs.count or result == parts.theirs:
        return False
    missing = ((parts.theirs.sum - result.sum) % (1 << 128)) >> 64
    by = [missing + borrow - sign for borrow in (0, 1) for sign in (0, 1 << 64)]
    return any(change % (PRIME - 1) == 0 for change in by)


def reads_differ(parts: StepDigests) -> bool:
    """Return True if every step of ours adds up: the source's rows are not those that it compared.

    It read them twice, and the second time by keys that had changed.
    """
    result = parts.shipped + parts.stayed
    if parts.is_listed:  # it reads them once
        return False
    return not (_failed_step(parts) or result == parts.theirs or is_missed_update(parts))


def diagnose(parts: StepDigests) -> str:
    """Return the cause, for a person."""
    if failed := _failed_step(parts):
        return failed
    result = parts.shipped + parts.stayed
    if result == parts.theirs:
        return "the values in the files are not those that were written to them"
    if parts.is_listed:
        return (
            "the source said that it has rows which were staged before, and not all of these are "
            "its rows"
        )
    if is_missed_update(parts):
        return (
            "one changed row was taken for an unchanged one: in the sketch both its values look "
            "alike, which happens to one update in 2^32 and not twice to the same"
        )
    if result.count == parts.theirs.count:
        return "as many rows as the source has, but not the same"
    return "not all rows that differ came, or some stayed that should have been replaced"


def _failed_step(parts: StepDigests) -> str | None:
    if parts.gone is not None and parts.stayed + parts.gone != parts.ours:
        return "rows of ours were lost, doubled or altered when their files were written again"
    if parts.came.count and parts.shipped != parts.came:
        return "rows that came were not written as they came"
    return None
