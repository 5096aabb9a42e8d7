"""`status` and `history`: what is published, how fresh it is, how it came to be and how sure it is.

From the Delta log and the notes of earlier refreshes; no Spark, no source. The fields are stable:
jobs read them. A fragment that was never published has the same fields, all of them null.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from warehouse_agent import publish
from warehouse_agent.configure import Fragment, WarehouseConfig, select
from warehouse_agent.each import each, published
from warehouse_agent.remember import checked
from warehouse_agent.report import fingerprint_kind, miss_probability, years_until_missed
from warehouse_agent.store import PRIVATE, Store

INTERVAL_S = 86_400.0  # between refreshes, assumed where there were not two
# What a version says of itself to Driftline alone.
_OURS = ("layout", "clock", "changes_files")


@dataclass(frozen=True, slots=True)
class Status:
    """What `status` says of a fragment. Times are ISO 8601, UTC; `bytes` is of its data files."""

    name: str
    version: int | None = None
    rows_total: int | None = None
    as_of: str | None = None
    checked_at: str | None = None
    published_at: str | None = None
    consistency: str | None = None
    proof: str | None = None
    fingerprint: str | None = None
    miss_probability: float | None = None
    years_until_a_change_is_missed: float | None = None
    files: int | None = None
    bytes: int | None = None

    def text(self) -> str:
        """For people."""
        if self.version is None:
            return f"{self.name}: nothing published yet"
        years = self.years_until_a_change_is_missed
        compared = "equal to the source" if years else "all of it equal to the source the last time"
        missed = f", a change missed once in {years:.0e} years" if years else ""
        return (
            f"{self.name}: version {self.version}, {self.rows_total:,} rows, {compared} "
            f"as of {self.as_of} ({self.consistency}, proof: {self.proof}), checked "
            f"{self.checked_at}{missed}"
        )


def status(
    config: WarehouseConfig, names: Sequence[str], all_: bool, *, as_json: bool
) -> list[int]:
    """What is published of each fragment."""
    store = Store(config.path)

    def one(fragment: Fragment) -> None:
        found = status_of(store, fragment.name)
        print(json.dumps(asdict(found)) if as_json else found.text(), flush=True)

    return each(select(config, names, all_ or not names), one, as_json=as_json, command="status")


def status_of(store: Store, name: str) -> Status:
    """Raises WarehouseUnavailable."""
    snapshot = publish.head(store, name)
    if snapshot is None:
        return Status(name)
    meta = snapshot.meta
    found = checked(store.read_json(PRIVATE, "fragments", f"{name}.json"), snapshot)
    interval = interval_s([str(v["published_at"]) for v in publish.versions(store, name)])
    changed = sum(int(meta[f"rows_{kind}"]) for kind in ("inserted", "updated", "deleted"))
    recipe = snapshot.layout.recipe
    probability = None if meta["proof"] == "part" else miss_probability(changed, recipe)
    return Status(
        name=name,
        version=snapshot.version,
        rows_total=snapshot.rows,
        as_of=found.as_of,
        checked_at=found.checked_at,
        published_at=meta["published_at"],
        consistency=found.consistency,
        proof=meta["proof"],
        fingerprint=fingerprint_kind(recipe),
        miss_probability=probability,
        years_until_a_change_is_missed=(
            None if probability is None else years_until_missed(probability, interval)
        ),
        files=len(snapshot.files),
        bytes=sum(f.size for f in snapshot.files),
    )


def interval_s(published: Sequence[str]) -> float:
    """The mean time in seconds between versions, newest first."""
    times = [datetime.fromisoformat(t) for t in published]
    if len(times) < 2:
        return INTERVAL_S
    return max((times[0] - times[-1]).total_seconds() / (len(times) - 1), 1.0)


def history(config: WarehouseConfig, name: str, limit: int, *, as_json: bool) -> None:
    """The versions of a fragment, newest first."""
    store = Store(config.path)
    fragment = select(config, [name], False)[0]
    published(store, fragment.name)
    for meta in publish.versions(store, fragment.name)[:limit]:
        if as_json:
            print(json.dumps({k: v for k, v in meta.items() if k not in _OURS}))
        else:
            print(
                f"version {meta['version']}: {meta['published_at']}, {meta['rows']:,} rows, "
                f"+{meta['rows_inserted']:,} ~{meta['rows_updated']:,} -{meta['rows_deleted']:,}, "
                f"{meta['consistency']}, as of {meta['as_of']}"
            )
