"""What all methods say alike in an exchange about one relation (protocol, section 9).

`ExchangeTerms` make the opening and, of the source's last reply, the `Outcome`; the methods send
and receive what lies between. What collects the keys of rows that come is here, too. Nothing here
sends or waits (`transport.waiting`), uses Spark or knows a method.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from driftline import wire_pb2 as pb
from driftline.arrays import U64, Positions
from driftline.errors import LimitExceeded, MalformedMessage
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
from driftline.wire.negotiation import BRIEF, CLAIMED, DEFLATE, SINCE, Agreement

from warehouse_agent.planning.choice import Method
from warehouse_agent.planning.marker_state import warnings
from warehouse_agent.planning.tiling import Bounds
from warehouse_agent.report import utc_now
from warehouse_agent.spark.machine import machine
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

KEYS_SHARE: Final = 8  # of the memory of this process, for the keys of rows that come: one part
_ARRAY_BYTES: Final = 128  # of an array besides its numbers
N = TypeVar("N", np.uint64, np.int64)


@dataclass(frozen=True, slots=True)
class ExchangeTerms:
    """Terms of an exchange that do not depend on the method.

    `agreed` are the protocol and the features that both sides support; `level` is the zstd level of
    the frames; `within` is a tile, by positions or by keys; `derivation` are the columns and rows
    of the relation that `recipe` has, None: all. `marks`: ask for the mark of the relation;
    `audited` is the mark whose misses the source is to name, empty: none. `claims`: of a claim.
    """

    relation: str
    recipe: Recipe
    fragment_key: bytes = field(repr=False)
    salt: Salt
    level: int
    agreed: Agreement
    within: Bounds | None = None
    derivation: Derivation | None = None
    marks: bool = False
    audited: bytes = b""
    claims: bool = False

    @property
    def is_brief(self) -> bool:
        """Return True if strata may be left out, and the source leaves out empty lists."""
        return BRIEF in self.agreed.features

    def opening(
        self, ours: Digest, partition: Partition, said: pb.Open | None = None
    ) -> pb.Request:
        """Return the opening; `ours` is the digest of our rows that are compared.

        said: what the method says in it, the features included that it cannot do without.
        """
        said, derivation, starts = said or pb.Open(), self.derivation, partition.starts
        is_wanted = self.marks and not said.HasField("since")
        needed = {
            key_order.FEATURE: isinstance(self.within, KeyRange),
            derivations.FEATURE: derivation is not None,
            SINCE: self.marks,
            CLAIMED: self.claims,
        }
        since = pb.Since(audited=self.audited, claimed=self.claims)
        chosen = _chosen(derivation, may_deflate=DEFLATE in self.agreed.features)
        opening = pb.Open(
            protocol=self.agreed.protocol,
            features=(
                *(one for one in self.agreed.features if one != DEFLATE or "deflated" in chosen),
                *(one for one, is_needed in needed.items() if is_needed),
            ),
            relation=self.relation,
            recipe=self.recipe.id,
            fragment_key=self.fragment_key,
            salt=self.salt.to_bytes(),
            count=ours.count,
            sum=ours.sum_bytes(),
            start_steps=[_wrap(b - a) for a, b in zip((0, *starts), starts, strict=False)],
            shifts=bytes(partition.shifts),
            level=self.level,
            **_tile(self.within),
            since=since if is_wanted else None,
            **chosen,
        )
        opening.MergeFrom(said)
        return pb.Request(open=opening)

    def finished(
        self, reply: pb.Reply, ours: Digest, difference: Difference | None, method: Method
    ) -> Outcome:
        """Return the outcome of the comparison, from the source's last reply.

        Args:
            ours: the digest in the opening.
            difference: what was found; None: the source named no difference.

        Raises:
            MalformedMessage: the source's rows are not ours although it named no difference.
        """
        done = reply.finished
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
        """Return the outcome of the comparison, with what the source said at its end.

        What came, and how long it took, is added by who waited for it (`registry.compare`).
        """
        return Outcome(
            difference,
            method,
            theirs=theirs,
            as_of=done.as_of,
            checked_at=utc_now(),
            consistency=done.consistency,
            changed=done.changed,
            vouched=done.vouched,
            scans=done.scans,
            rows_read=done.rows_read,
            held_back_s=done.held_back_s,
            row_security=PolicyDigests.from_message(done),
            activity=from_message(done.activity) if done.HasField("activity") else None,
            marker=_marker_use(done, self.recipe) if self.marks else None,
        )


class _KeptNumbers(Generic[N]):
    """Numbers of rows that come, one a row. Their memory is bounded: a frame of 2 kB may hold
    65,536 rows."""

    def __init__(self, kind: type[N]) -> None:
        self._kept: list[npt.NDArray[N]] = [np.zeros(0, kind)]
        self._bytes, self._most = 0, machine().memory // KEYS_SHARE

    def __bool__(self) -> bool:
        return len(self._kept) > 1

    def add(self, numbers: npt.NDArray[N]) -> None:
        """Keep some more. Raises LimitExceeded: there is no memory for them."""
        self._bytes += numbers.nbytes + _ARRAY_BYTES
        if self._bytes > self._most:
            raise LimitExceeded(
                f"The keys of the rows that the source has sent take {self._bytes:,} bytes of"
                f" memory, and {self._most:,} may be taken.",
                remedy="If so many rows can have changed, give this process more memory; if not,"
                " check what runs at the source's address. Nothing was published.",
            )
        self._kept.append(numbers)

    def joined(self) -> npt.NDArray[N]:
        """Return them all, in the order in which they came."""
        return np.concatenate(self._kept)


class ShippedKeys:
    """The k of the rows that came and lie inside an embedding; they may replace our rows."""

    def __init__(self, terms: ExchangeTerms, embedding: KeyMap, among: U64 | None = None) -> None:
        """among: the only k to be collected, uint64 [n] ascending; None: all."""
        self._terms, self._embedding, self._among = terms, embedding, among
        self._ks = _KeptNumbers(np.uint64)

    def take(self, frame: bytes) -> None:
        """Add the rows of a frame. Raises FrameDamaged; LimitExceeded: they are too many."""
        terms = self._terms
        keys = join(received(frames.decode(frame).columns, terms.recipe))
        where = positions(keys, terms.recipe, position_seed(terms.fragment_key))
        ks, inside = self._embedding.embed(where, terms.salt)
        self._ks.add(ks[inside] if self._among is None else _among(ks[inside], self._among))

    @property
    def came(self) -> bool:
        """Return True if a frame of rows came."""
        return bool(self._ks)

    def replaced(self, gone: U64) -> BelowKeys:
        """Return that our rows of all collected k are replaced, and those of `gone`, uint64 [n],
        for which the source has no row."""
        return BelowKeys(np.unique(np.concatenate([self._ks.joined(), gone])), self._embedding)


class ShippedPositions:
    """The positions of the rows that came; `rows` is the digest of these, `digest` that of their
    keys, and of their checksums, which are the column of that name in the recipe; empty: none."""

    def __init__(self, terms: ExchangeTerms, checksum: str) -> None:
        self._terms = terms
        names = [column.name for column in terms.recipe.columns]
        self._checksum = names.index(checksum) if checksum else None
        self._positions = _KeptNumbers(np.int64)
        self.rows = self.digest = Digest()

    def take(self, frame: bytes) -> None:
        """Add the rows of a frame. Raises FrameDamaged; LimitExceeded: they are too many."""
        terms, decoded, checksums = self._terms, frames.decode(frame), None
        columns = decoded.columns
        keys = join(received(columns, terms.recipe))
        where = positions(keys, terms.recipe, position_seed(terms.fragment_key))
        if self._checksum is not None:
            values = columns[self._checksum]
            checksums = checksum_hashes(values.data, values.starts, values.lengths, terms.salt)
        self.rows += decoded.digest
        self._positions.add(where)
        self.digest += mixed_keys(where, terms.salt, checksums).digest()

    def ascending(self) -> Positions:
        """Return all positions, int64 [n] ascending."""
        return np.sort(self._positions.joined())


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
        claimed=said.claimed,
        gone=np.frombuffer(said.gone, "<i8").astype(np.int64),
    )


def _tile(within: Bounds | None) -> dict[str, Any]:
    """Return the field of an opening that names a tile."""
    if within is None:
        return {}
    if isinstance(within, KeyRange):
        return {"between": pb.Between(lower=within.lower or (), upper=within.upper or ())}
    return {"within": pb.Within(first=within[0], last=within[1])}


def _chosen(derivation: Derivation | None, *, may_deflate: bool) -> dict[str, Any]:
    """Return the field of an opening that has the derivation, compressed where that is shorter."""
    if derivation is None:
        return {}
    message = derivation_messages.to_message(derivation)
    if may_deflate and len(data := derivation_messages.deflated(message)) < message.ByteSize():
        return {"deflated": data}
    return {"derivation": message}


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
