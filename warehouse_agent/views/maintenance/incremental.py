"""Maintain a view by affected keys: only what was made of a changed row is computed again.

    V' = { v in V : no kᵢ(v) in Cᵢ } ∪ { q in Q(R'₁ … R'ₙ) : some kᵢ(q) in Cᵢ }

kᵢ is the key of the row of occurrence i that a row was made of, Cᵢ any superset of the keys that
changed in its relation since V was made, R' the new state. It holds for inner joins: a row whose
lineage has no changed key has the same rows in both states, so it is in both results or in neither.
(MAUVE, Eq. 3, has a term for each relation and nets its deltas; here is one query, over new state.)

 1. `reduce`: rows of R' that may join with a changed row are found by their join columns
    (`join_graph`, `tasks.semi_join`) and written apart, with a flag where the row
    itself changed.
 2. `join`: the user's query, once, over these rows; what was made of a flagged row is kept.
 3. `rewrite`: files of V that hold affected rows are written again without them, the new rows are
    files beside; both are paired by lineage (`tasks.rewrites.view_rows`), which gives the
    change feed.
 4. `check`: a slice of the view is computed by another road and compared (`slice_proof`), also
    where no row of the view differs.

Nothing is published unless all counts add up. Rejected: a Spark query for each term (2.1 times a
recomputation), signed deltas (old state, counters), and Spark's joins for the reduction (values of
all rows would be decoded for each term).
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from driftline.errors import ProofFailed

from warehouse_agent.columns.layout import Layout
from warehouse_agent.columns.row_codes import CodeSet, codes
from warehouse_agent.columns.view_layout import ViewLayout
from warehouse_agent.report import counted
from warehouse_agent.storage.data_files import DataFile, DataFolder
from warehouse_agent.storage.table import ViewSnapshot
from warehouse_agent.tasks import semi_join
from warehouse_agent.tasks.change_feed import VersionFeed
from warehouse_agent.tasks.data_frames import rows_of
from warehouse_agent.tasks.rewrites import view_rows
from warehouse_agent.tasks.rewrites.replaced_rows import BEFORE_FOLDER
from warehouse_agent.tasks.rewrites.view_rows import (
    PAIRED_BYTES_MAX,
    AffectedLineage,
    RemainingFiles,
    have_own_lineage,
)
from warehouse_agent.tasks.scan import read_batches
from warehouse_agent.tasks.semi_join import CHANGED, FOUND_BY, CodeCondition, SelectedRows
from warehouse_agent.tasks.write import write_rows
from warehouse_agent.views.evaluate import (
    PinnedInput,
    evaluated_over,
    java_of,
    query_errors,
    recipe_of,
    session_of,
)
from warehouse_agent.views.maintenance import join_graph, pairing, slice_proof
from warehouse_agent.views.maintenance.affected_keys import (
    FeedFiles,
    InputChanges,
    MissingFeed,
    changes_in,
)
from warehouse_agent.views.maintenance.join_graph import (
    ChangesStep,
    EdgeMessage,
    ProbeStep,
    Reduction,
    SelectionStep,
)
from warehouse_agent.views.maintenance.next_version import (
    CheckedRows,
    Computed,
    NextVersion,
    UnchangedView,
)
from warehouse_agent.views.maintenance.pairing import REPORT
from warehouse_agent.views.maintenance.recompute import refuse_changed
from warehouse_agent.views.maintenance.view_job import ViewJob
from warehouse_agent.views.query import Query, ResolvedColumns, resolve

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class MaintainableView:
    """A view that can be maintained by affected keys.

    Attributes:
        forms: of the selected rows of each occurrence.
        feeds: by name of input, since the version that the view was made of.
        reduction: None if nothing changed in any feed.
        slice: the number of the slice to be proven, another one each time.
        java: the version of the Java that computed the rows of `base`, or found the same; None: it
            is not known.
    """

    base: ViewSnapshot
    forms: tuple[SelectedRows, ...]
    feeds: Mapping[str, tuple[FeedFiles, ...]]
    reduction: Reduction | None
    slice: int
    java: str | None

    @property
    def rows_changed(self) -> int:
        """Return the number of changed rows in all feeds, those of a self-join once."""
        return sum(feed.rows for feeds in self.feeds.values() for feed in feeds)


def feasible(
    name: str,
    query: Query,
    inputs: Sequence[PinnedInput],
    base: ViewSnapshot,
    feeds: Mapping[str, tuple[FeedFiles, ...]],
    slice_: int,
    java: str | None,
) -> MaintainableView:
    """Decide how a view is maintained by affected keys, without reading rows.

    Args:
        slice_, java: as in `MaintainableView`.
    """
    where = f"views.{name}.query"
    resolved = resolve(query, [i.layout.data_names for i in inputs], where=where)
    forms = tuple(_form(one, used) for one, used in zip(inputs, resolved.used, strict=True))
    occurrences = graph_of(inputs, {n: any(f.rows for f in fs) for n, fs in feeds.items()})
    reduction = None
    if any(one.is_changed for one in occurrences):
        reduction = join_graph.reduction(_edges(resolved, occurrences), occurrences)
    return MaintainableView(base, forms, feeds, reduction, slice_, java)


def graph_of(
    inputs: Sequence[PinnedInput], changed: Mapping[str, bool]
) -> tuple[join_graph.OccurrenceFacts, ...]:
    """Return the occurrences of a join graph; `changed`: by name of input."""
    return tuple(
        join_graph.OccurrenceFacts(
            _types(one.layout),
            one.layout.integer_key,
            sum(f.rows for f in one.files),
            changed[one.name],
        )
        for one in inputs
    )


def maintain(job: ViewJob, plan: MaintainableView) -> Computed | MissingFeed:
    """Compute the next version of a view from the rows that changed.

    Returns:
        MissingFeed if the feeds turn out not to serve, or rows of another Java would lie beside the
        new ones; nothing was written then.

    Raises:
        RecipeChanged: the query, an input's columns, settings or Spark's version are others.
        ConfigurationError, ViewFailed: the query cannot be evaluated.
        ProofFailed: counts do not add up, or the slice differs.
        WarehouseUnavailable: files cannot be read or written.
    """
    base = plan.base
    if plan.reduction is None:
        return UnchangedView(base, plan.java)
    spark = job.steps.spark_to_join(job.input_bytes)
    own = session_of(spark)
    recipe = recipe_of(own, job.name, job.query, job.inputs)
    refuse_changed(job.name, base.layout, replace(base.layout, recipe=recipe))
    java = java_of(spark)
    if java is None or java != plan.java:
        was = f"by Java {plan.java}" if plan.java else "by a Java that is not known"
        return MissingFeed(
            f"it was computed {was}, and this is Java {java}, whose texts may differ"
        )
    attempt = f"data-{uuid.uuid4().hex[:12]}"
    temporary, folders = f"{attempt}-reduced", (f"{attempt}-kept", f"{attempt}-view")
    try:
        with job.phase("reduce"):
            changes = _changes(job, plan)
            if isinstance(changes, MissingFeed):
                return changes
            selected = _Reducer(job, plan, changes, temporary).run(plan.reduction)
        with job.phase("join"):
            added = _joined(job, own, plan, changes, selected, folders[1])
        affected = _affected(job.inputs, base.layout, changes)
        with job.phase("rewrite"):
            computed = _applied(job, plan, affected, added, folders)
        with job.phase("check"):
            files = computed.files if isinstance(computed, NextVersion) else base.files
            slice_proof.check(job, own, files, base.layout, plan.slice)
    except BaseException:
        for folder in folders:
            with contextlib.suppress(Exception):
                job.store.remove(job.name, folder)
        raise
    finally:
        with contextlib.suppress(Exception):
            job.store.remove(job.name, temporary)
    return computed


def _form(one: PinnedInput, used: frozenset[str]) -> SelectedRows:
    return SelectedRows(one.layout, tuple(n for n in one.layout.data_names if n in used))


def _types(layout: Layout | ViewLayout) -> dict[str, str]:
    """Return the Spark type of each data column."""
    declared = zip(layout.data_names, layout.data_ddl, strict=True)
    return {name: ddl.rsplit(" ", 1)[1] for name, ddl in declared}


def _edges(
    resolved: ResolvedColumns, occurrences: Sequence[join_graph.OccurrenceFacts]
) -> tuple[join_graph.JoinEdge, ...]:
    return join_graph.edges(resolved.equalities, occurrences)


def _changes(job: ViewJob, plan: MaintainableView) -> list[InputChanges] | MissingFeed:
    """Return the changes of each occurrence."""
    all_changes = []
    for one, form in zip(job.inputs, plan.forms, strict=True):
        changes = changes_in(plan.feeds[one.name], form)
        if isinstance(changes, MissingFeed):
            return changes
        all_changes.append(changes)
    return all_changes


def _affected(
    inputs: Sequence[PinnedInput], layout: ViewLayout, changes: Sequence[InputChanges]
) -> AffectedLineage:
    """Return which rows of the view were made of a changed row."""
    names = iter(layout.lineage_names)
    parts = [tuple(next(names) for _ in one.lineage) for one in inputs]
    return AffectedLineage(
        tuple((part, one.keys.keys) for part, one in zip(parts, changes, strict=True))
    )


class _Reducer:
    """Carries out a `Reduction`; keeps the messages that were sent."""

    def __init__(
        self, job: ViewJob, plan: MaintainableView, changes: Sequence[InputChanges], folder: str
    ) -> None:
        """`folder`: of the view's table, for the selected rows."""
        self._job, self._plan, self._changes, self._folder = job, plan, changes, folder
        self._sent: dict[EdgeMessage, CodeSet] = {}

    def run(self, reduction: Reduction) -> list[list[DataFile] | None]:
        """Return the files of the selected rows of each occurrence; None: it is needed whole."""
        selected: list[list[DataFile] | None] = [None] * len(self._job.inputs)
        for step in reduction.steps:
            match step:
                case ChangesStep(sends):
                    columns = sends.edge.of(sends.sender)
                    self._send(sends, self._changes[sends.sender].codes(columns))
                case ProbeStep():
                    self._probe(step)
                case SelectionStep():
                    selected[step.occurrence] = self._select(step)
        return selected

    def _send(self, message: EdgeMessage, code_set: CodeSet) -> None:
        self._sent[message] = code_set

    def _conditions(self, end: int, messages: Sequence[EdgeMessage]) -> list[CodeCondition]:
        return [CodeCondition(m.edge.of(end), self._sent[m]) for m in messages]

    def _probe(self, step: ProbeStep) -> None:
        sender, columns = step.sends.sender, step.sends.edge.of(step.sends.sender)
        code_set = semi_join.matching_codes(
            self._job.steps,
            self._job.inputs[sender].files,
            self._plan.forms[sender],
            self._conditions(sender, step.messages),
            columns,
        )
        if step.has_changes:
            code_set = CodeSet.of(code_set.codes, self._changes[sender].codes(columns).codes)
        self._send(step.sends, code_set)

    def _select(self, step: SelectionStep) -> list[DataFile]:
        job, end = self._job, step.occurrence
        files = semi_join.select(
            job.steps,
            DataFolder(job.store, job.name, f"{self._folder}/{end}"),
            job.inputs[end].files,
            self._plan.forms[end],
            self._conditions(end, step.messages),
            self._changes[end].keys,
        )
        if step.sends:
            self._send_on(step, files)
        return files

    def _send_on(self, step: SelectionStep, files: Sequence[DataFile]) -> None:
        """Send values of selected rows, but for those that came along the same edge alone."""
        form = self._plan.forms[step.occurrence]
        bits = {message.edge: 1 << i for i, message in enumerate(step.messages)}
        parts: dict[EdgeMessage, list[np.ndarray]] = {message: [] for message in step.sends}
        for file in files:
            for batch in read_batches(file.uri, form.schema):
                found_by = batch.column(FOUND_BY).to_numpy()
                changed = batch.column(CHANGED).to_numpy(zero_copy_only=False)
                for message in step.sends:
                    others = found_by & ~np.int32(bits.get(message.edge, 0))
                    rows = batch.filter(pa.array(changed | (others != 0)))
                    columns = message.edge.of(step.occurrence)
                    row_codes, present = codes([rows.column(name) for name in columns])
                    parts[message].append(row_codes[present])
        for message, some in parts.items():
            self._send(message, CodeSet.of(*some))


def _joined(
    job: ViewJob,
    own: SparkSession,
    plan: MaintainableView,
    changes: Sequence[InputChanges],
    selected: Sequence[list[DataFile] | None],
    folder: str,
) -> list[DataFile]:
    """Evaluate the query over the selected rows; return files of what was made of changed ones.

    `folder`: of the view's table, for the result.
    """
    if any(files == [] for files in selected):
        return []  # an inner join with nothing
    rows = []
    inputs = zip(job.inputs, plan.forms, changes, selected, strict=True)
    for one, form, changed, files in inputs:
        if files is not None:
            rows.append(rows_of(own, files, form.joined_schema))
        else:
            flagged = form.flagged(changed.keys)
            rows.append(rows_of(own, one.files, form.whole, then=flagged))
    recipe = plan.base.layout.recipe
    result, layout = evaluated_over(
        own, job.name, job.query, recipe, job.inputs, rows, only_flagged=True
    )
    refuse_changed(job.name, plan.base.layout, layout)
    into = DataFolder(job.store, job.name, folder)
    with query_errors(job.name):
        return write_rows(into, result, layout)


def _applied(
    job: ViewJob,
    plan: MaintainableView,
    affected: AffectedLineage,
    added: Sequence[DataFile],
    folders: tuple[str, str],
) -> Computed:
    """Remove the affected rows, add the new ones and write the feed.

    Raises:
        ProofFailed: a lineage occurs twice or is not affected, or rows were lost.
    """
    base, store, name, layout = plan.base, job.store, job.name, plan.base.layout
    _check_affected(name, added, layout, affected)
    folder = DataFolder(store, name, folders[0])
    removed = view_rows.remove(job.steps, folder, base.files, layout, affected)
    gone = sum(f.rows for f in removed.gone)
    stayed = sum(f.rows for f in (*removed.kept, *removed.rewritten))
    if base.rows - gone != stayed:
        raise _not_whole(name, f"{counted(base.rows, 'row')} − {gone:,} are not {stayed:,}")
    changes = _feed(job, base, removed, added)
    if not any(changes.counts.values()):
        for path in folders:
            store.remove(name, path)
        return UnchangedView(base, plan.java)
    store.remove(name, folders[0], BEFORE_FOLDER)
    new = (*removed.rewritten, *added)
    return NextVersion(
        base,
        layout,
        new,
        removed.kept,
        removed.replaced,
        changes,
        folders,
        CheckedRows.SLICE,
        plan.java,
    )


def _feed(
    job: ViewJob, base: ViewSnapshot, removed: RemainingFiles, added: Sequence[DataFile]
) -> VersionFeed:
    """Write the feed: affected rows before and after, paired by lineage."""
    store, name, layout = job.store, job.name, base.layout
    both = (*removed.gone, *added)
    if sum(f.size for f in both) > PAIRED_BYTES_MAX or (
        job.steps.size_of_rows(both) > PAIRED_BYTES_MAX
    ):
        spark = job.steps.spark_to_join(job.input_bytes)
        version = base.version + 1
        return pairing.write_changes(spark, store, name, version, layout, removed.gone, added)
    before, after = (view_rows.read_rows(files, layout) for files in (removed.gone, added))
    for rows, files in ((before, removed.gone), (after, added)):
        if len(rows) != sum(f.rows for f in files) or not have_own_lineage(rows, layout):
            raise _not_whole(name, "a lineage is null or occurs twice")
    pairs = view_rows.paired(before, after, layout)
    counts = pairs.counts
    if counts["insert"] - counts["delete"] != len(after) - len(before):
        raise _not_whole(name, f"{len(before):,} and {len(after):,} rows give {counts}")
    if not any(counts.values()):
        return VersionFeed(None, (), counts)
    return view_rows.write_feed(store, name, base.version + 1, pairs, layout)


def _check_affected(
    name: str, added: Sequence[DataFile], layout: ViewLayout, affected: AffectedLineage
) -> None:
    """Raise ProofFailed if a new row was made of no changed row: it may be in the view already."""
    lineage = pa.schema([layout.file_schema.field(n) for n in layout.lineage_names])
    for file in added:
        for batch in read_batches(file.uri, lineage):
            if not affected.holds(batch).all():
                raise _not_whole(name, "a new row was made of no changed row")


def _not_whole(name: str, what: str) -> ProofFailed:
    return ProofFailed(
        f"The new version of the view does not add up: {what}.", where=name, remedy=REPORT
    )
