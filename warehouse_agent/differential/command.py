"""`diff`: the changes between two files of one relation, without a source agent."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from driftline.errors import ConfigurationError, UsageError
from driftline.rows.fingerprints import FRAGMENT_KEY_BYTES

from warehouse_agent.config import load
from warehouse_agent.differential.comparison import by_window
from warehouse_agent.differential.joins import Algorithm, FileJoin, by_join, by_key, records_of
from warehouse_agent.differential.matching import WindowExhausted
from warehouse_agent.differential.reading import named
from warehouse_agent.differential.records import FileSnapshot
from warehouse_agent.differential.state import DiffState, StateUnusable, save
from warehouse_agent.differential.state import load as load_state
from warehouse_agent.differential.window import DiffCounts, WindowBuffers
from warehouse_agent.report import counted
from warehouse_agent.spark import session

WINDOW = "window"


@dataclass(frozen=True, slots=True)
class DiffResult:
    """The result of a differential, the algorithm that found it, and the place of the changes.

    `note`: a deviation from what was asked for, as text; empty: none.
    """

    counts: DiffCounts
    algorithm: str
    output: Path
    note: str = ""

    def to_json(self) -> str:
        """Return the answer as one JSON object."""
        counts = asdict(self.counts) | {"distance": round(self.counts.distance, 6)}
        del counts["apart"]
        return json.dumps(
            {
                "algorithm": self.algorithm,
                "output": str(self.output),
                "note": self.note,
                **counts,
            }
        )

    def text(self) -> str:
        """Return the answer for a person."""
        c = self.counts
        changes = (
            f"{counted(c.updates, 'update')}, {counted(c.deletes, 'delete')} and "
            f"{counted(c.inserts, 'insert')}, from {c.old:,} to {counted(c.new, 'record')}"
        )
        mended = f", {counted(c.mended, 'pair')} mended" if c.mended else ""
        note = f"{self.note}\n" if self.note else ""
        return (
            f"{note}{changes}: {self.output}\n{self.algorithm}, distance {c.distance:.4f}{mended}"
        )


@dataclass(frozen=True, slots=True)
class DiffRequest:
    """The files to compare, and how.

    `old`: None where the state stands in for it. `state`: None where none is kept. `whole_rows`:
    the joins take whole rows of the new file, not pointers to them.
    """

    old: FileSnapshot | None
    new: FileSnapshot
    output: Path
    state: Path | None
    whole_rows: bool
    allow_shrink: bool


@dataclass(frozen=True, slots=True)
class DiffOptions:
    """Options of a comparison: the columns of both files and the key, and the way in which they are
    compared, as in `DiffRequest`. None: what the files and the state suggest."""

    format: Path
    key: Sequence[str]
    algorithm: str | None = None
    state: Path | None = None
    output: Path | None = None
    whole_rows: bool = False
    allow_shrink: bool = False


def diff(
    config: Path,
    files: Sequence[Path],
    options: DiffOptions,
    *,
    as_json: bool = False,
    buffers: WindowBuffers | None = None,
) -> None:
    """Write the changes from the first file to the second, and print their counts.

    `buffers` of the window: None for the default sizes.

    Raises:
        UsageError: files, key, state and algorithm do not go together.
        DriftlineError: as `by_window` and `by_join` raise.
    """
    _check(files, options)
    target = options.output or Path(f"{files[-1].name}.changes.parquet")
    if target.resolve() in [file.resolve() for file in files]:
        raise UsageError(
            f"The output {target.name!r} is one of the two files that are compared.",
            remedy="Choose another --output.",
        )
    snapshots = [named(file, options.format, tuple(options.key)) for file in files]
    request = DiffRequest(
        snapshots[0] if len(files) == 2 else None,
        snapshots[-1],
        target,
        options.state,
        options.whole_rows,
        options.allow_shrink,
    )
    chosen = options.algorithm or (WINDOW if options.state is None else Algorithm.SORT_MERGE)
    if chosen == WINDOW:
        answer = _by_window(request, config, buffers)
    else:
        answer = _by_join(request, config, chosen)
    print(answer.to_json() if as_json else answer.text(), flush=True)


def _check(files: Sequence[Path], options: DiffOptions) -> None:
    """Raise UsageError if the arguments do not go together."""
    if not options.key:
        raise UsageError(
            "No key is named.", remedy="Name the columns that identify a row: --key id."
        )
    if len(files) not in {1, 2}:
        raise UsageError(
            f"{counted(len(files), 'file')} are named.", remedy="Name the old file and the new one."
        )
    if len(files) == 1 and options.state is None:
        raise UsageError(
            "One file is named, and no state that stands in for the old one.",
            remedy="Name the old file as well, or --state of the last run.",
        )
    if options.state is not None and options.algorithm == WINDOW:
        raise UsageError(
            "The window reads both files in their own order and keeps no state.",
            remedy=f"Take --algorithm {Algorithm.SORT_MERGE}, or leave --state out.",
        )


def _by_window(request: DiffRequest, config: Path, buffers: WindowBuffers | None) -> DiffResult:
    """Compare by the window; by a hash join if that gives up."""
    assert request.old is not None, "without a state, both files are named"
    try:
        counts = by_window(
            request.old,
            request.new,
            request.output,
            allow_shrink=request.allow_shrink,
            buffers=buffers,
        )
    except WindowExhausted as limit:
        answer = _by_join(request, config, Algorithm.HASH)
        return replace(answer, note=f"The window gave up: {limit}. The files were joined instead.")
    return DiffResult(counts, WINDOW, request.output)


def _by_join(request: DiffRequest, config: Path, chosen: str) -> DiffResult:
    """Compare by one of Spark's joins, with the state if there is one; keep the new state."""
    from pyspark import StorageLevel

    old, note = _old_side(request)
    spark = session.start(dict(load(config).spark) if config.exists() else {})
    secret = old.secret if isinstance(old, DiffState) else secrets.token_bytes(FRAGMENT_KEY_BYTES)
    join = FileJoin(Algorithm(chosen), not request.whole_rows, secret)
    theirs = by_key(records_of(spark, request.new, secret, whole=request.whole_rows))
    if request.state is not None:
        theirs = theirs.persist(StorageLevel.DISK_ONLY)  # joined, then kept as the state
    if isinstance(old, DiffState):
        ours = old.records(spark)
    else:
        ours = by_key(records_of(spark, old, secret, whole=False))
    counts = by_join(
        ours,
        theirs,
        join,
        (old.name, request.new),
        request.output,
        allow_shrink=request.allow_shrink,
    )
    if request.state is not None:
        save(request.state, theirs, request.new.recipe, request.new.name, secret)
    return DiffResult(counts, chosen, request.output, note)


def _old_side(request: DiffRequest) -> tuple[DiffState | FileSnapshot, str]:
    """Return the state if it can stand in for the old file, else that file, and why.

    Raises:
        ConfigurationError: there is neither.
    """
    if request.state is None:
        assert request.old is not None, "without a state, both files are named"
        return request.old, ""
    try:
        state = load_state(request.state, request.new.recipe)
    except StateUnusable as reason:
        if request.old is None:
            raise ConfigurationError(
                f"The state cannot be used: {reason}.",
                remedy="Name the old file as well: driftline diff OLD NEW …",
            ) from None
        return request.old, f"The state was not used: {reason}. Both files were read."
    if request.old is None or request.old.name == state.name:
        return state, ""
    return request.old, f"The state was not used: it is of {state.name}. Both files were read."
