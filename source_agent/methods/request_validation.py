"""Parse and check what the warehouse sends (protocol, section 9).

This is the only place where the source validates messages of an exchange: the other modules trust
sizes, counts and the partition. A malformed opening is refused before anything is read. Messages in
pieces are bounded by what was asked for, so a warehouse can neither fill the memory nor keep the
source busy with empty pieces; each function about one receives the pieces behind the first. Of what
kind a request is was checked before (`driftline.wire.exchange_states`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import zstandard
from driftline import wire_pb2 as pb
from driftline.arrays import U64, Bytes, Integers, Positions
from driftline.errors import (
    OPEN,
    ConfigurationError,
    LimitExceeded,
    MalformedMessage,
    RecipeChanged,
    VersionMismatch,
)
from driftline.limits import (
    BITMAP_SLACK_BYTES,
    CHUNK_BYTES_SHIFT_MAX,
    CHUNK_BYTES_SHIFT_MIN,
    CHUNKS_MAX,
    FOLLOWING_RELATIONS_MAX,
    GROUP_KEYS_PER_MESSAGE,
    GROUPED_KEYS_MAX,
    MARK_BYTES_MAX,
    NAMED_BYTES_MAX,
    PART_RANGES_MAX,
    SEGMENTS_MAX,
    STRATUM_CELLS,
    THIRD_CELLS_MAX,
)
from driftline.reconciliation import named_keys
from driftline.reconciliation.groups import GroupSums, SizedGroups
from driftline.reconciliation.ranges import POSITION_MAX, Partition, coarse_ranges, strata_of
from driftline.reconciliation.sketches import (
    CELL_BYTES,
    HASHES,
    PRIME,
    Cells,
    Embedding,
    Grid,
    unpack,
)
from driftline.rows.columns import Block
from driftline.rows.digests import Digest, Salt
from driftline.rows.fingerprints import FRAGMENT_KEY_BYTES
from driftline.rows.key_digests import HASH_BYTES
from driftline.values.types import Recipe
from driftline.wire.negotiation import BRIEF, check_features, check_fields, check_protocol

from source_agent.engines.relations.shapes import Shape
from source_agent.printable import counted

_SALT_BYTES = _SUM_BYTES = 16
_EMPTY = "A piece of a message holds nothing."

T = TypeVar("T")
Received = Generator[None, pb.Request, T]  # a yield receives the warehouse's next request
CellCount = Callable[[Grid], int]  # returns the number of cells that a grid needs


@dataclass(frozen=True, slots=True)
class ParsedOpening:
    """An opening, with the fields of all methods parsed and checked.

    ours: the warehouse's total, without its sum if that comes later; partition: of the key domain,
    for range sums.
    """

    message: pb.Open
    shape: Shape
    salt: Salt
    ours: Digest
    partition: Partition


def parse_opening(opening: pb.Open, shape: Shape) -> ParsedOpening:
    """Parse the common fields; raise VersionMismatch, MalformedMessage or RecipeChanged."""
    check_protocol(opening.protocol)
    sizes = (len(opening.fragment_key), len(opening.salt), len(opening.sum))
    if sizes != (FRAGMENT_KEY_BYTES, _SALT_BYTES, 0 if opening.later else _SUM_BYTES):
        raise MalformedMessage("An opening has fields of a wrong size.")
    sketch = opening.sketch if opening.HasField("sketch") else None
    if opening.later and (sketch is None or sketch.check or opening.strata):
        raise MalformedMessage("Only what a sketch is compared with comes later, and then not now.")
    in_tile = opening.HasField("within") or opening.HasField("between")
    is_compared = opening.count or sketch is not None or opening.HasField("grouping")
    if opening.chunks and (in_tile or is_compared or opening.since.mark):
        raise MalformedMessage("Chunks are listed where all rows are asked for, and none compared.")
    if opening.recipe != shape.recipe.id:
        raise RecipeChanged(
            "The columns, types or key of the relation are not those of the last refresh.",
            where=shape.relation.name,
        )
    salt = Salt.from_bytes(opening.salt)
    ours = Digest(opening.count, int.from_bytes(opening.sum, "little"))
    return ParsedOpening(opening, shape, salt, ours, _partition(opening))


def check_release(request: pb.Request) -> None:
    """Raise VersionMismatch if an `Open` has an unknown protocol, feature or field, LimitExceeded
    if it names more relations that follow than a session locks."""
    check_protocol(request.open.protocol)
    check_fields(request)
    check_features(request.open.features)
    if len(request.open.following) > FOLLOWING_RELATIONS_MAX:
        raise LimitExceeded(
            f"An opening names at most {FOLLOWING_RELATIONS_MAX} relations that follow."
        )


def out_of_place(request: pb.Request) -> VersionMismatch | MalformedMessage:
    """Return the error that refuses a request outside of an exchange."""
    try:
        check_fields(request)  # it may be a message that only a newer release has
    except VersionMismatch as error:
        return error
    return MalformedMessage("An exchange about a relation begins with Open.")


def is_brief(opening: pb.Open) -> bool:
    """Return True if strata may be absent, and an empty list of deleted keys is left out."""
    return BRIEF in opening.features


def strata_in(opening: pb.Open, slots: int) -> Bytes | None:
    """Return the warehouse's strata of `slots` ranges or cells, uint8 [strata, STRATUM_CELLS];
    None: it leaves them out.

    Raises MalformedMessage if they are strata of another number of slots.
    """
    return _strata(opening.strata, slots, opening)


def _strata(data: bytes, slots: int, opening: pb.Open) -> Bytes | None:
    if not data and is_brief(opening):
        return None
    count = strata_of(slots)
    if len(data) != count * STRATUM_CELLS:
        raise MalformedMessage("An opening has another number of strata than its slots.")
    return np.frombuffer(data, np.uint8).reshape(count, STRATUM_CELLS)


def _partition(opening: pb.Open) -> Partition:
    if len(opening.start_steps) > SEGMENTS_MAX:
        raise MalformedMessage(f"A partition has at most {SEGMENTS_MAX} segments.")
    starts, at = [], 0
    for step in opening.start_steps:
        at = (at + step + (1 << 63)) % (1 << 64) - (1 << 63)
        starts.append(at)
    return Partition(tuple(starts), tuple(opening.shifts))


@dataclass(frozen=True, slots=True)
class SketchParameters:
    """A sketch of 3 · `third` cells; `fold` of the cells that follow the opening, 0 if none do."""

    embedding: Embedding
    third: int
    fold: int
    check: int


def sketch_of(opening: pb.Open, shape: Shape) -> SketchParameters | None:
    """Return the sketch in an opening, or None. Raise MalformedMessage if it is not allowed."""
    return _sketch(opening.sketch, opening, shape) if opening.HasField("sketch") else None


def _sketch(said: pb.Sketch, opening: pb.Open, shape: Shape) -> SketchParameters:
    embedding = _embedding(said, shape)
    if not 1 <= said.third <= THIRD_CELLS_MAX or (said.fold and said.third % said.fold):
        raise MalformedMessage(f"A sketch of {said.third} cells a third is not allowed.")
    if not opening.count or said.check >= PRIME:
        raise MalformedMessage("A sketch of no rows, or with no check, is not allowed.")
    return SketchParameters(embedding, said.third, said.fold, said.check)


@dataclass(frozen=True, slots=True)
class SketchedRows:
    """The warehouse's rows, as a sketch of the source is compared with them beside cells.

    `ours`: their total; `strata`: over their cells, None: left out; `check`: of them."""

    ours: Digest
    strata: Bytes | None
    check: int


def sums_of(said: pb.Sums, opening: pb.Open) -> SketchedRows:
    """Return what came after the opening of a sketch. Raises MalformedMessage."""
    if len(said.sum) != _SUM_BYTES or said.check >= PRIME:
        raise MalformedMessage("Sums have fields of a wrong size.")
    ours = Digest(opening.count, int.from_bytes(said.sum, "little"))
    strata = _strata(said.strata, HASHES * opening.sketch.third, opening)
    return SketchedRows(ours, strata, said.check)


@dataclass(frozen=True, slots=True)
class SinceParameters:
    """Rows behind a mark. `keys`: the sketch of the warehouse's keys, `strata` over its cells,
    None: left out; `ours`: their digest; `hashes`: the sum of the database's hashes of them, None:
    not made."""

    keys: SketchParameters
    strata: Bytes | None
    ours: Digest
    hashes: int | None


def is_claim(opening: pb.Open) -> bool:
    """Return True if an opening has a mark that is claimed.

    Raises MalformedMessage if it also has what is compared otherwise.
    """
    said = opening.since
    if not (opening.HasField("since") and said.claimed and said.mark):
        return False
    others = [
        name for name in ("within", "between", "grouping", "sketch") if opening.HasField(name)
    ]
    is_more = said.HasField("keys") or said.sum or said.strata or said.hashes or said.checksums
    if others or is_more or said.audited or len(said.mark) > MARK_BYTES_MAX:
        raise MalformedMessage("A claimed mark is for all rows, and comes with nothing else.")
    return True


def since_of(opening: pb.Open, shape: Shape) -> SinceParameters | None:
    """Return what an opening with a mark compares, or None: it has no mark.

    Raises MalformedMessage if it is not allowed.
    """
    if not opening.HasField("since"):
        return None
    said = opening.since
    others = [name for name in ("within", "between", "grouping") if opening.HasField(name)]
    if others or max(len(said.mark), len(said.audited)) > MARK_BYTES_MAX:
        raise MalformedMessage("A mark is for all rows, and not as long as this.")
    if not said.mark:
        return None
    if opening.HasField("sketch") or said.audited or not said.HasField("keys"):
        raise MalformedMessage("A mark comes with a sketch of keys, and with nothing else.")
    if len(said.sum) != _SUM_BYTES or len(said.hashes) not in (0, HASH_BYTES):
        raise MalformedMessage("An opening has fields of a wrong size.")
    keys = _sketch(said.keys, opening, shape)
    return SinceParameters(
        keys,
        _strata(said.strata, HASHES * keys.third, opening),
        Digest(opening.count, int.from_bytes(said.sum, "little")),
        int.from_bytes(said.hashes, "little") if said.hashes else None,
    )


@dataclass(frozen=True, slots=True)
class GroupParameters:
    """Parameters of groups.

    embedding: of the k that name rows; None: keys name them. row_bytes, wait_bytes: price row
    hashes (`groups.refines`); part: ranges of positions to read besides the named keys, int64 [n]
    first and last, None: all rows, or a part by keys; rows_max: limit for a part.
    """

    embedding: Embedding | None
    row_bytes: int
    wait_bytes: int
    part: tuple[Positions, Positions] | None
    rows_max: int


def grouping_of(opening: pb.Open, shape: Shape) -> GroupParameters | None:
    """Return the groups in an opening, or None.

    Raises MalformedMessage if they are not allowed, ConfigurationError for a part of a relation
    that cannot be read by an index, and LimitExceeded for one of more rows than `rows_by_key`.
    """
    if not opening.HasField("grouping"):
        return None
    said = opening.grouping
    is_by_key = said.HasField("keys")
    embedding = None if is_by_key else _embedding(said, shape)
    in_tile = opening.HasField("within") or opening.HasField("between")
    if opening.HasField("sketch") or in_tile or not opening.count:
        raise MalformedMessage("Groups beside a sketch, in a tile or of no rows are not allowed.")
    if opening.strata:
        raise MalformedMessage("Groups have no strata.")
    if len(said.firsts) != len(said.lasts) or len(said.firsts) > PART_RANGES_MAX:
        raise MalformedMessage("The ranges of a part are no ranges, or too many.")
    first, last = np.array(said.firsts, np.int64), np.array(said.lasts, np.int64)
    if (first > last).any():
        raise MalformedMessage("The ranges of a part are no ranges.")
    costs = said.row_bytes, said.wait_bytes
    if len(first) and is_by_key:
        raise MalformedMessage("A part is by positions or by keys.")
    if not said.rows_max:
        if len(first) or is_by_key:
            raise MalformedMessage("Ranges and keys are for a part alone.")
        return GroupParameters(embedding, *costs, None, 0)
    if embedding is not None and (embedding.base is None or not shape.indexed):
        raise ConfigurationError(
            "A part is read by an index of an integer key, which this relation does not have.",
            where=shape.relation.name,
            remedy="Remove `read_at_most` from the fragment, or ask the DBA for an index.",
            abroad=OPEN,
        )
    limit = shape.relation.rows_by_key
    if limit is not None and said.rows_max > limit:
        raise LimitExceeded(
            f"The source's DBA allows {counted(limit, 'row')} of this relation to be read by key "
            f"(rows_by_key), and this refresh asks for {said.rows_max:,}.",
            where=shape.relation.name,
            remedy=f"Set `read_at_most` of the fragment to at most {limit}.",
        )
    rows_max = min(said.rows_max, POSITION_MAX - 1)
    return GroupParameters(embedding, *costs, None if is_by_key else (first, last), rows_max)


def _embedding(said: pb.Sketch | pb.Grouping, shape: Shape) -> Embedding:
    if not said.hashed and not shape.recipe.integer_key:
        raise MalformedMessage("Only an integer key can be embedded as it is.")
    return Embedding(said.span, None if said.hashed else said.base)


def groups(first: pb.Request, embedding: Embedding) -> Received[tuple[GroupSums, U64]]:
    """Return the warehouse's groups and their digests, uint64 [groups].

    first: the request that begins them. Raises MalformedMessage.
    """
    digests, sized, keys = bytearray(), list[SizedGroups](), 0
    request: pb.Request | None = first
    while request is not None:
        said = request.units
        if said.ks:
            most = min(GROUP_KEYS_PER_MESSAGE, GROUPED_KEYS_MAX - keys)
            one = SizedGroups(said.size, unpack(said.ks, span=embedding.span, count_max=most))
            if not len(one.ks) or len(said.digests) != 8 * one.count:
                raise MalformedMessage("Units came with another number of digests.")
            digests += said.digests
            keys += len(one.ks)
            sized.append(one)
        elif not said.last:
            raise MalformedMessage(_EMPTY)
        request = None if said.last else (yield None)
    sums = GroupSums(sized)
    return sums, np.frombuffer(digests, "<u8").astype(np.uint64, copy=False)


@dataclass(frozen=True, slots=True)
class NamedGroups:
    """Groups whose rows are named by keys.

    keys: rows of the key columns alone, in the order of sending; sizes: keys of a group, and of all
    groups of this size; digests: uint64 [groups].
    """

    keys: Block
    sizes: list[tuple[int, int]]
    digests: U64

    def sums(self, ks: U64) -> GroupSums:
        """Return sums over the groups, empty; ks: of keys, uint64 [n]. Raises MalformedMessage."""
        ends = np.cumsum([keys for _, keys in self.sizes], dtype=np.int64).tolist()
        return GroupSums(
            [
                SizedGroups(size, ks[end - keys : end])
                for (size, keys), end in zip(self.sizes, ends, strict=True)
            ]
        )


def named_groups(first: pb.Request, recipe: Recipe) -> Received[NamedGroups]:
    """Return the warehouse's groups whose rows are named by keys.

    first: the request that begins them. Raises MalformedMessage: no keys of this recipe, another
    number of digests, or more than GROUPED_KEYS_MAX keys or NAMED_BYTES_MAX of them.
    """
    blocks, digests = [], bytearray()
    sizes: list[tuple[int, int]] = []
    size = count = 0
    request: pb.Request | None = first
    while request is not None:
        said = request.units
        if said.keys:
            most = min(GROUP_KEYS_PER_MESSAGE, GROUPED_KEYS_MAX - count)
            block = named_keys.unpack(said.keys, recipe, count_max=most)
            count, size = count + len(block), size + len(block.buffer)
            if size > NAMED_BYTES_MAX:
                raise MalformedMessage(f"More than {NAMED_BYTES_MAX} bytes of keys are named.")
            if not said.size or len(said.digests) != 8 * -(-len(block) // said.size):
                raise MalformedMessage("Units came with another number of digests.")
            blocks.append(block)
            sizes.append((said.size, len(block)))
            digests += said.digests
        elif not said.last:
            raise MalformedMessage(_EMPTY)
        request = None if said.last else (yield None)
    sums = np.frombuffer(digests, "<u8").astype(np.uint64, copy=False)
    return NamedGroups(named_keys.joined(blocks), sizes, sums)


def cells(first: pb.Request, third: int, expected: CellCount) -> Received[tuple[Grid, Cells]]:
    """Return the warehouse's cells and their grid.

    first: the request that begins them; third: a third of the cells of the finest table.
    Raises MalformedMessage: no grid, another number of cells, values outside the field.
    """
    grid = _grid(first, third)
    data, size = bytearray(), expected(grid) * CELL_BYTES
    request: pb.Request | None = first
    while request is not None:
        if _grid(request, third) != grid:
            raise MalformedMessage("The cells of one message were folded differently.")
        _add(data, request.cells.cells, size, request.cells.last)
        request = None if request.cells.last else (yield None)
    if len(data) != size:
        raise MalformedMessage(f"{len(data)} bytes of cells came, not {size}.")
    return grid, Cells.from_bytes(data)


def _grid(request: pb.Request, third: int) -> Grid:
    return Grid(third, request.cells.fold, request.cells.cut, request.cells.finer)


def digests(first: pb.Request, ranges: int) -> Received[tuple[int, U64]]:
    """Return the coarsening, a power of two, and the short digests, uint64 [coarse ranges].

    first: the request that answered the verdict; ranges: of the finest partition.
    Raises MalformedMessage: another number of digests.
    """
    data, coarsen = bytearray(), first.digests.coarsen
    if coarsen >= ranges.bit_length():
        raise MalformedMessage(f"Coarsening by {coarsen} leaves no ranges to compare.")
    size = coarse_ranges(ranges, coarsen) * 8
    request: pb.Request | None = first
    while request is not None:
        if request.digests.coarsen != coarsen:
            raise MalformedMessage("The digests of one relation were coarsened differently.")
        _add(data, request.digests.digests, size, request.digests.last)
        request = None if request.digests.last else (yield None)
    if len(data) != size:
        raise MalformedMessage(f"{len(data) // 8} digests came, not {size // 8}.")
    return coarsen, np.frombuffer(data, "<u8").astype(np.uint64)


def wanted(hashes: int) -> Received[Integers]:
    """Return which of `hashes` row hashes the warehouse wants: ascending indices, int64 [n].

    Raises MalformedMessage: a bitmap of another length.
    """
    data, size, is_last = bytearray(), (hashes + 7) // 8, False
    while not is_last:
        said = (yield None).wanted
        is_last = said.last
        _add(data, said.bitmap, size + BITMAP_SLACK_BYTES, is_last)
    try:
        # zstd allocates the size that a frame declares, so check it first.
        if zstandard.frame_content_size(data) != size:
            raise MalformedMessage("The bitmap of wanted rows has another length.")
        raw = zstandard.ZstdDecompressor().decompress(data, max_output_size=size)
    except zstandard.ZstdError as error:
        raise MalformedMessage(f"The bitmap of wanted rows is damaged: {error}.") from None
    bits = np.unpackbits(np.frombuffer(raw, np.uint8), bitorder="little")[:hashes]
    return np.flatnonzero(bits)


@dataclass(frozen=True, slots=True)
class ListedChunks:
    """Chunks of 2^shift bytes in the mean that the warehouse has; their digests, uint64 [n]
    ascending."""

    shift: int
    digests: U64


def chunks() -> Received[ListedChunks]:
    """Return the chunks that follow an opening. Raises MalformedMessage."""
    data, shift, is_last = bytearray(), None, False
    while not is_last:
        said = (yield None).chunks
        is_last, shift = said.last, said.shift if shift is None else shift
        if said.shift != shift or not CHUNK_BYTES_SHIFT_MIN <= shift <= CHUNK_BYTES_SHIFT_MAX:
            raise MalformedMessage("Chunks of this size, or of several sizes, are not allowed.")
        _add(data, said.digests, CHUNKS_MAX * 8, is_last)
    if len(data) % 8:
        raise MalformedMessage("The digests of chunks end in the middle of one.")
    digests = np.frombuffer(data, "<u8").astype(np.uint64)
    if (digests[1:] <= digests[:-1]).any():
        raise MalformedMessage("The digests of chunks do not ascend.")
    assert shift is not None, "the last piece has one"
    return ListedChunks(shift, digests)


def _add(data: bytearray, piece: bytes, limit: int, is_last: bool) -> None:
    """Append a piece. Raise MalformedMessage above `limit` bytes, or if it is empty, not last."""
    if not piece and not is_last:
        raise MalformedMessage(_EMPTY)
    data += piece
    if len(data) > limit:
        raise MalformedMessage(f"More than the {limit} bytes of a message came.")
