"""Add up the published values of a fragment, for a receipt whose total the DBA can recompute.

The values are totalled as they are read; `verify` says if they are what was proven.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from driftline.errors import UsageError
from driftline.rows.digests import Digest, Salt
from driftline.rows.fingerprints import FRAGMENT_KEY_BYTES

from warehouse_agent.config import Fragment, WarehouseConfig, select
from warehouse_agent.history.notes import Notes
from warehouse_agent.planning.marker_state import MarkerAudit
from warehouse_agent.runs.each_fragment import published
from warehouse_agent.spark import session
from warehouse_agent.spark.executors import failures, mistake
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import Snapshot
from warehouse_agent.table_maintenance.file_checks import check_files, check_rows
from warehouse_agent.tasks import proof
from warehouse_agent.tasks.steps import StepLog, Steps


@dataclass(frozen=True, slots=True)
class PublishedTotal:
    """The total of the values of a version.

    Attributes:
        version: whose values they are.
        fragment_key: a key of this total alone; nobody learns that of the fragment.
        audit: the last one of the marker by which the version was proven; None: there is none.
    """

    fragment: Fragment
    version: Snapshot
    digest: Digest
    fragment_key: bytes
    salt: Salt
    audit: MarkerAudit | None


def published_total(config: WarehouseConfig, store: Store, name: str) -> PublishedTotal:
    """Add up the published values of a fragment.

    Raises:
        UsageError: it is a view, which no relation of a source equals.
        WarehouseUnavailable: files are missing, or have not all rows of the version.
    """
    if name in config.views:
        raise UsageError(
            f"{name} is a view, and no relation of a source has its rows: there is no receipt.",
            remedy=f"`driftline verify {name}` computes it again; ask for receipts of what it"
            f" reads: {', '.join(dict.fromkeys(config.views[name].inputs))}.",
        )
    fragment = select(config, [name], False)[0]
    snapshot = published(store, fragment.name)
    check_files(store, fragment.name, snapshot)
    log = StepLog(phases=["receipt"])
    steps = Steps.of(config, session.DeferredSession.of(config), log, store)
    one_off, salt = secrets.token_bytes(FRAGMENT_KEY_BYTES), Salt.fresh()
    try:
        digest = proof.values_digest(steps, snapshot.files, snapshot.layout, one_off, salt)
    except failures() as problem:
        raise mistake(problem, fragment.name) from problem
    check_rows(fragment.name, snapshot, digest.count)
    audit = Notes.read(store, fragment.name).marking(snapshot).audit
    return PublishedTotal(fragment, snapshot, digest, one_off, salt, audit)
