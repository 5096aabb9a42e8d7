"""The mark of the next version, and the audit of a marker where all rows were compared.

A comparison of all rows is made against the version as it stands. A row that differs although it is
not behind the version's mark was missed by the marker: a refresh by it would have left the row as
it was. The source names such rows by position and row hash; here those are counted that we have
with another hash, so rows that are new to us, and equal ones that came by chance, are none. If the
marker is a checksum of each row, only rows that have the checksum that we have were missed. Where
claims are accepted, a new row that is not behind the mark was missed too, and so was a row that is
gone although no flag behind the mark says so.

A comparison of all rows for which the source could not use the mark says nothing of the marker:
what the audit before found stays, and only its time is new.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from driftline.arrays import I32, Integers
from driftline.values.types import Column

from warehouse_agent.columns.layout import POSITION, Layout
from warehouse_agent.history.marks import KeptMark
from warehouse_agent.methods import key_sums
from warehouse_agent.planning.marker_state import (
    AUDITS_MISSED,
    KEYS_SHOWN,
    MarkerAudit,
    MarkerState,
)
from warehouse_agent.refresh.job import Job
from warehouse_agent.refresh.prepare import PreparedWhole
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.tasks import digests
from warehouse_agent.tasks.difference import MarkerUse, Outcome
from warehouse_agent.tasks.digests import RowChoice
from warehouse_agent.tasks.scan import read_batches


def marking(job: Job, p: PreparedWhole, outcome: Outcome) -> KeptMark | None:
    """Return the mark that the version of a comparison has; None: all rows are to be proven.

    Changes that this comparison found are not counted yet (`with_changes`).
    """
    state, used = p.known.marker, outcome.marker
    if state is None:
        return None
    mark = KeptMark()
    if used is not None:
        mark = KeptMark(
            used.mark, used.why, used.hashes, warnings=used.warnings, checksum=used.checksum
        )
    if not mark.why and not mark.mark:
        mark = replace(mark, why=state.why)
    if outcome.by_marker:
        return replace(mark, audit=state.audit, changes=state.changes)
    with job.phase("audit"):
        audit, lied = _audited(job, p, outcome, state, used)
        if used is None or lied is None or not state.claims:
            return replace(mark, audit=audit)
        return replace(mark, audit=audit, gone=_gone(job, p, used), lied=lied)


def with_changes(
    marking: KeptMark | None, outcome: Outcome, changed: int, deleted: int
) -> KeptMark | None:
    """Return the mark of a version with the number of rows that its comparison found changed, with
    those that were `deleted`."""
    if marking is None:
        return None
    if outcome.by_marker:
        again = max(outcome.came.count - changed, 0)
        return replace(marking, changes=marking.changes + changed, again=again)
    audit, used = marking.audit, outcome.marker
    if audit is None or used is None or not used.audited:  # nobody knows what was missed
        return marking
    if marking.lied is not None and deleted > marking.gone:
        lied = marking.lied
        audit = replace(lied, missed=lied.missed + deleted - marking.gone)
    return replace(marking, audit=replace(audit, changes=audit.changes + changed))


def _audited(
    job: Job, p: PreparedWhole, outcome: Outcome, state: MarkerState, used: MarkerUse | None
) -> tuple[MarkerAudit, MarkerAudit | None]:
    """Return the audit that a comparison of all rows is, the one before if it is none; and what it
    is if more was missed."""
    before = state.audit
    if before is None:
        return MarkerAudit(outcome.checked_at), None
    if used is None or not used.audited:
        return replace(before, at=outcome.checked_at), None
    missed, keys = _missed(job, p, used, claims=state.claims)
    # Until somebody confirms the marker, or all rows that it may have missed are looked at.
    is_sample = used.unmarked > len(used.positions)
    is_kept = is_sample or before.in_row >= AUDITS_MISSED
    audit = MarkerAudit(
        at=outcome.checked_at,
        since=before.at,
        changes=state.changes,
        missed=missed,
        keys=keys,
        in_row=before.in_row if is_kept else 0,
        is_sample=is_sample,
    )
    lied = replace(audit, in_row=before.in_row + 1, wrong_since=before.wrong_from)
    return (lied if missed else audit), lied


def _gone(job: Job, p: PreparedWhole, used: MarkerUse) -> int:
    """Return how many of our rows are gone by a flag behind the mark."""
    if not len(used.gone):
        return 0

    place = partial(
        key_sums.chosen, positions=used.gone, embedding=None, salt=p.salt, ks=np.zeros(0, np.uint64)
    )
    return len(digests.list_rows(job.steps, p.files, p.layout, RowChoice(place), p.salt).positions)


def _missed(
    job: Job, p: PreparedWhole, used: MarkerUse, *, claims: bool
) -> tuple[int, tuple[str, ...]]:
    """Return how many of the rows that the source named differ from ours, and some of their keys.

    At most UNMARKED_ROWS_MAX are named; of more, the share among those is taken for all. Where
    inserts are claimed, those that we do not have count too, unless files of ours are lost.
    """
    if not len(used.positions):
        return 0, ()
    order = np.argsort(used.positions, kind="stable")
    where, hashes = used.positions[order], used.row_hashes[order]

    def place(positions: Integers) -> Integers:
        at = np.minimum(np.searchsorted(where, positions), len(where) - 1)
        return np.where(where[at] == positions, at, np.int64(-1))

    listing = digests.list_rows(job.steps, p.files, p.layout, RowChoice(place), p.salt)
    differs = listing.hashes != hashes[listing.ranges]
    if used.checksum:
        ours = key_sums.list_checksums(job.steps, p.files, p.layout, place, p.salt, used.checksum)
        same = used.checksums[order][ours.ranges] == ours.hashes
        differs &= np.isin(listing.positions, ours.positions[same])
    count = int(np.count_nonzero(differs))
    named = _Named(listing.positions[differs][:KEYS_SHOWN], listing.file[differs][:KEYS_SHOWN])
    keys = named.keys(p.files, p.layout)
    if claims and not (p.base is not None and p.base.lost):
        new = np.setdiff1d(where, listing.positions)
        count += len(new)
        if p.layout.recipe.integer_key:
            keys = (*keys, *map(str, new.tolist()))[:KEYS_SHOWN]
    return round(count * used.unmarked / len(where)), keys


@dataclass(frozen=True, slots=True)
class _Named:
    """A few rows by their positions and the number of their file, int64 and int32 [n]."""

    positions: Integers
    file: I32

    def keys(self, files: tuple[DataFile, ...], layout: Layout) -> tuple[str, ...]:
        """Return their keys as text."""
        if layout.recipe.integer_key:
            return tuple(map(str, self.positions.tolist()))
        schema = pa.schema([layout.file_schema.field(n) for n in (*layout.key_columns, POSITION)])
        texts: list[str] = []
        for number in np.unique(self.file).tolist():
            wanted = pa.array(self.positions[self.file == number])
            for batch in read_batches(files[number].uri, schema):
                rows = batch.filter(pc.is_in(batch[POSITION], value_set=wanted))
                texts += (_text(row, layout.recipe.key, layout) for row in rows.to_pylist())
        return tuple(texts)


def _text(row: Mapping[str, Any], key: tuple[Column, ...], layout: Layout) -> str:
    names = zip(key, layout.key_columns, strict=True)
    return ", ".join(f"{column.name} = {row[name]}" for column, name in names)
