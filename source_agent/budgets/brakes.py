"""Decide how long a read is held back for the database's sake, for two reasons, without I/O.

The database answers more slowly than it did (`feedback`), or others need the processors of its
machine (`crowding`); of both the longer time counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from source_agent.budgets.crowding import Rests
from source_agent.budgets.feedback import HOLD_S_MAX, Feedback, HoldLimit
from source_agent.engines.interface import DatabaseTime


@dataclass(slots=True)
class Brakes:
    """Decide for one read. `rests`: None where the database has a machine of its own.

    `limit`: of the whole exchange.
    """

    feedback: Feedback
    rests: Rests | None
    limit: HoldLimit

    def note(self, spent: DatabaseTime, rows: int = 0) -> float:
        """Return the seconds to hold the read back now, after so many rows; mostly 0."""
        rest_s = 0.0 if self.rests is None else self.rests.note(spent, rows)
        # Rows wait for a reader that rests for long, so its database looks fast.
        slow_s = self.feedback.note(spent) if rest_s < spent.read_s or not rest_s else 0.0
        held_s = self.limit.take(min(max(rest_s, slow_s), HOLD_S_MAX))
        if self.rests is not None and rest_s:
            self.rests.took(held_s)
        return held_s
