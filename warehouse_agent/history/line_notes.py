"""Notes of the line to a source: how fast it was measured, and the limits of the source's DBA.

The next refresh plans with them. If they are lost, it costs more, and its result is the same.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Self

from driftline.wire.negotiation import BRIEF

from warehouse_agent.config import Source
from warehouse_agent.json_values import number
from warehouse_agent.planning.network import Line
from warehouse_agent.storage.store import PRIVATE, Store, json_of

if TYPE_CHECKING:  # `status` reads these notes, and needs neither gRPC nor messages
    from driftline import wire_pb2 as pb

    from warehouse_agent.transport.channel import SourceChannel, Stream

RTT_DAYS = 7  # between measurements, each of which opens a connection


@dataclass(frozen=True, slots=True)
class LineNotes:
    """The notes of the line to a source, at one address; None: not noted.

    They lie in `_driftline/sources/NAME.json`, and may be lost or damaged at any time.

    Attributes:
        rtt_s: the time of a round trip, measured at `rtt_at`, in seconds since 1970.
        bytes_per_s: measured, a mean that forgets earlier ones.
        rows_per_s_max, bytes_per_s_max: the limits of the source's DBA.
        others: what this release does not know, as JSON.
    """

    address: str
    rtt_s: float | None = None
    rtt_at: float | None = None
    bytes_per_s: float | None = None
    rows_per_s_max: float | None = None
    bytes_per_s_max: float | None = None
    others: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, store: Store, source: Source) -> Self:
        """Return what is noted of the source at its present address."""
        notes = cls._from(store.read(*_place(source)) or b"", source)
        _MEASURED[store.root, source.name] = notes.rtt_at or 0.0
        return notes

    @classmethod
    def _from(cls, data: bytes, source: Source) -> Self:
        body = json_of(data)
        if body.get("address") != source.address:
            return cls(source.address)
        numbers = {name: number(body, name) for name in _LINE_NUMBERS}
        others = {k: v for k, v in body.items() if k != "address" and k not in _LINE_NUMBERS}
        return cls(source.address, **numbers, others=others)

    @classmethod
    def change(cls, store: Store, source: Source, change: Callable[[Self], Self]) -> None:
        """Write what `change` makes of the notes: several runs and commands do so at once.

        Raises:
            WarehouseUnavailable: they cannot be written.
        """

        def changed(data: bytes) -> bytes | None:
            before = cls._from(data, source)
            return None if (after := change(before)) == before else after._encoded()

        store.change(changed, *_place(source))

    def _encoded(self) -> bytes:
        numbers = {name: getattr(self, name) for name in _LINE_NUMBERS}
        said = {name: one for name, one in numbers.items() if one is not None}
        return json.dumps({**self.others, **said, "address": self.address}).encode()


def _place(source: Source) -> tuple[str, ...]:
    return (PRIVATE, "sources", f"{source.name}.json")


# When the round trip to a source of a warehouse was measured, as this process read it last.
_MEASURED: dict[tuple[str, str], float] = {}
_LINE_NUMBERS = tuple(
    one.name for one in fields(LineNotes) if one.name not in {"address", "others"}
)


def line(
    store: Store, source: Source, rows_per_s: float | None, features: Collection[str] = ()
) -> Line:
    """Return the line to a source as it was last measured, or a usual one.

    Neither rate is above the limit of the DBA that the source last described.

    Args:
        rows_per_s: how fast the source read the relation, by the notes of its fragment.
        features: of the source, as far as it was asked.
    """
    noted, usual = LineNotes.read(store, source), Line()
    return Line(
        noted.rtt_s or usual.rtt_s,
        min(noted.bytes_per_s or usual.bytes_per_s, noted.bytes_per_s_max or math.inf),
        source.objective,
        min(rows_per_s or usual.rows_per_s, noted.rows_per_s_max or math.inf),
        BRIEF in features,
    )


def note_line(store: Store, link: SourceChannel, stream: Stream) -> None:
    """Note the byte rate, averaged with the noted one because lines are noisy, and, once in
    RTT_DAYS, the time of a round trip.

    Raises:
        WarehouseUnavailable: the note cannot be written.
    """
    rate, now = stream.bytes_per_s, time.time()
    if (measured := _MEASURED.get((store.root, link.source.name))) is None:
        measured = LineNotes.read(store, link.source).rtt_at or 0.0
    # A measurement in the future has the time of a wrong clock.
    is_fresh = 0 <= now - measured < RTT_DAYS * 86_400
    if is_fresh and rate is None:
        return
    rtt_s = None if is_fresh else link.round_trip_s()

    def measured_now(before: LineNotes) -> LineNotes:
        noted = before
        if rate is not None:
            mean = (before.bytes_per_s + rate) / 2 if before.bytes_per_s else rate
            noted = replace(noted, bytes_per_s=mean)
        return noted if rtt_s is None else replace(noted, rtt_s=rtt_s, rtt_at=now)

    LineNotes.change(store, link.source, measured_now)


def note_limits(store: Store, source: Source, description: pb.Description) -> None:
    """Note the limits of the source's DBA if they changed.

    Raises:
        WarehouseUnavailable: the note cannot be written.
    """
    rows, size = description.rows_per_second or None, description.bytes_per_second or None

    def limited(before: LineNotes) -> LineNotes:
        return replace(before, rows_per_s_max=rows, bytes_per_s_max=size)

    LineNotes.change(store, source, limited)
