"""What an exchange found that is not to be published, as right as it may be."""

from __future__ import annotations

from driftline.errors import ConfigurationError, SnapshotLost, TableShrank

from warehouse_agent.config import Require
from warehouse_agent.planning import choice
from warehouse_agent.refresh.job import Job
from warehouse_agent.refresh.prepare import Prepared
from warehouse_agent.report import counted
from warehouse_agent.storage import row_security
from warehouse_agent.storage.row_security import PolicyDigests
from warehouse_agent.tasks.difference import Outcome


def shrunk(job: Job, p: Prepared, out: Outcome) -> None:
    """Raise TableShrank where more than half of the published rows are gone, or of those that a
    part compared, unless that is allowed."""
    if p.base is None or job.options.allow_shrink:
        return
    before, after, of = p.base.rows, out.theirs.count, ""
    if p.is_part and not choice.shrank(before, after):
        before, after = p.ours.compared.count, after - p.ours.rest.count
        of = " of those that were compared"
    if choice.shrank(before, after):
        raise TableShrank(
            f"The source has {counted(after, 'row')} and the warehouse {before:,}{of}: "
            "more than half are gone.",
            where=job.name,
            remedy=f"If that is right: driftline refresh {job.name} --allow-shrink",
        )


def inconsistent(job: Job, out: Outcome) -> None:
    """Raise SnapshotLost, or ConfigurationError, where the rows are of different instants and the
    fragment does not accept that."""
    if accepts(job, out):
        return
    allow = 'allow it: `require = "fuzzy"` in the fragment.'
    if out.changed:
        raise SnapshotLost(
            "The data changed while it was read, and the source cannot hold it still.",
            where=job.name,
            remedy=f"Run the refresh again, at a quieter time, or {allow}",
        )
    raise ConfigurationError(
        "The source cannot read this relation as of one instant: its engine has no snapshots.",
        where=job.name,
        remedy=f"If rows of different instants are good enough, {allow}",
    )


def other_policies(job: Job, p: Prepared, out: Outcome) -> PolicyDigests | None:
    """Raise RecipeChanged where other row security applies than to the published version, unless
    that is accepted; return what applied to it."""
    before = policies(job, p)
    if not job.options.accept_schema:
        row_security.refuse_changed(before, out.row_security, job.name)
    return before


def policies(job: Job, p: Prepared) -> PolicyDigests | None:
    """Return the row security under which the published version was read; None: not told."""
    return None if p.base is None else row_security.known(p.base, job.remembered())


def accepts(job: Job, out: Outcome) -> bool:
    """Return whether the fragment takes rows of this consistency."""
    return out.consistency == Require.EXACT.value or job.fragment.require is Require.FUZZY
