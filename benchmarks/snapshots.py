"""Differentials of two files: the window beside the joins, `sort` and DuckDB.

    python -m benchmarks.snapshots --rows 400000
    python -m benchmarks.snapshots --rows 400000 --figures

Snapshots are made as Labio and Garcia-Molina's generator makes them (section 5.2): records of 156
bytes in the order of their keys; each is moved by up to twice a mean displacement. Unlike theirs, a
share is also inserted and deleted. Each contender is a process of its own: seconds of its CPU, its
children's as well, and its peak memory. Ratios are to "parse and hash", which reads both files,
makes row bytes and hashes them. `--figures` prints Figures 14 and 16 in shape.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np

from warehouse_agent.differential.comparison import by_window
from warehouse_agent.differential.reading import named
from warehouse_agent.differential.records import Hashing, Snapshot, in_blocks
from warehouse_agent.differential.window import Buffers, window

FORMAT = '[columns]\nid = "int8"\nb = "text"\n'
SECRET = bytes(32)
Taken = tuple[float, float, object]


def write(path: Path, keys: np.ndarray, versions: np.ndarray) -> None:
    filler = "x" * 140
    with path.open("w", encoding="ascii") as file:
        file.write("id,b\n")
        for key, version in zip(keys.tolist(), versions.tolist(), strict=True):
            file.write(f"{key:08},{version:04}{filler}\n")


def make(folder: Path, rows: int, displacement: float, *, changed: tuple[float, ...]) -> None:
    """Write both files and their format; `changed`: shares of updates, inserts and deletes."""
    dice = np.random.default_rng(7)
    keys = np.arange(rows) * 2
    write(folder / "old.csv", keys, np.zeros(rows, np.int64))
    stays = dice.random(rows) >= changed[2]
    inserted = np.sort(dice.choice(rows, int(rows * changed[1]), replace=False)) * 2 + 1
    new = np.concatenate([keys[stays], inserted])
    version = np.concatenate([dice.random(int(stays.sum())) < changed[0], np.ones(len(inserted))])
    place = np.argsort(new + dice.uniform(0, 4 * displacement, len(new)))
    write(folder / "new.csv", new[place], version[place].astype(np.int64))
    (folder / "format.toml").write_text(FORMAT)


def files(folder: Path) -> list[Snapshot]:
    return [named(folder / f"{n}.csv", folder / "format.toml", ("id",)) for n in ("old", "new")]


def parse(folder: Path) -> object:
    return sum(len(rows) for file in files(folder) for rows in file.read())


def parse_and_hash(folder: Path) -> object:
    found = files(folder)
    hashing = Hashing(found[0].recipe, SECRET)
    return sum(len(block) for file in found for block in in_blocks(file, hashing, 1 << 14))


def by_the_window(folder: Path) -> object:
    old, new = files(folder)
    counts = by_window(old, new, folder / "changes.parquet")
    shown = f"{counts.updates + counts.inserts + counts.deletes:,} changes, {counts.mended} mended"
    return f"{shown}, distance {counts.distance:.3f}"


def by_sort(folder: Path) -> object:
    """The old file is sorted already, as by the run before; the new one is sorted and compared."""
    script = "tail -n +2 new.csv | sort -S 64M > new.sorted; comm -3 old.sorted new.sorted | wc -l"
    environment = {**os.environ, "LC_ALL": "C", "TMPDIR": str(folder)}
    done = subprocess.run(
        ["bash", "-ec", script], cwd=folder, env=environment, capture_output=True, check=True
    )
    return f"{int(done.stdout):,} lines"


def by_duckdb(folder: Path) -> object:
    import duckdb

    database = duckdb.connect()
    database.execute(f"set threads = 1; set temp_directory = '{folder / 'spill'}'")
    read = "read_csv('{}', header = true, all_varchar = true)"
    old, new = (read.format(folder / f"{name}.csv") for name in ("old", "new"))
    found = database.execute(
        f"select count(*) from {old} o full outer join {new} n using (id)"
        " where o.b is distinct from n.b"
    ).fetchone()
    return f"{found[0] if found else 0:,} changes"


def _child(run: Callable[[Path], object], folder: Path, answers: multiprocessing.Queue) -> None:
    found = run(folder)
    used = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(u.ru_utime + u.ru_stime for u in used)
    answers.put((cpu, max(u.ru_maxrss for u in used) / 1024, found))


def _nothing(_: Path) -> object:
    return ""


def taken(run: Callable[[Path], object], folder: Path) -> Taken:
    """CPU seconds, peak MiB and the answer of a function in a process of its own."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    child = context.Process(target=_child, args=(run, folder, answers))
    child.start()
    found: Taken = answers.get()
    child.join()
    return found


def compare(folder: Path, runs: int) -> None:
    subprocess.run(
        ["bash", "-ec", "tail -n +2 old.csv | sort > old.sorted"],
        cwd=folder,
        env={**os.environ, "LC_ALL": "C"},
        check=True,
    )
    contenders = {
        "imports alone": _nothing,
        "parse": parse,
        "parse and hash": parse_and_hash,
        "window": by_the_window,
        "sort, comm (old sorted before)": by_sort,
        "DuckDB full outer join": by_duckdb,
    }
    best: dict[str, Taken] = {}
    for _ in range(runs):
        for name, run in contenders.items():
            found = taken(run, folder)
            best[name] = min(best.get(name, found), found, key=lambda t: t[0])
    start = best["imports alone"]
    base = best["parse and hash"][0] - start[0]
    for name, (cpu, memory, answer) in best.items():
        own = cpu - start[0]
        click.echo(
            f"{name:32} {own:6.2f} s CPU  x{own / base:4.2f}"
            f"  {memory:5.0f} MiB (+{memory - start[1]:.0f})  {answer}"
        )


def in_memory(folder: Path, buffers: Buffers) -> str:
    old, new = files(folder)
    counts = window(old, new, lambda *_: None, secret=SECRET, buffers=buffers)
    return f"distance {counts.distance:.3f}: {counts.mended:,} pairs mended"


def figures(rows: int) -> None:
    """Useless pairs of a window that would not mend, by distance and by aging buffer."""
    for title, cases in {
        "Figure 14: by distance, aging buffers of 8,000 records": [
            (share, 8_000) for share in (0.05, 0.1, 0.15, 0.2, 0.3)
        ],
        "Figure 16: by aging buffer, displacement of 10 %": [
            (0.1, aging) for aging in (1_000, 2_000, 4_000, 8_000, 16_000)
        ],
    }.items():
        click.echo(title)
        for share, aging in cases:
            with tempfile.TemporaryDirectory() as name:
                make(Path(name), rows, rows * share, changed=(0.2, 0, 0))
                size = Buffers(4096, aging, aging_bytes=1 << 30, left_bytes=1 << 30)
                click.echo(f"  aging {aging:6,}: {in_memory(Path(name), size)}")


@click.command()
@click.option("--rows", default=400_000, show_default=True)
@click.option("--displacement", default=0.02, show_default=True, help="Mean, as a share of rows.")
@click.option("--runs", default=3, show_default=True)
@click.option("--figures", "with_figures", is_flag=True)
def main(rows: int, displacement: float, runs: int, with_figures: bool) -> None:
    if with_figures:
        figures(rows)
        return
    folder = Path(tempfile.mkdtemp())
    try:
        make(folder, rows, rows * displacement, changed=(0.01, 0.002, 0.002))
        compare(folder, runs)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
