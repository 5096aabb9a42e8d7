"""The auxiliary table of a pass: bounds and digests of our side, and the result of each tile.

    _driftline/staging/<name>/pass/exchange.json   the version that the pass compares, and with what
                                   pass.json       salt and tiles
                                   sums.bin        our side of every tile, reduced once
                                   000012-…/…      frames of a tile, as they came
                                   000012.npz      the result of a finished tile

So an interrupted pass goes on with the next tile: nothing is reduced again, and no compared row is
read again at the source. It can be resumed while the version that it compares is the newest, the
source and relation are the same, and its tiles are no larger than wanted. Any other refresh of the
fragment ends it, because it takes up or clears what is staged. The files are private: whoever knows
the salt of a pass and can write rows at the source could prepare equal sums.

After Carnes and Hanson, sections 3.4 and 3.6. Their auxiliary table outlives a refresh; ours does
not, because a salt must not be kept for long.
"""

from __future__ import annotations

import io
import json
import uuid
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
from driftline.relations.activity import from_json, to_json
from driftline.rows.digests import Digest, Salt, mix
from driftline.values.types import Recipe

from warehouse_agent.config import Fragment
from warehouse_agent.history.history_lines import moment
from warehouse_agent.planning import tiling as planning
from warehouse_agent.planning.change_forecast import EarlierRefresh
from warehouse_agent.planning.choice import Method
from warehouse_agent.planning.tiling import (
    KeyTiling,
    PassSettings,
    PassSums,
    PositionTiling,
    TileCuts,
    Tiled,
    Tiling,
)
from warehouse_agent.refresh.job import Job
from warehouse_agent.refresh.recovery import repair
from warehouse_agent.storage import staged_files
from warehouse_agent.storage.row_security import PolicyDigests
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.storage.table import Snapshot
from warehouse_agent.tasks import digests
from warehouse_agent.tasks.difference import AllRows, Difference, ListedRows, NoDifference, Outcome
from warehouse_agent.tasks.digests import Adder, Adding, Listing, PartialSums, added, keys_of
from warehouse_agent.tasks.quantiles import sample_keys
from warehouse_agent.tasks.scan import FilePiece
from warehouse_agent.tasks.staging import ExchangeIdentity, FrameWriter, Staging
from warehouse_agent.tasks.steps import Steps

FOLDER = "pass"
_NOTE, _TABLE, _SUMS = staged_files.NOTE, "pass.json", "sums.bin"  # `gc` reads the note
_DONE = ".npz"
_FACTS = ("as_of", "checked_at", "consistency", "changed", "vouched", "frame_bytes")
KEYS_PER_TILE = 64  # of all files, by which tiles between keys are cut
KEYS_MAX = 1 << 18  # in the driver, mostly some 30 bytes each
SAMPLES_PER_TILE = 32  # positions of a file for each tile, by which tiles are cut
_REFRESHES_LOOKED_AT = 20  # to estimate how many new rows come after the last key


@dataclass(frozen=True)
class _Secret(Store):
    """A store whose small files are private."""

    def write(self, data: bytes, *parts: str, private: bool = True) -> None:
        super().write(data, *parts, private=private)


@dataclass(frozen=True, slots=True)
class _Frames:
    """The staged frames of a finished tile: their folder, and how many files it has."""

    folder: str
    files: int


@dataclass
class Pass:
    """A pass over one published version: our side of all tiles, and the results of finished tiles.

    `outcomes` are by tile, in the order in which they were finished; the first `resumed_at` of them
    are of earlier attempts.

    Without locks another command may compare the same tiles, or begin another pass: the frames of
    each exchange have a folder of their own, which the result of a tile names, beside the salt.
    """

    store: Store
    name: str
    wanted: PassSettings
    salt: Salt
    sums: PassSums
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    resumed_at: int = 0
    _frames: dict[int, _Frames] = field(default_factory=dict)  # by tile
    _latest: datetime | None = None  # that a tile said

    @property
    def tiling(self) -> Tiling:
        """Return the tiles of the pass."""
        return self.sums.tiling

    @property
    def tiled(self) -> Tiled:
        """Return the scope: how many tiles the pass has, and how many are finished."""
        return Tiled(self.wanted, len(self.tiling), len(self.outcomes))

    @property
    def compared(self) -> Digest:
        """Return the digest of all of our rows."""
        return self.sums.ranges.total

    def unfinished(self) -> list[int]:
        """Return the tiles that are not finished, in order."""
        return [tile for tile in range(len(self.tiling)) if tile not in self.outcomes]

    def writer(self, tile: int) -> FrameWriter:
        """Open a writer for the frames of a tile; where locks keep others from writing them, remove
        what an unfinished exchange left."""
        if self.store.has_locks:
            self.store.remove_file(*_place(self.name), f"{tile:06d}{_DONE}")
            for folder in self.store.folders(*_place(self.name)):
                if folder.partition("-")[0] == f"{tile:06d}":
                    self.store.remove(*_place(self.name), folder)
        folder = f"{FOLDER}/{tile:06d}-{uuid.uuid4().hex[:8]}"
        return FrameWriter(_Secret(self.store.root), self.name, folder)

    def finish(self, tile: int, outcome: Outcome, writer: FrameWriter) -> None:
        """Keep the result of a tile, whose frames are written."""
        frames = _Frames(writer.folder, writer.files)
        place = (*_place(self.name), f"{tile:06d}{_DONE}")
        _Secret(self.store.root).write(_packed(outcome, frames, self.salt), *place)
        self.add(tile, outcome, frames)

    def forget_later(self, as_of: str, spared: Collection[int] = ()) -> list[int]:
        """Forget finished tiles that say a later time than one that was compared after them.

        The source's clock was set back in between: as of the least time their rows were older.

        Args:
            as_of: the time of the tile that is about to be finished.
            spared: tiles that are kept nevertheless.

        Returns:
            The tiles that are to be compared again, in order.
        """
        at = moment(as_of)
        if self._latest is None or self._latest <= at:
            return []
        later = [t for t, o in self.outcomes.items() if t not in spared and moment(o.as_of) > at]
        resumed = {*list(self.outcomes)[: self.resumed_at]}
        for tile in later:
            self.store.remove_file(*_place(self.name), f"{tile:06d}{_DONE}")
            del self.outcomes[tile], self._frames[tile]
        self.resumed_at -= len(resumed.intersection(later))
        self._latest = at  # but for those that are spared
        return sorted(later)

    def add(self, tile: int, outcome: Outcome, frames: _Frames) -> None:
        """Note the result of a tile, which is kept."""
        self.outcomes[tile], self._frames[tile] = outcome, frames
        at = moment(outcome.as_of)
        self._latest = max(self._latest or at, at)

    def staged(self) -> list[str]:
        """Return the URIs of the frames of all finished tiles. Raises Locked: some are gone."""
        staging = Staging(self.store, self.name)
        kept = [frames for _, frames in sorted(self._frames.items()) if frames.files]
        return [uri for one in kept for uri in staging.uris(one.folder, one.files)]


def take_up(
    job: Job, base: Snapshot, wanted: PassSettings, earlier: Sequence[EarlierRefresh]
) -> Pass:
    """Return the unfinished pass over this version; begin one if there is none."""
    return _resumed(job.store, job.fragment, base, wanted) or begin(job, base, wanted, earlier)


def begin(
    job: Job, base: Snapshot, wanted: PassSettings, earlier: Sequence[EarlierRefresh]
) -> Pass:
    """Begin a pass over a version, in two steps. Remove whatever was staged."""
    tiling = _tiling(job.steps, base, wanted, earlier)
    job.staging.clear()
    salt = Salt.fresh()
    sums = _reduced(job.steps, base, tiling, salt)
    secret, place = _Secret(job.store.root), _place(job.name)
    table = {"salt": salt.to_bytes().hex(), "heads": tiling.heads, "rows": wanted.rows}
    table |= _table_of(tiling)
    secret.write(sums.to_bytes(), *place, _SUMS)
    secret.write(json.dumps(table).encode(), *place, _TABLE)
    # The note comes last: with it the pass can be resumed.
    secret.write(_note(job.fragment, base).encode(), *place, _NOTE)
    return Pass(job.store, job.name, wanted, salt, sums)


def _resumed(store: Store, fragment: Fragment, base: Snapshot, wanted: PassSettings) -> Pass | None:
    """Return the unfinished pass over this version; None: there is none, or it is of no use."""
    name = fragment.name
    if not _is_over(store, fragment, base):
        return None
    try:
        table = json.loads(store.read(*_place(name), _TABLE) or b"")
        tiling = _tiling_of(table, base.layout.recipe)
        sums = PassSums.from_bytes(store.read(*_place(name), _SUMS) or b"", tiling)
        salt = Salt.from_bytes(bytes.fromhex(table["salt"]))
    except (ValueError, KeyError, TypeError, IndexError):
        return None
    if sums.ranges.total.count != sum(f.rows for f in base.sound) or not _serves(table, wanted):
        return None
    unfinished = Pass(store, name, wanted, salt, sums)
    for tile in _finished(store, name):
        data = store.read(*_place(name), f"{tile:06d}{_DONE}") or b""
        kept = _unpacked(data, salt)
        if kept is not None and _are_there(store, name, kept[1]):
            unfinished.add(tile, *kept)
    unfinished.resumed_at = len(unfinished.outcomes)
    return unfinished


def _serves(table: Mapping[str, Any], wanted: PassSettings) -> bool:
    """Return False if fewer rows are wanted in a tile: those of the pass may be too large."""
    rows = table.get("rows")  # passes that were begun before it was noted have none
    return not isinstance(rows, int) or rows <= wanted.rows


def _are_there(store: Store, name: str, frames: _Frames) -> bool:
    """Return True if the frames of a tile were not removed by another command meanwhile."""
    return len(store.files(PRIVATE, "staging", name, frames.folder)) >= frames.files


def tiled(store: Store, fragment: Fragment, base: Snapshot | None) -> Tiled | None:
    """Return the pass that a refresh would begin or resume; None: it would be one exchange."""
    if fragment.incremental is None or base is None or not base.rows:
        return None
    if _is_over(store, fragment, base):
        table = store.read_json(*_place(fragment.name), _TABLE)
        heads = table.get("heads")
        if isinstance(heads, list) and _serves(table, fragment.incremental):
            done = len(_finished(store, fragment.name))
            return Tiled(fragment.incremental, len(heads), done)
    return Tiled(fragment.incremental, planning.count_for(base.rows, fragment.incremental))


def _tiling(
    steps: Steps, base: Snapshot, wanted: PassSettings, earlier: Sequence[EarlierRefresh]
) -> Tiling:
    """Divide a version into tiles of about as many rows as wanted; one step."""
    count = planning.count_for(base.rows, wanted)
    if not base.layout.recipe.integer_key:
        every = max(base.rows // min(KEYS_PER_TILE * count, KEYS_MAX), 1)
        sample = sample_keys(steps, base.sound, base.layout, every)
        return planning.key_tiling(base.layout.recipe, sample.keys, base.rows, count, sample.ends)
    shares = [i / count for i in range(count + 1)]
    knots = repair.positions(steps, base, SAMPLES_PER_TILE * count).quantiles(shares)
    inserted = [one.inserted for one in earlier[-_REFRESHES_LOOKED_AT:] if not one.is_load]
    return planning.tiling(knots, base.rows, tail=planning.tail_for(inserted, wanted))


def _table_of(tiling: Tiling) -> dict[str, object]:
    """Return the tiles as JSON."""
    if isinstance(tiling, KeyTiling):
        keys = [key.hex() for key in tiling.keys]
        return {"keys": keys, "ranges_each": tiling.ranges_each, "near": dict(tiling.near)}
    assert isinstance(tiling, PositionTiling)
    return {"starts": tiling.cuts.starts, "shifts": tiling.cuts.shifts}


def _tiling_of(table: Mapping[str, Any], recipe: Recipe) -> Tiling:
    """Return the tiles that `_table_of` wrote. Raises ValueError, KeyError, TypeError."""
    if recipe.integer_key:
        cuts = TileCuts(tuple(table["starts"]), tuple(table["shifts"]))
        return PositionTiling(cuts, tuple(table["heads"]))
    keys = tuple(bytes.fromhex(key) for key in table["keys"])
    near = {path: (int(first), int(last)) for path, (first, last) in table["near"].items()}
    return KeyTiling(recipe, keys, int(table["ranges_each"]), near)


def _place(name: str) -> tuple[str, ...]:
    return PRIVATE, "staging", name, FOLDER


def _note(fragment: Fragment, base: Snapshot) -> str:
    """Return the note of a pass as JSON: its exchange, and the lost files."""
    noted = ExchangeIdentity.of(fragment, base.version, base.layout.recipe).to_json()
    return json.dumps(noted | ({"without": [f.path for f in base.lost]} if base.lost else {}))


def _is_over(store: Store, fragment: Fragment, base: Snapshot) -> bool:
    """Return True if the unfinished pass is over this version."""
    wanted: dict[str, object] = json.loads(_note(fragment, base))
    return store.read_json(*_place(fragment.name), _NOTE) == wanted


def _finished(store: Store, name: str) -> list[int]:
    names = [file for file, _ in store.files(*_place(name)) if file.endswith(_DONE)]
    return [int(file.removesuffix(_DONE)) for file in names]


def _packed(outcome: Outcome, frames: _Frames, salt: Salt) -> bytes:
    difference, removed = outcome.difference, None
    if isinstance(difference, ListedRows) and outcome.method is not Method.FULL:
        removed = difference.rows  # a load of an empty tile lists none
    facts = {
        "salt": salt.to_bytes().hex(),
        "folder": frames.folder,
        "files": frames.files,
        "count": outcome.theirs.count,
        "sum": outcome.theirs.sum_bytes().hex(),
        "equal": outcome.is_equal,
        "replace_all": isinstance(difference, AllRows),
        "has_removed": removed is not None,
        "method": outcome.method.value,
        **{name: getattr(outcome, name) for name in _FACTS},
        "row_security": outcome.row_security.to_json() if outcome.row_security else None,
        "activity": to_json(outcome.activity) if outcome.activity else None,
    }
    arrays: dict[str, npt.NDArray[Any]] = {
        "facts": np.frombuffer(json.dumps(facts).encode(), np.uint8)
    }
    if removed is not None:
        arrays |= {"positions": removed.positions, "hashes": removed.hashes, "files": removed.file}
    out = io.BytesIO()
    np.savez(out, **arrays)  # type: ignore[arg-type]  # the stubs take the names for options
    return out.getvalue()


def _unpacked(data: bytes, salt: Salt) -> tuple[Outcome, _Frames] | None:
    """Return the result of a tile and its frames; None: it is damaged, or that of another pass, and
    the tile is compared again.
    """
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            facts = json.loads(arrays["facts"].tobytes())
            moment(facts["as_of"])
            if facts["salt"] != salt.to_bytes().hex():
                return None
            frames = _Frames(str(facts["folder"]), int(facts["files"]))
            removed = Listing.joined(())
            if facts["has_removed"]:
                where = arrays["positions"]
                nowhere = np.zeros(len(where), np.int64)
                removed = Listing(nowhere, where, arrays["hashes"], arrays["files"])
        difference: Difference = AllRows() if facts["replace_all"] else ListedRows(removed)
        outcome = Outcome(
            NoDifference() if facts["equal"] else difference,
            Method(facts["method"]),
            theirs=Digest(facts["count"], int.from_bytes(bytes.fromhex(facts["sum"]), "little")),
            row_security=PolicyDigests.from_json(facts.get("row_security")),
            activity=from_json(facts.get("activity")),
            **{name: facts[name] for name in _FACTS},
        )
        return outcome, frames
    except (ValueError, KeyError, TypeError, EOFError, OSError, zipfile.BadZipFile):
        return None


def _reduced(steps: Steps, base: Snapshot, tiling: Tiling, salt: Salt) -> PassSums:
    words, keyed = 2 * (tiling.all_ranges + len(tiling)), isinstance(tiling, KeyTiling)
    adding = Adding(_sums(tiling, salt), words, keyed=keyed)
    sums = added(steps, base.sound, base.layout, adding)
    digests.check_rows(base.sound, sums.total.count)
    return PassSums.from_words(sums.total, sums.words, tiling)


def _sums(tiling: Tiling, salt: Salt) -> Adder:
    def run(pieces: Iterator[FilePiece]) -> PartialSums:
        sums = PassSums(tiling)
        for piece in pieces:
            where, hi, lo = (digests.numbers(piece.batch, i) for i in range(3))
            keys = keys_of(piece.batch) if isinstance(tiling, KeyTiling) else None
            sums.add(where, mix(salt, hi.view(np.uint64), lo.view(np.uint64)), keys)
        return PartialSums(sums.ranges.total, sums.words(), np.zeros(0, np.uint64))

    return run
