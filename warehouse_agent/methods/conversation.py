"""The warehouse's half of an exchange about one relation (protocol, section 9).

`RelationExchange` sends, receives and counts over an `ExchangeTransport`, so that tests run it
without a network. It sends what all openings have in common, keeps the frames that come, and
returns an `Outcome` at the end of the relation; the methods send what lies between. Nothing here
uses Spark or knows a method.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, Protocol

import numpy as np
from driftline import wire_pb2 as pb
from driftline.arrays import U64, Positions
from driftline.errors import MalformedMessage, SourceUnreachable
from driftline.limits import EXCHANGE_S_MAX
from driftline.reconciliation import named_keys
from driftline.reconciliation.named_keys import KeyMap
from driftline.reconciliation.ranges import Partition
from driftline.relations import derivation_messages, derivations
from driftline.relations.activity_messages import from_message
from driftline.relations.derivations import Derivation
from driftline.rows import frames, key_order
from driftline.rows.columns import join
from driftline.rows.digests import Digest, Salt
from driftline.rows.fingerprints import position_seed
from driftline.rows.key_digests import checksum_hashes, mixed_keys
from driftline.rows.key_order import KeyRange
from driftline.rows.keys import positions, received
from driftline.values.types import Recipe
from driftline.wire.negotiation import CHECKSUM, SINCE, Agreement

from warehouse_agent.planning.choice import Method
from warehouse_agent.planning.marker_state import warnings
from warehouse_agent.planning.tiling import Bounds
from warehouse_agent.report import utc_now
from warehouse_agent.storage.row_security import PolicyDigests
from warehouse_agent.tasks.difference import (
    BelowKeys,
    Difference,
    ListedRows,
    MarkerUse,
    NoDifference,
    Outcome,
)
from warehouse_agent.tasks.digests import Listing
from warehouse_agent.transport.frame_admission import FrameAdmission, StagingRoom
from warehouse_agent.transport.reply_validation import refusal


class ExchangeTransport(Protocol):
    """Transport for one exchange: `channel.Stream`, or a queue in tests."""

    @property
    def agreed(self) -> Agreement:
        """Return the protocol and the features that both sides support."""

    def send(self, request: pb.Request) -> None:
        """Send a request."""

    def receive(self) -> pb.Reply:
        """Return the next reply."""


@dataclass(frozen=True, slots=True)
class ExchangeTerms:
    """Terms of an exchange that do not depend on the method.

    `level` is the zstd level of the frames; `rows_expected` is for progress only; `room` is what
    may be staged, None for no limit; `within` is a tile, by positions or by keys; `derivation` are
    the columns and rows of the relation that `recipe` has, None: all. `marks`: ask for the mark of
    the relation; `audited` is the mark whose misses the source is to name, empty: none.
    """

    relation: str
    recipe: Recipe
    fragment_key: bytes = field(repr=False)
    salt: Salt
    level: int
    rows_expected: int = 0
    room: StagingRoom | None = None
    within: Bounds | None = None
    derivation: Derivation | None = None
    marks: bool = False
    audited: bytes = b""


class RelationExchange:
    """The exchange about one relation of a stream.

    The methods count `round_trips`. `ended` is True once the source has ended this relation, so
    that the next may follow in the stream.
    """

    def __init__(
        self,
        wire: ExchangeTransport,
        terms: ExchangeTerms,
        *,
        keep: Callable[[bytes], None],
        progress: Callable[[pb.Progress], None],
    ) -> None:
        self.terms = terms
        self.round_trips, self.ended = 1, False
        self.admission = FrameAdmission(terms.recipe, terms.salt, room=terms.room)
        self._wire, self._keep, self._progress = wire, keep, progress
        self._shipping = pb.Progress(phase="ship", rows_expected=terms.rows_expected)
        self._ours, self._came, self._frame_bytes = Digest(), Digest(), 0
        self._keys: ShippedKeys | ShippedPositions | None = None
        self._opened_at = self._answered_s = 0.0

    def renew(self) -> None:
        """Begin another exchange about the relation in the same stream, after one that ended.

        Counts begin anew; so does the room for staging, less the frames that came.
        """
        assert self.ended, "an exchange ends before the next one begins"
        if (room := self.terms.room) is not None:
            room = replace(room, staged=room.staged + self._frame_bytes)
            self.terms = replace(self.terms, room=room)
        self.round_trips, self.ended = 1, False
        self.admission = FrameAdmission(self.terms.recipe, self.terms.salt, room=room)
        self._ours, self._came, self._frame_bytes, self._keys = Digest(), Digest(), 0, None
        self._opened_at = self._answered_s = 0.0

    def open(
        self,
        ours: Digest,
        partition: Partition,
        *,
        strata: bytes = b"",
        sketch: pb.Sketch | None = None,
        grouping: pb.Grouping | None = None,
        since: pb.Since | None = None,
    ) -> None:
        """Send the opening; `ours` is the digest of our rows that are compared."""
        self._ours = ours
        terms, agreed, starts = self.terms, self._wire.agreed, partition.starts
        derivation = terms.derivation
        if since is None and terms.marks:
            since = pb.Since(audited=terms.audited)
        opening = pb.Open(
            protocol=agreed.protocol,
            features=(*agreed.features, *_features(terms, grouping, since)),
            relation=terms.relation,
            recipe=terms.recipe.id,
            fragment_key=terms.fragment_key,
            salt=terms.salt.to_bytes(),
            count=ours.count,
            sum=ours.sum_bytes(),
            start_steps=[_wrap(b - a) for a, b in zip((0, *starts), starts, strict=False)],
            shifts=bytes(partition.shifts),
            strata=strata,
            level=terms.level,
            sketch=sketch,
            grouping=grouping,
            **_tile(terms.within),
            since=since,
            derivation=None if derivation is None else derivation_messages.to_message(derivation),
        )
        self._opened_at = monotonic()
        self.send(pb.Request(open=opening))

    def send(self, request: pb.Request) -> None:
        """Send a message of the method."""
        self._wire.send(request)

    def receive(self) -> pb.Reply:
        """Return the next reply that is neither progress nor rows; handle those here.

        The time of the first reply other than progress is noted.

        Raises:
            SourceUnreachable: the exchange has lasted for EXCHANGE_S_MAX.
            DriftlineError: whatever the source refused with, or a broken line, message or frame.
        """
        while True:
            reply = self._wire.receive()
            if self._opened_at and monotonic() - self._opened_at > EXCHANGE_S_MAX:
                raise SourceUnreachable(
                    f"The source has not ended after {EXCHANGE_S_MAX / 3600:,.0f} h.",
                    where=self.terms.relation,
                    remedy="Check what runs at the source's address; nothing was published.",
                )
            kind = reply.WhichOneof("message")
            if kind == "progress":
                self._say(reply.progress)
                continue
            self._answered_s = self._answered_s or monotonic() - self._opened_at
            if kind == "rows":
                self._take(reply.rows.frame)
            elif kind == "refused":
                self.ended = True
                raise refusal(reply.refused)
            else:
                if kind == "verdict":
                    self.admission.announce(reply.verdict.count)
                return reply

    def collect(self, embedding: KeyMap, among: U64 | None = None) -> ShippedKeys:
        """Collect the k of the rows that come from now on.

        Args:
            among: the only k to be collected, uint64 [n] ascending; None: all.
        """
        self._keys = ShippedKeys(self.terms, embedding, among)
        return self._keys

    def collect_positions(self, checksum: str) -> ShippedPositions:
        """Collect the positions of the rows that come from now on, with the column `checksum`."""
        self._keys = shipped = ShippedPositions(self.terms, checksum)
        return shipped

    def stop_collecting(self) -> None:
        """Stop collecting the k of rows that come."""
        self._keys = None

    def finished(self, reply: pb.Reply, difference: Difference | None, method: Method) -> Outcome:
        """Return the outcome of the comparison, from the source's last reply.

        Args:
            difference: what was found; None: the source named no difference.

        Raises:
            MalformedMessage: the reply is not the end, or the source's rows are not ours although
                it named no difference.
        """
        done, ours = self.end(reply), self._ours
        if done.since.by_marker:  # its total is that of keys
            raise MalformedMessage("The source compared keys where all rows are to be compared.")
        theirs = Digest(done.count, int.from_bytes(done.sum, "little"))
        if theirs == ours:
            difference = NoDifference()
        elif difference is None:
            if ours.count:
                raise MalformedMessage("The source finished, but its rows are not ours.")
            difference = ListedRows(Listing.joined(()))
        return self.outcome(done, difference, method if ours.count else Method.FULL, theirs)

    def outcome(
        self, done: pb.Finished, difference: Difference, method: Method, theirs: Digest
    ) -> Outcome:
        """Return the outcome of the comparison, with what the source said at its end."""
        return Outcome(
            difference,
            method,
            theirs=theirs,
            came=self._came,
            as_of=done.as_of,
            checked_at=utc_now(),
            consistency=done.consistency,
            changed=done.changed,
            vouched=done.vouched,
            scans=done.scans,
            rows_read=done.rows_read,
            round_trips=self.round_trips,
            frame_bytes=self._frame_bytes,
            answered_s=self._answered_s,
            held_back_s=done.held_back_s,
            row_security=PolicyDigests.from_message(done),
            activity=from_message(done.activity) if done.HasField("activity") else None,
            marker=_marker_use(done, self.terms.recipe) if self.terms.marks else None,
        )

    def end(self, reply: pb.Reply) -> pb.Finished:
        """Return the source's last reply. Raises MalformedMessage: it is another one."""
        if reply.WhichOneof("message") != "finished":
            raise MalformedMessage("The end of the relation was expected.")
        self.ended = True
        return reply.finished

    @property
    def came(self) -> Digest:
        """Return the digest of the rows that came."""
        return self._came

    def _say(self, said: pb.Progress) -> None:
        """Pass on what the source says; while rows come, their number counts."""
        is_news = said.held_back_s > self._shipping.held_back_s
        self._shipping.held_back_s = said.held_back_s
        self._progress(self._shipping if is_news and self._shipping.rows else said)

    def _take(self, frame: bytes) -> None:
        declared = self.admission.admit(frame)
        self._frame_bytes += len(frame)
        if self._keys is not None:
            self._keys.take(frame)
        self._keep(frame)
        self._came += declared
        self._shipping.rows = self._came.count
        self._progress(self._shipping)


class ShippedKeys:
    """The k of the rows that came and lie inside an embedding; they may replace our rows."""

    def __init__(self, terms: ExchangeTerms, embedding: KeyMap, among: U64 | None) -> None:
        self._terms, self._embedding, self._among = terms, embedding, among
        self._ks: list[U64] = []

    def take(self, frame: bytes) -> None:
        """Add the rows of a frame. Raises FrameDamaged."""
        terms = self._terms
        keys = join(received(frames.decode(frame).columns, terms.recipe))
        where = positions(keys, terms.recipe, position_seed(terms.fragment_key))
        ks, inside = self._embedding.embed(where, terms.salt)
        self._ks.append(ks[inside] if self._among is None else _among(ks[inside], self._among))

    def replaced(self, gone: U64) -> BelowKeys:
        """Return that our rows of all collected k are replaced, and those of `gone`, uint64 [n],
        for which the source has no row."""
        return BelowKeys(np.unique(np.concatenate([*self._ks, gone])), self._embedding)


class ShippedPositions:
    """The positions of the rows that came; `digest` of their keys, and of their checksums, which
    are the column of that name in the recipe; empty: none."""

    def __init__(self, terms: ExchangeTerms, checksum: str) -> None:
        self._terms = terms
        names = [column.name for column in terms.recipe.columns]
        self._checksum = names.index(checksum) if checksum else None
        self._positions: list[Positions] = []
        self.digest = Digest()

    def take(self, frame: bytes) -> None:
        """Add the rows of a frame. Raises FrameDamaged."""
        terms, columns, checksums = self._terms, frames.decode(frame).columns, None
        keys = join(received(columns, terms.recipe))
        where = positions(keys, terms.recipe, position_seed(terms.fragment_key))
        if self._checksum is not None:
            values = columns[self._checksum]
            checksums = checksum_hashes(values.data, values.starts, values.lengths, terms.salt)
        self._positions.append(where)
        self.digest += mixed_keys(where, terms.salt, checksums).digest()

    def ascending(self) -> Positions:
        """Return all positions, int64 [n] ascending."""
        return np.sort(np.concatenate([np.zeros(0, np.int64), *self._positions]))


def _marker_use(done: pb.Finished, recipe: Recipe) -> MarkerUse | None:
    """Return how the source used the marker. Raises MalformedMessage."""
    if not done.HasField("since"):
        return None
    said = done.since
    if said.checksum and said.checksum not in {column.name for column in recipe.columns}:
        raise MalformedMessage("The source names a checksum that is no column of the relation.")
    where = np.frombuffer(said.positions, "<i8").astype(np.int64)
    hashes, checksums = (
        np.frombuffer(data, "<u8").astype(np.uint64) for data in (said.row_hashes, said.checksums)
    )
    return MarkerUse(
        mark=said.mark,
        why=said.why,
        by_marker=said.by_marker,
        rows=said.rows,
        hashes=said.hashes,
        counted=said.counted,
        audited=said.audited,
        unmarked=said.unmarked,
        positions=where,
        row_hashes=hashes,
        warnings=warnings(said.future, said.open_s),
        checksum=said.checksum,
        checksums=checksums,
    )


def _features(
    terms: ExchangeTerms, grouping: pb.Grouping | None, since: pb.Since | None
) -> list[str]:
    """Return the features that an exchange cannot do without."""
    needed = {key_order.FEATURE: isinstance(terms.within, KeyRange)}
    needed[derivations.FEATURE] = terms.derivation is not None
    needed[SINCE] = terms.marks
    needed[CHECKSUM] = since is not None and since.checksums
    needed[named_keys.FEATURE] = grouping is not None and grouping.HasField("keys")
    return [feature for feature, is_needed in needed.items() if is_needed]


def _tile(within: Bounds | None) -> dict[str, Any]:
    """Return the field of an opening that names a tile."""
    if within is None:
        return {}
    if isinstance(within, KeyRange):
        return {"between": pb.Between(lower=within.lower or (), upper=within.upper or ())}
    return {"within": pb.Within(first=within[0], last=within[1])}


def _among(ks: U64, named: U64) -> U64:
    """Return the k that are among the named, uint64 [n] ascending."""
    if not len(named):
        return named
    at = np.minimum(np.searchsorted(named, ks), len(named) - 1)
    among: U64 = ks[named[at] == ks]
    return among


def _wrap(step: int) -> int:
    """Return the step modulo 2^64, signed."""
    return (step + (1 << 63)) % (1 << 64) - (1 << 63)
