"""The contenders of a differential of two files, and what one run of each takes.

Each runs in a process of its own (`taken`): the window, the whole command, `sort` with `comm`,
DuckDB's outer join, reading alone, and nothing; and the paper's two joins of uncompressed records,
in plain Python, by lines whose key has a fixed width. These keep what the paper's keep for the next
run: the sorted file (SM), the buckets (PH).
"""

from __future__ import annotations

import contextlib
import heapq
import io
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from benchmarks.files.generator import snapshots
from warehouse_agent.differential.comparison import by_window
from warehouse_agent.differential.matching import WindowExhausted
from warehouse_agent.differential.records import RecordHashing, in_blocks

SECRET = bytes(32)
OUTPUT = "changes.parquet"
PARTS = 16  # runs, or buckets, of a file
BLOCK_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class Taken:
    """One run: seconds, the peak of the process's own memory, its answer, and the bytes that the
    process itself read and wrote, its output not counted."""

    cpu_s: float
    wall_s: float
    mib: float
    answer: str
    io_bytes: int


class Opened:
    """Files that this process opens for writing from now on, and the bytes that it reads."""

    def __init__(self) -> None:
        self.written: set[str] = set()
        self._before = _read_bytes()
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                self.written.add(str(path))

    def counted(self, folder: Path) -> str:
        """How often the files were read, and how many files beside the output were written."""
        size = sum((folder / f"{name}.csv").stat().st_size for name in ("old", "new"))
        times = (_read_bytes() - self._before) / size
        others = [path for path in self.written if f".{OUTPUT}-" not in path]
        return f"files read {times:.2f} times, {len(others)} temporary files"


def _read_bytes() -> int:
    return _kept("io", "rchar")


def _moved_bytes() -> int:
    return _read_bytes() + _kept("io", "wchar")


def _peak_mib() -> float:
    return _kept("status", "VmHWM") / 1024  # ru_maxrss has the parent's, too


def _kept(file: str, name: str) -> int:
    lines = Path(f"/proc/self/{file}").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def parse(folder: Path) -> str:
    return f"{sum(len(rows) for file in snapshots(folder) for rows in file.read()):,} rows"


def parse_and_hash(folder: Path) -> str:
    files = snapshots(folder)
    hashing = RecordHashing(files[0].recipe, SECRET)
    rows = sum(len(block) for file in files for block in in_blocks(file, hashing, 1 << 14))
    return f"{rows:,} rows"


def by_the_window(folder: Path) -> str:
    old, new = snapshots(folder)
    opened = Opened()
    try:
        counts = by_window(old, new, folder / OUTPUT)
    except WindowExhausted as limit:
        return f"gave up: {limit}"
    text = f"{counts.mended:,} pairs mended, distance {counts.distance:.3f}"
    return f"{text}, {opened.counted(folder)}"


def by_the_command(folder: Path) -> str:
    """`driftline diff`, which joins by Spark where the window gives up."""
    return run_diff(folder, ["old.csv", "new.csv"])


def run_diff(
    folder: Path, files: list[str], algorithm: str | None = None, state: Path | None = None
) -> str:
    """Run the command; return the algorithm that found the changes."""
    from warehouse_agent.differential.command import DiffOptions, diff

    options = DiffOptions(folder / "format.toml", ["id"], algorithm, state, folder / OUTPUT)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        diff(folder / "warehouse.toml", [folder / name for name in files], options)
    _end_spark()
    return said.getvalue().splitlines()[-1]


def _end_spark() -> None:
    """End the JVM, if there is one, so that its CPU counts as that of a child."""
    if (pyspark := sys.modules.get("pyspark")) is None or pyspark.SparkContext._gateway is None:
        return
    gateway = pyspark.SparkContext._gateway
    pyspark.sql.SparkSession.getActiveSession().stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


def by_sort(folder: Path) -> str:
    """The old file is sorted already, as by the run before; the new one is sorted and compared."""
    script = "tail -n +2 new.csv | sort -S 64M > new.sorted; comm -3 old.sorted new.sorted | wc -l"
    environment = {**os.environ, "LC_ALL": "C", "TMPDIR": str(folder)}
    done = subprocess.run(
        ["bash", "-ec", script], cwd=folder, env=environment, capture_output=True, check=True
    )
    return f"{int(done.stdout):,} lines"


def by_duckdb(folder: Path) -> str:
    import duckdb

    database = duckdb.connect()
    database.execute(f"set threads = 1; set temp_directory = '{folder / 'spill'}'")
    read = "read_csv('{}', header = true, all_varchar = true)"
    old, new = (read.format(folder / f"{name}.csv") for name in ("old", "new"))
    row = database.execute(
        f"select count(*) from {old} o full outer join {new} n using (id)"
        " where o.b is distinct from n.b"
    ).fetchone()
    return f"{row[0] if row else 0:,} changes"


def by_merging(folder: Path) -> str:
    """The paper's SM: runs of the new file are merged with the old one, which is sorted already."""
    runs, changes = [folder / f"run{number}" for number in range(PARTS)], 0
    with (folder / "new.csv").open("rb", BLOCK_BYTES) as file:
        next(file)
        size = -(-(folder / "new.csv").stat().st_size // _line_bytes(folder) // PARTS)
        for run in runs:
            with run.open("wb", BLOCK_BYTES) as sorted_lines:
                sorted_lines.writelines(sorted(islice(file, size)))
        assert not next(file, b"")
    with contextlib.ExitStack() as stack:
        old = stack.enter_context((folder / "old.sorted").open("rb", BLOCK_BYTES))
        new = heapq.merge(*(stack.enter_context(run.open("rb", BLOCK_BYTES)) for run in runs))
        kept = stack.enter_context((folder / "new.sorted").open("wb", BLOCK_BYTES))
        r_1, r_2 = next(old, b""), next(new, b"")
        while r_1 or r_2:
            k_1, k_2 = _key(r_1), _key(r_2)
            changes += r_1 != r_2
            if r_2 and (not r_1 or k_2 <= k_1):
                kept.write(r_2)
                r_2 = next(new, b"")
            if r_1 and (not k_2 or k_1 <= k_2):
                r_1 = next(old, b"")
    return f"{changes:,} changes"


def by_hashing(folder: Path) -> str:
    """The paper's PH: buckets of the new file are compared with the old one's, which are there."""
    partition(folder, "new")
    changes = 0
    for number in range(PARTS):
        with (folder / f"old{number}").open("rb", BLOCK_BYTES) as bucket:
            left = {_key(line): line for line in bucket}
        with (folder / f"new{number}").open("rb", BLOCK_BYTES) as bucket:
            changes += sum(left.pop(_key(line), None) != line for line in bucket)
        changes += len(left)
    return f"{changes:,} changes"


def partition(folder: Path, name: str) -> None:
    """Write the buckets of a file."""
    with contextlib.ExitStack() as stack:
        file = stack.enter_context((folder / f"{name}.csv").open("rb", BLOCK_BYTES))
        next(file)
        paths = [folder / f"{name}{number}" for number in range(PARTS)]
        buckets = [stack.enter_context(path.open("wb", BLOCK_BYTES)) for path in paths]
        for line in file:
            buckets[int(_key(line)) % PARTS].write(line)


def _key(line: bytes) -> bytes:
    return line.partition(b",")[0]


def _line_bytes(folder: Path) -> int:
    with (folder / "old.sorted").open("rb") as file:
        return len(next(file))


def nothing(_: Path) -> str:
    return ""


def _child(run: Callable[[Path], str], folder: Path, answers: multiprocessing.Queue) -> None:
    output = folder / OUTPUT
    output.unlink(missing_ok=True)  # that of another contender
    begun, moved = time.perf_counter(), _moved_bytes()
    answer = run(folder)
    wall, moved = time.perf_counter() - begun, _moved_bytes() - moved
    moved -= output.stat().st_size if output.exists() else 0
    answers.put(Taken(sum(os.times()[:4]), wall, _peak_mib(), answer, moved))


def taken(run: Callable[[Path], str], folder: Path) -> Taken:
    """Run a function in a process of its own."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    child = context.Process(target=_child, args=(run, folder, answers))
    child.start()
    measured: Taken = answers.get()
    child.join()
    return measured


def sort_old(folder: Path) -> None:
    """Sort the old file, as the run before has left it."""
    environment = {**os.environ, "LC_ALL": "C"}
    script = "tail -n +2 old.csv | sort > old.sorted"
    subprocess.run(["bash", "-ec", script], cwd=folder, env=environment, check=True)
