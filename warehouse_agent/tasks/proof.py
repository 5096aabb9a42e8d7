"""Prove a version before it is published: read it back, encode it again, add it up (decision 9).

Tasks read every file that a version adds, encode its rows to row bytes and fingerprint them
again. Each fingerprint must be the one that is stored beside the row, so a decoding or time-zone
bug cannot be published with right fingerprints. The total of these rows and of the untouched files
must be the source's. A slice of the untouched files is read back as well, each time another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from driftline.errors import DuplicateKey, ProofFailed
from driftline.limits import SAMPLES_MAX
from driftline.rows.digests import Digest, Salt, mix
from driftline.rows.fingerprints import receipt_hasher
from driftline.rows.frames import Fingerprints

from warehouse_agent.columns.layout import HI, LO, RESERVED, Layout, quoted
from warehouse_agent.planning.step_places import StepKind, StepWork
from warehouse_agent.report import counted
from warehouse_agent.spark.executors import DATA_FILE, KeyFile, driver_errors
from warehouse_agent.storage.data_files import DataFile
from warehouse_agent.tasks.data_frames import rows_of
from warehouse_agent.tasks.digests import numbers, total
from warehouse_agent.tasks.scan import Divisible, FilePiece, Function, read_batches, scan
from warehouse_agent.tasks.steps import Steps

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROWS = f"{RESERVED}rows"
Hasher = Callable[[], Fingerprints]  # called in a task, where the key is read
_CHECKED = pa.schema([("count", pa.int64()), ("sum", pa.binary()), ("bad", pa.int64())])
# Times the keys (of 3 M rows 7.3) that are searched for two equal ones in this process; how much of
# their rows they are is not known.
_KEYS_HELD = 8
SLICES = 16  # refreshes in which all untouched files are read back


@dataclass(frozen=True, slots=True)
class VersionTotal:
    """The digest of the rows of a version under a salt, to recognize these rows later."""

    salt: Salt
    digest: Digest

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON for the record of a version."""
        return {
            "salt": self.salt.to_bytes().hex(),
            "rows": self.digest.count,
            "sum": self.digest.sum_bytes().hex(),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any] | None) -> Self | None:
        """Return what `to_json` wrote; None if there is nothing, or another release wrote it."""
        try:
            salt, total = bytes.fromhex(body["salt"]), bytes.fromhex(body["sum"])  # type: ignore[index]
            digest = Digest(int(body["rows"]), int.from_bytes(total, "little"))  # type: ignore[index]
        except (KeyError, TypeError, ValueError):
            return None
        return cls(Salt.from_bytes(salt), digest) if len(salt) == len(total) == 16 else None


@dataclass(frozen=True, slots=True)
class ProvenFiles:
    """The files of a version that is proven.

    Attributes:
        added: its new files, all read back.
        kept: its other files; `turn` selects the slice of them to read back.
    """

    added: Sequence[DataFile]
    kept: Sequence[DataFile]
    turn: int

    @property
    def read(self) -> list[DataFile]:
        """Return the files that are read back."""
        return [*self.added, *self.kept[self.turn % SLICES :: SLICES]]

    @property
    def rest(self) -> list[DataFile]:
        """Return the files whose stored fingerprints are added up."""
        return [f for i, f in enumerate(self.kept) if i % SLICES != self.turn % SLICES]


def prove(
    steps: Steps,
    layout: Layout,
    key: KeyFile,
    salt: Salt,
    *,
    files: ProvenFiles,
    theirs: Digest,
    name: str,
) -> None:
    """Prove that the files of a version hold exactly what the source has.

    theirs: the source's digest under `salt`.

    Raises:
        ProofFailed: a row read back differs from its fingerprint, or the totals differ.
    """
    ours, read, rest = Digest(), files.read, files.rest
    if read:
        ours += read_back(steps, read, layout, key, salt, name=name)
    if rest:
        ours += total(steps, rest, layout, salt)
    if ours != theirs:
        raise ProofFailed(
            f"The result has {counted(ours.count, 'row')} and the source {theirs.count:,}, or "
            "their contents differ; nothing was published.",
            where=name,
            remedy="Run the refresh again; report it if it happens twice.",
        )


def read_back(
    steps: Steps,
    files: Sequence[DataFile],
    layout: Layout,
    key: KeyFile,
    salt: Salt,
    *,
    name: str,
) -> Digest:
    """Return the digest of the rows of files from their values.

    Raises:
        ProofFailed: a row has another fingerprint than the one stored beside it.
    """
    hasher = partial(key.fingerprints, layout.recipe)
    digest, bad = _digest(steps, files, layout, hasher, salt, stored=(HI, LO))
    if bad:
        raise ProofFailed(
            f"{counted(bad, 'row')} read back with another fingerprint: data files are damaged, or "
            "a value did not survive being written.",
            where=name,
            remedy="`driftline verify` finds damaged files; report it if the disk is healthy.",
            details={DATA_FILE: f"of {len(files)}"},
        )
    return digest


def fingerprinted(
    steps: Steps, files: Sequence[DataFile], layout: Layout, key: KeyFile, salt: Salt
) -> Digest:
    """Return the digest of the rows of files from their values, whatever is stored beside them."""
    return _digest(steps, files, layout, partial(key.fingerprints, layout.recipe), salt)[0]


def values_digest(
    steps: Steps, files: Sequence[DataFile], layout: Layout, fragment_key: bytes, salt: Salt
) -> Digest:
    """Return the digest of published values under a one-off key, for a receipt."""
    hasher = partial(receipt_hasher, fragment_key, layout.recipe)
    return _digest(steps, files, layout, hasher, salt)[0]


def refuse_duplicates(
    steps: Steps, files: Sequence[DataFile], layout: Layout, *, name: str, exact: bool
) -> None:
    """Raise DuplicateKey, with up to SAMPLES_MAX keys, if two rows of files have one key."""
    size = steps.size_of_rows(files)
    work = StepWork(StepKind.READ, size, len(files), held=_KEYS_HELD * size)
    if steps.runs_here(work):
        repeated = _repeated_here(files, layout)
    else:
        shown = [layout.names[i] for i in range(layout.recipe.key_columns)]
        names = dict.fromkeys((*layout.key_names, *shown))
        columns = pa.schema([layout.file_schema.field(name) for name in names])
        repeated = _repeated(rows_of(steps.spark(work), files, columns), layout)
    if not repeated:
        return
    samples = {
        f"sample {n + 1}": ", ".join(
            f"{column.name} = {value!r}"
            if isinstance(value, str | bytes)
            else f"{column.name} = {value}"
            for column, value in zip(layout.recipe.key, values, strict=True)
        )
        for n, values in enumerate(repeated)
    }
    cause = "" if exact else " (or the table changed while it was read, which this engine allows)"
    raise DuplicateKey(
        f"Two rows or more have the key {samples['sample 1']}{cause}; "
        f"keys with such rows: {len(repeated)}{'' if len(repeated) < SAMPLES_MAX else ' or more'}.",
        where=name,
        remedy="Ask the DBA to serve the relation with a key that is unique.",
        details=samples,
    )


def _repeated(rows: DataFrame, layout: Layout) -> list[list[object]]:
    """Return the values of up to SAMPLES_MAX keys that more than one row has."""
    from pyspark.sql import functions as F

    shown = [quoted(layout.names[i]) for i in range(layout.recipe.key_columns)]
    grouped = rows.groupBy(*map(quoted, layout.key_names)).agg(
        F.count(F.lit(1)).alias(_ROWS),
        *(F.first(c).alias(f"{RESERVED}{i}") for i, c in enumerate(shown)),
    )
    with driver_errors():
        repeated = grouped.where(f"{_ROWS} > 1").limit(SAMPLES_MAX).collect()
    return [[row[f"{RESERVED}{i}"] for i in range(len(shown))] for row in repeated]


def _repeated_here(files: Sequence[DataFile], layout: Layout) -> list[list[object]]:
    """Return the same as `_repeated` in this process."""
    (key,) = layout.key_names
    shown = [layout.names[i] for i in range(layout.recipe.key_columns)]
    columns = pa.schema([layout.file_schema.field(c) for c in dict.fromkeys((key, *shown))])
    batches = [batch for f in files for batch in read_batches(f.uri, columns)]
    rows = pa.Table.from_batches(batches, columns)
    counts = rows.group_by(key).aggregate([([], "count_all")])
    repeated = counts.filter(pc.greater(counts["count_all"], 1))[key][:SAMPLES_MAX]
    first = pc.index_in(repeated, value_set=rows[key])
    return [list(row.values()) for row in rows.take(first).select(shown).to_pylist()]


def _digest(
    steps: Steps,
    files: Sequence[DataFile],
    layout: Layout,
    hasher: Hasher,
    salt: Salt,
    stored: Sequence[str] = (),
) -> tuple[Digest, int]:
    """Return the digest of rows from their values, and how often a stored lane differs."""
    columns = pa.schema([layout.file_schema.field(c) for c in (*layout.data_names, *stored)])
    function = _check(layout, hasher, salt, stored)
    digest, bad = Digest(), 0
    work = StepWork(StepKind.READ, steps.size_of_rows(files))
    rows = scan(steps, files, columns, Divisible(function), _CHECKED, work=work)
    for row in rows.to_pylist():
        digest += Digest(row["count"], int.from_bytes(row["sum"], "little"))
        bad += row["bad"]
    return digest, bad


def _check(layout: Layout, hasher: Hasher, salt: Salt, stored: Sequence[str]) -> Function:
    def run(pieces: Iterator[FilePiece]) -> Iterator[pa.RecordBatch]:
        fingerprints, digest, bad = hasher(), Digest(), 0
        for piece in pieces:
            lanes = fingerprints(layout.row_bytes(piece.batch).rows())
            for lane, name in zip(lanes, stored, strict=False):
                bad += int((lane.view(np.int64) != numbers(piece.batch, name)).sum())
            digest += mix(salt, *lanes).digest()
        yield pa.RecordBatch.from_pydict(
            {"count": [digest.count], "sum": [digest.sum_bytes()], "bad": [bad]}
        )

    return run
