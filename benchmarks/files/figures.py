"""The figures of Labio and Garcia-Molina, from their formulas and from our window.

Figures 2 and 8 to 11 are formulas (`tests/reference/snapshot_costs`), printed to the paper's
numbers. Figures 14 to 16 count the pairs that our window missed and mended: without that, they were
the paper's extra messages. The paper's aging buffer of 8 MB holds 8 % of its largest file, and so
does ours. Figures 17 and 18 compare the window with outer joins that have what the run before kept
of the old file: the sort-merge and the partitioned hash join of uncompressed records, in plain
Python, with what they read and wrote; `sort` with `comm`, as the paper's was built; and, of the
largest file, ours of compressed records (SMC1: `driftline diff --state`, by Spark). All processor
times are less that of a process that only imports.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from benchmarks.files.contenders import (
    by_hashing,
    by_merging,
    by_sort,
    by_the_window,
    nothing,
    partition,
    run_diff,
    sort_old,
    taken,
)
from benchmarks.files.generator import RECORD_BYTES, Changed, make, snapshots
from tests.reference.snapshot_costs import BLOCK_BYTES, Files, good_days, intermediate, io
from warehouse_agent.differential.window import DiffCounts, WindowBuffers, window

MB = 1 << 20
ALGORITHMS = ("SM", "SMC1", "SMC2", "PH", "PHC1", "PHC2", "W")
PLOTTED = ("SM", "PH", "PHC1", "PHC2", "W")  # in Figure 9; the others lie on these
SIZES = (0.25, 0.5, 1.0)  # records, to the largest file, as in Figure 15
AGING = 0.08  # of the largest file's records
STATE = "state"


def figures(rows: int, runs: int) -> None:
    """Print all of them; `rows` of the largest file that is compared."""
    formulas = (figure_2(), figure_8(), figures_9_to_11())
    measured = (figure_14(rows), figure_15(rows), figure_16(rows), figures_17_and_18(rows, runs))
    for lines in (*formulas, *measured):
        for line in lines:
            click.echo(line)


def figure_2() -> Iterator[str]:
    """Days until a change is missed, by the bits of b and the size of the file."""
    yield "Figure 2: days until a change is missed, files compared daily"
    sizes = (256, 1024, 10 * 1024)
    yield "bits " + "".join(f"{f'{size:,} MB':>12}" for size in sizes)
    for bits in (24, 32, 40, 48, 64, 128):
        yield f"{bits:4} " + "".join(f"{good_days(size * MB, bits):12.4g}" for size in sizes)


def figure_8() -> Iterator[str]:
    """IO cost and intermediate files, in blocks of 16 kB."""
    yield "Figure 8: IO of 256 and 1,024 MB (saved), intermediate files; blocks of 16 kB"
    for name in ALGORITHMS:
        cells = []
        for size in (256 * MB, 1024 * MB):
            cost, plain = io(name, Files(size)), io("SM", Files(size))
            cells.append(f"{int(cost):9,} ({1 - cost / plain:3.0%})")
        spaces = [f"{intermediate(name, Files(size * MB)):9,.0f}" for size in (256, 1024)]
        yield f"{name:5}" + "".join(cells + spaces)


def figures_9_to_11() -> Iterator[str]:
    """IO cost by the size of the file, the compression factor, the share of changes."""
    yield "Figure 9: IO by the size of the file in MB"
    yield _head("MB", PLOTTED)
    for size in (128, 256, 319, 321, 479, 481, 640, 768, 896, 1024):
        yield _row(f"{size}", [io(name, Files(size * MB)) for name in PLOTTED])
    yield "Figure 10: IO by the compression factor, 1,024 MB"
    yield _head("u", ALGORITHMS)
    for factor in (1, 1.5, 2, 4, 6, 10, 15, 20):
        made = Files(1024 * MB, u_kb=factor, u_kbp=factor)
        yield _row(f"{factor:g}", [io(name, made) for name in ALGORITHMS])
    yield "Figure 11: IO by the share of updates and inserts, 1,024 MB"
    compressed = ("SMC1", "SMC2", "PHC1", "PHC2")
    yield _head("U+I", compressed)
    for share in (0.0, 0.005, 0.01, 0.015, 0.017, 0.02, 0.03, 0.05):
        yield _row(
            f"{share:.1%}", [io(name, Files(1024 * MB, changed=share)) for name in compressed]
        )


def _head(what: str, names: tuple[str, ...]) -> str:
    return f"{what:>5}" + "".join(f"{name:>10}" for name in names)


def _row(what: str, values: list[float]) -> str:
    return f"{what:>5}" + "".join(f"{value:10,.0f}" for value in values)


@contextmanager
def _pair(rows: int, distance: float) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        make(Path(name), rows, distance, Changed(0.2, 0, 0))
        yield Path(name)


def missed(rows: int, distance: float, aging: int) -> DiffCounts:
    """Compare two files by a window whose aging buffers hold `aging` records each."""
    with _pair(rows, distance) as folder:
        old, new = snapshots(folder)
        size = WindowBuffers(
            max(aging // 8, 64), aging, aging_bytes=1 << 30, left_bytes=1 << 30, keys_bytes=1 << 30
        )
        return window(old, new, lambda *_: None, secret=bytes(32), buffers=size)


def figure_14(rows: int) -> Iterator[str]:
    """Pairs that the window misses, by the distance, for three sizes of the file."""
    aging = int(rows * AGING)
    yield f"Figure 14: pairs missed by distance, aging buffers of {aging:,} records"
    for share in SIZES:
        records = int(rows * share)
        counts = [missed(records, d, aging) for d in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)]
        cells = "".join(f"  {c.distance:.2f}: {c.mended:7,}" for c in counts)
        yield f"{records:9,} records{cells}"


def figure_15(rows: int) -> Iterator[str]:
    """The greatest distance without a missed pair, and the displacement that it is."""
    aging = int(rows * AGING)
    yield f"Figure 15: critical distance and displacement, aging buffers of {aging:,} records"
    for share in SIZES:
        records = int(rows * share)
        critical = critical_distance(records, aging)
        displaced = critical * records / 2
        yield (
            f"{records:9,} records  distance {critical:.2f}"
            f"  {displaced:9,.0f} records, {displaced * RECORD_BYTES / 1e6:5.2f} MB"
        )


def critical_distance(records: int, aging: int) -> float:
    """Return the distance of the files where a window begins to miss pairs, by halving."""
    low, high, best = 0.0, 1.0, 0.0
    for _ in range(6):
        middle = (low + high) / 2
        counts = missed(records, middle, aging)
        if counts.mended:
            high = middle
        else:
            low, best = middle, max(best, counts.distance)
    return best


def figure_16(rows: int) -> Iterator[str]:
    """Pairs that the window misses, by the size of the aging buffers, at one distance."""
    yield "Figure 16: pairs missed by the aging buffers, the largest file"
    for part in (0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.128, 0.16):
        counts = missed(rows, 0.34, int(rows * part))
        yield f"{part:5.1%} of the records  distance {counts.distance:.2f}: {counts.mended:7,}"


def figures_17_and_18(rows: int, runs: int) -> Iterator[str]:
    """CPU and total seconds by the size of the file, at distance 0.05; and what was read and
    written, in sizes of a file, beside the formula."""
    contenders = {"W": by_the_window, "SM": by_merging, "PH": by_hashing, "sort, comm": by_sort}
    yield "Figures 17 and 18: seconds of CPU, in all; files read and written, by the formula"
    yield f"{'records':>9}" + "".join(f"{name:>28}" for name in contenders)
    start = min(taken(nothing, Path()).cpu_s for _ in range(runs))
    for share in (0.5, 1.0):
        with _pair(int(rows * share), 0.05) as folder:
            sort_old(folder)
            partition(folder, "old")
            found = (_taken(folder, run, runs, start, name) for name, run in contenders.items())
            yield f"{int(rows * share):9,}" + "".join(f"{one:>28}" for one in found)
            if share == 1:
                taken(_keep_state, folder)
                by_spark = _taken(folder, by_the_state, runs, start)
                yield f"SMC1 by Spark, {rows:,} records: {by_spark}"


def _taken(
    folder: Path, run: Callable[[Path], str], runs: int, start: float, name: str = ""
) -> str:
    """Return the seconds of a contender; of an algorithm that is named, what it moved, too."""
    least = min((taken(run, folder) for _ in range(runs)), key=lambda t: t.cpu_s)
    text = f"{least.cpu_s - start:.2f}, {least.wall_s:.2f}"
    if name in ALGORITHMS:
        size = (folder / "new.csv").stat().st_size
        text += f"; {least.io_bytes / size:.2f}, {io(name, Files(size)) * BLOCK_BYTES / size:.0f}"
    return text


def _keep_state(folder: Path) -> str:
    return run_diff(folder, ["old.csv", "old.csv"], "sort-merge", folder / STATE)


def by_the_state(folder: Path) -> str:
    """The product's sort-merge outer join: the sorted <K, b> of the old file is there."""
    again = folder / "again"  # the run replaces its state
    shutil.copytree(folder / STATE, again)
    try:
        return run_diff(folder, ["new.csv"], "sort-merge", again)
    finally:
        shutil.rmtree(again)
