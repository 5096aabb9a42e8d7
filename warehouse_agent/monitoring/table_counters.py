"""Counters of a table: a fold over its history of refreshes, from the first line to the newest.

Whatever is added line by line is the same as what a whole history gives. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Final

from driftline.errors import BY_CODE

from warehouse_agent.config import Proof, Require
from warehouse_agent.history.history_lines import FailureLine, HistoryLine, SuccessLine, moment
from warehouse_agent.history.refresh_history import RefreshHistory
from warehouse_agent.history.totals import Bins, Totals

OTHER: Final = "OTHER"  # stands for codes that this release does not know
Mark = tuple[str, ...]  # what tells a line from all others of its history


@dataclass(frozen=True, slots=True)
class TableCounters:
    """Results of all refreshes of a table.

    Attributes:
        totals: of all of them, without distributions, columns and parts of keys.
        attempted, succeeded: when the last one ended, and the last that went well; in seconds
            since 1970, as `as_of` and `exact_as_of`; None: never, or not known.
        as_of: of the last that went well.
        exact_as_of: of the last that went well with one snapshot of all that it read.
        proof: of the last that went well; empty: not known.
        rows: that the table has; None: not known.
        failures: that failed since the last that went well.
        code: of the error of the newest of these; empty: there is none.
        mark: of the newest line; None: there is none, or it does not say.
    """

    totals: Totals = field(default_factory=Totals)
    attempted: float | None = None
    succeeded: float | None = None
    as_of: float | None = None
    exact_as_of: float | None = None
    proof: str = ""
    rows: int | None = None
    failures: int = 0
    code: str = ""
    mark: Mark | None = None

    @classmethod
    def of(cls, history: RefreshHistory) -> TableCounters:
        """Return the counters of a history, or of its newest lines."""
        return cls(_slim(history.folded.whole)).plus(reversed(history.lines))

    def plus(self, lines: Iterable[HistoryLine]) -> TableCounters:
        """Return the counters with newer lines, the oldest first."""
        newer = tuple(lines)
        after = reduce(TableCounters._after, newer, self)
        return replace(after, totals=self.totals.plus(_slim(Totals.of(*newer))))

    def _after(self, line: HistoryLine) -> TableCounters:
        """Return all but the totals with a newer line."""
        if isinstance(line, FailureLine):
            at = self.attempted if line.at is None else line.at.timestamp()
            counts = not line.is_put_off  # which is no failure, and clears none
            return replace(
                self,
                attempted=at,
                failures=self.failures + counts,
                code=known_code(line.code) if counts else self.code,
                mark=mark_of(line),
            )
        ended = None if line.ended is None else line.ended.timestamp()
        as_of = self.as_of if line.as_of is None else _seconds(line.as_of)
        return TableCounters(
            self.totals,
            self.attempted if ended is None else ended,
            self.succeeded if ended is None else ended,
            as_of,
            as_of if is_exact(line) else self.exact_as_of,
            known_proof(line.proof),
            self.rows if line.total is None else line.total,
            mark=mark_of(line),
        )

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads."""
        body = {name: getattr(self, name) for name in _KEPT}
        return {name: value for name, value in body.items() if value} | {
            "totals": self.totals.to_json(),
            "mark": self.mark,
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> TableCounters:
        """Return what `to_json` wrote. Raises ValueError, or another of `history_lines.DAMAGED`."""
        times = {name: body.get(name) for name in _TIMES}
        rows, failures = body.get("rows"), body.get("failures", 0)
        if not all(one is None or isinstance(one, int | float) for one in (*times.values(), rows)):
            raise ValueError(body)
        return cls(
            Totals.from_json(body["totals"]),
            **times,
            proof=known_proof(body.get("proof")),
            rows=rows,
            failures=int(failures),
            code=known_code(code) if (code := str(body.get("code", ""))) else "",
            mark=None if body["mark"] is None else tuple(map(str, body["mark"])),
        )


_TIMES: Final = ("attempted", "succeeded", "as_of", "exact_as_of")
_KEPT: Final = (*_TIMES, "proof", "rows", "failures", "code")


def known_proof(proof: object) -> str:
    """Return a proof; empty for one that this release does not know."""
    return proof if isinstance(proof, str) and proof in {one.value for one in Proof} else ""


def known_code(code: str) -> str:
    """Return the code of an error; OTHER for one that this release does not know."""
    return code if code in BY_CODE else OTHER


def is_exact(line: HistoryLine) -> bool:
    """Return True for a refresh that went well with one snapshot of all that it read."""
    return isinstance(line, SuccessLine) and line.consistency == Require.EXACT.value


def mark_of(line: HistoryLine) -> Mark | None:
    """Return what tells a line from all others of its history; None: it does not say."""
    if line.run is None or line.at is None:
        return None
    end = line.code if isinstance(line, FailureLine) else str(line.version)
    return line.run, line.at.isoformat(), end


def _slim(totals: Totals) -> Totals:
    """Return totals without what metrics do not show, and with codes that are known."""
    failed = dict[str, int]()
    for code, times in totals.failed.items():
        failed[known_code(code)] = failed.get(known_code(code), 0) + times
    none = Bins()
    return replace(
        totals,
        failed=failed,
        took_s=none,
        moved=none,
        changed=none,
        error=none,
        columns={},
        parts={},
    )


def _seconds(text: str) -> float | None:
    try:
        return moment(text).timestamp()
    except (ValueError, OverflowError):
        return None
