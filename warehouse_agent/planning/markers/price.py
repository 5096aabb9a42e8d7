"""The price of a refresh by a marker: the rows behind the mark, and the keys of all rows. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from warehouse_agent.planning import choice as plan
from warehouse_agent.planning.candidates import Candidate, Known, priced
from warehouse_agent.planning.choice import NAMES, Method
from warehouse_agent.planning.markers.state import MarkerState
from warehouse_agent.planning.sketch_size import Sketch

# Seconds of the source for a key, over those for a row: measured on PostgreSQL, where keys are read
# and sketched, and where the database adds up their hashes (benchmarks/RESULTS.md).
KEY_SHARE: Final = 0.75
HASHED_SHARE: Final = 0.15


def by_marker(
    known: Known, marker: MarkerState, sketch: Sketch, changed: int
) -> tuple[Candidate, ...]:
    """Return a refresh by the marker that finds nothing, and one that finds `changed` rows.

    sketch: of our keys.
    """
    strata = plan.opening_bytes(known.partition, sketch.cells)
    fixed = plan.REPLY_BYTES + plan.opening_bytes(known.partition, known.partition.ranges)
    fixed += strata + sketch.bytes_sent + plan.SKETCH_BYTES + len(marker.mark) * 2
    share = HASHED_SHARE if marker.hashes else KEY_SHARE
    line = known.line
    if marker.keys_per_s is not None:
        line, share = replace(line, rows_per_s=marker.keys_per_s), 1.0
    found = []
    for method, d in ((None, 0), (Method.SINCE, changed)):
        came = d + marker.again
        size = fixed + int(known.prices.changes(came))
        what = NAMES[method] if method is not None else "nothing changed"
        spent = priced(known, what, method, size, 1, 1, known.theirs + came, d)
        took = round(line.seconds(size, 1, known.theirs * share + came), 2)
        found.append(replace(spent, exchange_seconds=took))
    return tuple(found)
