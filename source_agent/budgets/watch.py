"""A database that is busy, told from one that is dead, while another thread waits for it.

Three answers, in this order. As long as something comes (a row, bytes, the end of a statement) it
lives. When nothing has come for PROBE_AFTER_S its server is asked whether it answers somebody new;
one that does not, twice, is dead. The second time it has as long as a connection may take, because
the server's logins may be slow. One that answers may be busy, with a sort or a filter that finds
little, for `silence_s`; then it counts as dead as well, because a single backend that has stopped
cannot be told from one that computes.

What is waited for beside the database (a budget, the client, our own work) is not counted: the
watch runs only within `waiting`.

Rejected: asking a second session what the server says of ours (`pg_stat_activity`). It takes one
of the role's connections, and says `active` of a backend that has stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from driftline.errors import DatabaseUnavailable

from source_agent.engines.interface import Limits, Session

PROBE_AFTER_S = 8.0  # of silence; a heartbeat later, and two probes, is below 30 s by default
PROBE_S = 4.0  # for the first probe, and the least for the second


class Watch:
    """Watches one session from one other thread."""

    def __init__(
        self,
        session: Session,
        limits: Limits,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session, self._silence_s = session, limits.silence_s
        self._connect_s = limits.connect_s
        self._clock = clock
        self._since: float | None = None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around each call of the session, by the thread that makes it."""
        self._since = self._clock()
        try:
            yield
        finally:
            self._since = None

    @property
    def silent_s(self) -> float:
        """Return for how long the database has owed us something; 0 if nobody waits for it."""
        since = self._since
        return 0.0 if since is None else self._clock() - max(since, self._session.pulse.at)

    def dead(self) -> DatabaseUnavailable | None:
        """Return why the database is given up; None: it is not. May take as long as two probes."""
        silent_s = self.silent_s
        if silent_s >= self._silence_s:
            return DatabaseUnavailable(
                f"The database has delivered nothing for {silent_s:.0f} s, though a statement runs"
                " (database.silence_timeout_s).",
                remedy="Find out what the agent's session waits for. Raise silence_timeout_s where"
                " a statement needs longer before its first row.",
            )
        if silent_s < PROBE_AFTER_S:
            return None
        probes = PROBE_S, max(PROBE_S, self._connect_s)
        if any(self._session.answers(within_s) for within_s in probes) or not self.silent_s:
            return None
        return DatabaseUnavailable(
            f"The database has delivered nothing for {self.silent_s:.0f} s, and its server answers"
            " no new connection.",
            remedy="Check that the server runs and can be reached, then run the command again.",
        )
