"""Tell a busy database from a dead one while another thread waits for it.

While anything arrives (a row, bytes, the end of a statement) the database is alive. After
PROBE_AFTER_S of silence its server is probed with a new connection; after two failed probes it is
dead. The second may take as long as a connection, because logins may be slow. A server that answers
may be busy for `silence_s`; then it counts as dead too, because a stopped backend looks like one
that computes. Only time within `waiting` counts, not waits for a budget or the client.

Rejected: asking the server about our session (`pg_stat_activity`). That takes one of the role's
connections, and reports a stopped backend as `active`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from driftline.errors import OPEN, DatabaseUnavailable

from source_agent.engines.interface import Limits, Session

PROBE_AFTER_S = 8.0  # of silence; a heartbeat later, and two probes, is below 30 s by default
PROBE_S = 4.0  # for the first probe, and the least for the second


class SessionWatch:
    """Watches one session from one other thread."""

    def __init__(
        self, session: Session, limits: Limits, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._session, self._limits, self._clock = session, limits, clock
        self._since: float | None = None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Measure the silence during one call of the session; use it in the calling thread."""
        self._since = self._clock()
        try:
            yield
        finally:
            self._since = None

    @property
    def silent_s(self) -> float:
        """Seconds for which an awaited database has delivered nothing; 0 if nobody waits."""
        since = self._since
        return 0.0 if since is None else self._clock() - max(since, self._session.pulse.at)

    def dead(self) -> DatabaseUnavailable | None:
        """Return the error if the database is dead, else None. May take two probes."""
        silent_s = self.silent_s
        if silent_s >= self._limits.silence_s:
            return DatabaseUnavailable(
                f"The database has delivered nothing for {silent_s:.0f} s, although a statement"
                " runs (database.silence_timeout_s).",
                remedy="Find out what the agent's session waits for. Raise"
                " database.silence_timeout_s if a statement needs longer before its first row.",
                abroad=OPEN,
            )
        if silent_s < PROBE_AFTER_S:
            return None
        probes = PROBE_S, max(PROBE_S, self._limits.connect_s)
        if any(self._session.answers(within_s) for within_s in probes) or not self.silent_s:
            return None
        return DatabaseUnavailable(
            f"The database has delivered nothing for {self.silent_s:.0f} s, and its server answers"
            " no new connection.",
            remedy="Check that the server runs and can be reached, then run the command again.",
            abroad=OPEN,
        )
