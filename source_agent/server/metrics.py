"""Numbers of this agent for Prometheus: what it read, how it spared the database, what it refused.

They are those of the audit, added up since the agent started, and the state of now. Labels are the
names of relations in the DBA's file and codes of docs/errors.md: no client, no SQL, no value. What
an exchange reads of a relation counts when it ends. `driftline.metrics_server` answers, in one
thread, with the time and the rest that it has for each connection.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from driftline.errors import BY_CODE

from source_agent.budgets.audit import AuditEntry

if TYPE_CHECKING:
    from prometheus_client import Metric


class AuditCounters:
    """Sums over the entries of the audit. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: Counter[str] = Counter()
        self._held_s: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()

    def count(self, entry: AuditEntry) -> None:
        """Add one request."""
        with self._lock:
            if entry.rows_read or entry.held_back_s:  # so the relation is one that is served
                self._rows[entry.relation] += entry.rows_read
                # The stubs say that counts are whole.
                self._held_s[entry.relation] += entry.held_back_s  # type: ignore[assignment]
            if entry.outcome in BY_CODE:
                self._refused[entry.outcome] += 1

    def page(self, relations: Iterable[str], *, is_paused: bool, calls: int) -> bytes:
        """Return the numbers in the text format of Prometheus.

        Args:
            relations: names of those that are served now; others have no numbers.
            is_paused: nothing is read now.
            calls: that are answered now.
        """
        from prometheus_client import generate_latest
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        rows = CounterMetricFamily(
            "driftline_source_rows_read", "Rows read from the database.", labels=["relation"]
        )
        held = CounterMetricFamily(
            "driftline_source_held_back_seconds",
            "Seconds for which reads were held back, to spare the database.",
            labels=["relation"],
        )
        refused = CounterMetricFamily(
            "driftline_source_refused",
            "Requests that were refused, or ended, by the code of the error.",
            labels=["reason"],
        )
        with self._lock:
            for name in relations:
                rows.add_metric([name], self._rows[name])
                held.add_metric([name], self._held_s[name])
            for code, times in self._refused.items():
                refused.add_metric([code], times)
        paused = GaugeMetricFamily(
            "driftline_source_paused",
            "1: nothing is read now, because of the pause file or quiet hours.",
            value=float(is_paused),
        )
        running = GaugeMetricFamily(
            "driftline_source_calls", "Calls that are answered now.", value=calls
        )
        return generate_latest(_Collected([rows, held, refused, paused, running]))


class _Collected:
    """What the library calls a collector."""

    def __init__(self, metrics: list[Metric]) -> None:
        self.collect: Callable[[], list[Metric]] = lambda: metrics
