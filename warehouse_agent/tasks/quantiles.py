"""Quantiles of the positions of a version's rows, from a sample of each file.

A task sorts the positions of one file after the other and returns evenly spaced ones. The driver
merges these samples by weight. The rank of a result is off by at most rows / (2 · samples of a
file), as each file's is by its own.

Positions of a key that is not one integer are hashes: its keys are sampled themselves. Each batch
is sorted and sampled by itself, so memory does not grow with a file. A sample of n keys errs in a
rank by about √n of its steps where keys come in any order, and by less where they come in key
order.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from driftline.arrays import Integers
from driftline.rows.key_order import KeyBuffer, KeyOrder
from driftline.values.types import Recipe

from warehouse_agent.columns.layout import KEY, Layout
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.tasks.digests import keys_of, numbers, with_keys
from warehouse_agent.tasks.scan import Divisible, FilePiece, Function, scan
from warehouse_agent.tasks.steps import Steps, work_of_digests

SAMPLES = 2048  # of a file
SAMPLES_MIN = 64
SAMPLES_MAX = 4 << 20  # of all files, in the driver: 64 MiB
_SAMPLE = pa.schema([("positions", pa.binary()), ("rows", pa.int64())])
_KEYS = pa.schema(
    [("file", pa.string()), ("keys", pa.list_(pa.binary()))]
    + [(end, pa.binary()) for end in ("least", "greatest")]
)


@dataclass(frozen=True, slots=True)
class Samples:
    """Positions, int64 [n], each of which stands for `weights` rows, float64 [n]."""

    positions: Integers
    weights: npt.NDArray[np.float64]

    def quantiles(self, shares: Sequence[float]) -> list[int]:
        """Return the position at each share of the rows, 0 to 1; the extremes exactly.

        Returns:
            As many positions as shares; none if there are no rows.
        """
        if not len(self.positions):
            return []
        order = np.argsort(self.positions, kind="stable")
        ranks = np.cumsum(self.weights[order])
        wanted = np.asarray(shares)
        at = np.searchsorted(ranks, wanted * ranks[-1], "left")
        at[wanted >= 1] = len(order) - 1
        return [int(p) for p in self.positions[order][at]]


def sample(positions: Integers, samples: int, offset: float = 0.5) -> Integers:
    """Return at most samples + 2 of the positions, int64 [n]: the extremes, and evenly spaced ones.

    Args:
        offset: where in its share of the rows each sample lies, from 0 to below 1; files with
            interleaved keys need different ones, or all are sampled at the same places.

    Returns:
        int64 [m], ascending; all positions if they are few.
    """
    ordered = np.sort(positions)
    if len(ordered) <= samples + 2:
        return ordered
    at = ((np.arange(samples) + offset) * len(ordered) / samples).astype(np.int64)
    return np.concatenate([ordered[:1], ordered[at], ordered[-1:]])


def weighed(positions: Integers, rows: int) -> Samples:
    """Return the sample of `rows` rows, int64 [n] ascending, with its weights.

    If it has been thinned out, the extremes weigh nothing: the others stand for all rows.
    """
    weights = np.full(len(positions), 1.0)
    if rows > len(positions):
        weights[:] = rows / (len(positions) - 2)
        weights[[0, -1]] = 0.0
    return Samples(positions, weights)


def samples_of(
    steps: Steps, files: Sequence[DataFile], layout: Layout, samples: int = SAMPLES
) -> Samples:
    """Sample the positions of the rows of files, in one step.

    Args:
        samples: positions wanted of each file; fewer where there are many files.

    Raises:
        WarehouseUnavailable: a file cannot be read.
    """
    each = max(SAMPLES_MIN, min(max(samples, SAMPLES), SAMPLES_MAX // max(len(files), 1)))
    column = pa.schema([layout.lane_schema.field(0)])
    rows = scan(
        steps, files, column, _sampled(each), _SAMPLE, work=work_of_digests(files)
    ).to_pylist()
    return joined([weighed(np.frombuffer(r["positions"], np.int64), r["rows"]) for r in rows])


@dataclass(frozen=True, slots=True)
class KeySample:
    """Key bytes of every nth row, in any order, and the least and greatest key of each file."""

    keys: list[bytes]
    ends: dict[str, tuple[bytes, bytes]]


def sample_keys(steps: Steps, files: Sequence[DataFile], layout: Layout, every: int) -> KeySample:
    """Return the keys of about every nth row of files; one step.

    Raises WarehouseUnavailable: a file cannot be read.
    """
    function = with_keys(layout.recipe, _keys_sampled(layout.recipe, every))
    rows = scan(
        steps,
        files,
        layout.key_schema,
        Divisible(function),
        _KEYS,
        work=work_of_digests(files),
    ).to_pylist()
    order = KeyOrder(layout.recipe)
    ends: dict[str, tuple[bytes, bytes]] = {}
    for row in rows:
        keys = [*ends.get(row["file"], ()), row["least"], row["greatest"]]
        places = order.sorted(KeyBuffer.of_bytes(keys))
        ends[row["file"]] = keys[int(places[0])], keys[int(places[-1])]
    return KeySample([key for row in rows for key in row["keys"]], ends)


def joined(samples: Sequence[Samples]) -> Samples:
    """Return all samples as one."""
    return Samples(
        np.concatenate([np.zeros(0, np.int64), *(s.positions for s in samples)]),
        np.concatenate([np.zeros(0), *(s.weights for s in samples)]),
    )


def _sampled(samples: int) -> Function:
    def run(pieces: Iterator[FilePiece]) -> Iterator[pa.RecordBatch]:
        for file, of_file in groupby(pieces, lambda piece: piece.file):
            positions = np.concatenate([numbers(piece.batch, 0) for piece in of_file])
            offset = zlib.crc32(file.encode()) / (1 << 32)
            some = sample(positions, samples, offset).tobytes()
            yield pa.RecordBatch.from_pydict(
                {"positions": [some], "rows": [len(positions)]}, schema=_SAMPLE
            )

    return run


def _keys_sampled(recipe: Recipe, every: int) -> Function:
    def run(pieces: Iterator[FilePiece]) -> Iterator[pa.RecordBatch]:
        order = KeyOrder(recipe)
        for number, piece in enumerate(pieces):
            if not len(piece.batch):
                continue
            at = order.sorted(keys_of(piece.batch))
            # Batches begin at different places, or all would be sampled at the same ranks.
            begin = zlib.crc32(f"{piece.file} {number}".encode()) % every
            column = piece.batch.column(KEY)
            yield pa.RecordBatch.from_pydict(
                {
                    "file": [piece.file],
                    "keys": [column.take(pa.array(at[begin::every])).to_pylist()],
                    "least": [column[int(at[0])].as_py()],
                    "greatest": [column[int(at[-1])].as_py()],
                },
                schema=_KEYS,
            )

    return run
