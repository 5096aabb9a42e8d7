"""Verify a view: compute its newest version again from its inputs, and compare (`verify`)."""

from __future__ import annotations

from collections.abc import Mapping

from driftline.errors import NotFound

from warehouse_agent.config import View, WarehouseConfig
from warehouse_agent.report import Report, utc_now
from warehouse_agent.runs.each_fragment import published_view
from warehouse_agent.spark.session import DeferredSession
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import ViewSnapshot
from warehouse_agent.table_maintenance.file_checks import check_files
from warehouse_agent.tasks.steps import StepLog, Steps
from warehouse_agent.views.evaluate import PinnedInput
from warehouse_agent.views.inputs import query_of
from warehouse_agent.views.maintenance.recompute import verified
from warehouse_agent.visible_versions import warehouse_versions


def recomputed(config: WarehouseConfig, store: Store, spark: DeferredSession, view: View) -> Report:
    """Compute the newest version of a view again from what it was made of; return a report.

    Raises:
        NotFound: it is not published, or an input's version is gone.
        ProofFailed: rows differ.
        RecipeChanged: the view means something else now.
    """
    published = published_view(store, view.name)
    report = Report(view.name, "verify", published.version, published.version, method="recompute")
    check_files(store, view.name, published)  # before Spark is started
    made_of = _made_of(store, view.name, published)
    inputs = []
    for name in view.inputs:
        snapshot = formats.any_head(store, name, version=made_of.get(name))
        if snapshot is None:
            raise NotFound(
                f"Its input {name} is not published.",
                where=view.name,
                remedy=f"Run `driftline refresh {name}`.",
            )
        inputs.append(PinnedInput(name, snapshot.version, snapshot.layout, snapshot.files))
    with report.phase("verify"):
        size = sum(f.size for one in inputs for f in one.files)
        steps = Steps.of(config, spark, StepLog.of(report, "verify"), store)
        rows = verified(steps.spark_to_join(size), view.name, query_of(view), inputs, published)
    report.rows_total, report.proof, report.checked_at = rows, "values", utc_now()
    report.inputs = dict(made_of)
    return report


def _made_of(store: Store, name: str, published: ViewSnapshot) -> Mapping[str, int]:
    """Return the newest versions of the inputs for which the published version is right.

    The version of the warehouse says so: a view that nothing changed in keeps its version while its
    inputs move, and `gc` removes the files of those that it was made of.
    """
    member = warehouse_versions.visible_member(store, name)
    if member is None or member.version != published.version:
        return published.record.inputs or {}
    return member.inputs
