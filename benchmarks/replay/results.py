"""What a replay found, commit by commit: records as lines of JSON, and what they come to.

Bulk commits change more than 2 % of the rows; a handful of them carries most of the bytes, so the
two classes are summed apart. Everything here is arithmetic on recorded lines, so that tables and
pictures are made again without a replay.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

# TCP, mutual TLS, HTTP/2 and packet headers of a refresh that finds no change: bytes on the link of
# tests/wan/link.py less its messages, median of 16 (7,943 to 8,456), with and without 100 ms and 10
# Mbit/s; such a refresh is also in `docs/results/refreshes.md` ("The pair"). Headers of further
# packets, 4 % of what is shipped in bulk, are left out, mostly in favour of full copies.
CONNECTION_BYTES = 8_100
BULK_SHARE = 0.02
WARM_AFTER = 10  # refreshes
NEAR = 0.1


@dataclass(frozen=True, slots=True)
class Record:
    """One refresh. `rows` are after it; `expected` is low, median, high of the changed rows.

    Attributes:
        sent_bytes, received_bytes: of messages and their framing, up and down.
        frame_bytes: of the frames among what was received.
        idle_bytes: of the same opening, had nothing changed.
        bare_bytes: of an opening without cells, had nothing changed.
        modelled_bytes: what the model of costs says of the actual d; None where it says nothing.
        load_bytes: of the frames of a full copy, compressed as a load ships it.
        csv_bytes: of the whole table as CSV.
    """

    commit: int
    at: str
    rows: int
    inserted: int
    updated: int
    deleted: int
    expected: tuple[int, int, int] | None
    sent_bytes: int
    received_bytes: int
    frame_bytes: int
    round_trips: int
    method: str
    scans: int
    idle_bytes: int
    bare_bytes: int
    modelled_bytes: int | None
    load_bytes: int
    floor_bytes: int = 0
    csv_bytes: int = 0

    @property
    def changed(self) -> int:
        return self.inserted + self.updated + self.deleted

    @property
    def bytes(self) -> int:
        return self.sent_bytes + self.received_bytes

    @property
    def is_bulk(self) -> bool:
        return self.changed > BULK_SHARE * self.rows


def write(records: Iterable[Record], file: Path) -> Iterator[Record]:
    """Writes each as it passes."""
    with file.open("w") as out:
        for record in records:
            out.write(json.dumps(asdict(record), separators=(",", ":")) + "\n")
            yield record


def read(file: Path) -> list[Record]:
    with file.open() as lines:
        bodies = [json.loads(line) for line in lines]
    return [Record(**body | {"expected": _interval(body["expected"])}) for body in bodies]


def _interval(numbers: list[int] | None) -> tuple[int, int, int] | None:
    return None if numbers is None else (numbers[0], numbers[1], numbers[2])


def summary(records: Sequence[Record], connection_bytes: int = CONNECTION_BYTES) -> str:
    """Three tables in markdown."""
    return "\n\n".join(
        (
            _against_floor(records, connection_bytes),
            _exchanges(records),
            _totals(records, connection_bytes),
        )
    )


def _against_floor(records: Sequence[Record], connection_bytes: int) -> str:
    head = (
        "| commits | refreshes | changed rows | floor | messages | less a no-change refresh each "
        "| ÷ floor | less one that predicted nothing | ÷ floor | connections |"
    )
    lines = [head, "|---|---|---|---|---|---|---|---|---|---|"]
    classes = {"bulk (> 2 % of the rows)": True, "the others": False}
    for title, is_bulk in classes.items():
        chosen = [r for r in records if r.is_bulk is is_bulk]
        if not chosen:
            continue
        floor = sum(r.floor_bytes for r in chosen)
        idle = sum(r.bytes - r.idle_bytes for r in chosen)
        bare = sum(r.bytes - r.bare_bytes for r in chosen)
        lines.append(
            f"| {title} | {len(chosen):,} | {sum(r.changed for r in chosen):,} | {readable(floor)} "
            f"| {readable(sum(r.bytes for r in chosen))} "
            f"| {readable(idle)} | **{idle / max(floor, 1):.2f}** "
            f"| {readable(bare)} | **{bare / max(floor, 1):.2f}** "
            f"| {readable(connection_bytes * len(chosen))} |"
        )
    return "\n".join(lines)


def _exchanges(records: Sequence[Record]) -> str:
    warm = records[WARM_AFTER:]
    trips = Counter(min(r.round_trips, 3) for r in warm)
    told = [(r.expected, r.changed) for r in records if r.expected is not None]
    inside = [low <= d <= high for (low, _, high), d in told]
    errors = [abs(r.modelled_bytes - r.bytes) / r.bytes for r in warm if r.modelled_bytes]
    methods = Counter(r.method for r in records)
    scans, d = [r.scans for r in records], [r.changed for r in records]
    lines = [
        "| what | found |",
        "|---|---|",
        f"| 1 / 2 / 3 and more round trips, after {WARM_AFTER} refreshes | "
        + " / ".join(share([n == trip for n in trips.elements()]) for trip in (1, 2, 3))
        + " |",
        f"| methods | {', '.join(f'{name} {count:,}' for name, count in methods.most_common())} |",
        f"| scans: mean, greatest | {_mean(scans):.2f}, {max(scans)} |",
        f"| d: median, mean, greatest | {median(d):g}, {_mean(d):.1f}, {max(d):,} |",
        f"| d within the 80 % interval | {share(inside)} of {len(told):,} |",
    ]
    if errors:
        lines.append(
            f"| modelled bytes given d, after {WARM_AFTER}: error, median and within 10 % "
            f"| {median(errors):.1%}, {share([e <= NEAR for e in errors])} of {len(errors):,} |"
        )
    return "\n".join(lines)


def _totals(records: Sequence[Record], connection_bytes: int) -> str:
    connections = connection_bytes * len(records)
    driftline = sum(r.bytes for r in records) + connections
    rows = {
        "driftline": driftline,
        "of which connections": connections,
        "of which openings and ends (a no-change refresh, none predicted)": sum(
            r.bare_bytes for r in records
        ),
        "floor": sum(r.floor_bytes for r in records),
        "full copy each time, compressed": sum(r.load_bytes for r in records) + connections,
        "full copy each time, raw CSV": sum(r.csv_bytes for r in records) + connections,
    }
    lines = [f"| all {len(records):,} refreshes | bytes | ÷ driftline |", "|---|---|---|"]
    lines += [
        f"| {name} | {readable(size)} | {size / driftline:.2f} |" for name, size in rows.items()
    ]
    return "\n".join(lines)


def readable(size: float) -> str:
    for unit, word in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.3g} {word}"
    return f"{size:.0f} B"


def share(flags: Sequence[bool]) -> str:
    return f"{_mean(flags):.1%}"


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / max(len(numbers), 1)
