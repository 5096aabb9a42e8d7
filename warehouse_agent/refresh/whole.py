"""One fragment from one version to the next: prepare, exchange, settle.

`prepare` reduces our side in Spark; `exchange` converses with the source over an open stream and
stages what comes; `settle` writes files, proves them equal to the source and commits. Until the
commit nothing that a reader sees has changed; whatever fails before it leaves staged frames that
the next attempt builds on (decision 4).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from warehouse_agent.methods.conversation import Conversation, Opening, Wire
from warehouse_agent.refresh import finish, prepare
from warehouse_agent.refresh.job import Job, Options
from warehouse_agent.refresh.prepare import Describe, Prepared
from warehouse_agent.storage.store import PRIVATE
from warehouse_agent.tasks import digests
from warehouse_agent.tasks.difference import Outcome

__all__ = ["Options", "Refresh"]


@dataclass
class Refresh:
    """One attempt at a job. Call prepare, exchange and settle in this order."""

    job: Job
    _prepared: Prepared | None = None
    _outcome: Outcome | None = None
    _staged: list[str] = field(default_factory=list)
    in_step: bool = True  # whether the stream may carry another relation

    def prepare(self, describe: Describe) -> None:
        """Everything that is done before the stream opens; `describe` asks the source, at most
        once, and only for a first load or when a changed schema is accepted."""
        self._prepared = prepare.prepare(self.job, describe)

    def exchange(self, wire: Wire) -> None:
        """Converse with the source; what comes is staged, also when the line is cut."""
        p = self._prepared
        assert p is not None
        key = self.job.store.read(PRIVATE, "keys", f"{self.job.name}.key")
        assert key is not None
        writer = self.job.staging.begin(self.job.note(p.base, p.layout))
        opening = Opening(
            relation=self.job.fragment.relation,
            recipe=p.layout.recipe,
            fragment_key=key,
            salt=p.salt,
            partition=p.partition,
            sums=p.sums,
            prices=p.known.prices,
            sketch=p.sketch,
            grouped=p.units.grouped if p.units else None,
            forced=self.job.fragment.method,
            line=p.known.line,
            rows_expected=p.rows_expected,
            room=self.job.staging.room(self.job.fragment.staging_at_most),
            rows_lost=p.rows_lost,
        )
        spark = self.job.spark

        def list_rows(by: int, chosen: npt.NDArray[np.bool_]) -> digests.Listing:
            with self.job.phase("list"):
                return digests.list_rows(
                    spark, p.files, p.layout, p.partition, p.salt, by=by, chosen=chosen
                )

        def list_keys(ks: npt.NDArray[np.uint64]) -> digests.Listing:
            assert p.units is not None
            embedding = p.units.grouped.embedding
            with self.job.phase("list"):
                return digests.list_keys(spark, p.files, p.layout, embedding, p.salt, ks=ks)

        conversation = Conversation(
            wire,
            opening,
            keep=writer.add,
            list_rows=list_rows,
            list_keys=list_keys,
            progress=self.job.rows_read,
        )
        try:
            self._outcome = conversation.run()
        finally:
            self.in_step = conversation.ended
            if conversation.admission.is_overrun:
                writer.drop()
            else:
                writer.flush()
        out, report = self._outcome, self.job.report
        # Rows in no unit came before the totals were known: if these are equal, we have the rows.
        self._staged = [] if out.is_equal else self.job.staging.uris(writer.folder)
        report.method, report.consistency, report.as_of = (
            out.method.value,
            out.consistency,
            out.as_of,
        )
        report.round_trips += out.round_trips
        report.source_scans, report.source_rows_read = out.scans, out.rows_read
        if p.is_part:
            assert p.units is not None
            report.rows_left = p.units.grouped.rest.count

    def settle(self) -> None:
        """Apply, prove and publish what the exchange found."""
        assert self._prepared is not None
        assert self._outcome is not None
        finish.settle(self.job, self._prepared, self._outcome, self._staged)
