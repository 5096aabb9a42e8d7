"""Dump files: what reading one costs, beside parsing it and nothing else.

    python -m benchmarks.files.dump --mib 1000

Rows are like TPC-H orders (nine columns, no quotes), made from a fixed seed. Each line is a whole
pass over the same file by a process of its own: seconds of CPU, and the peak of resident memory
(VmHWM), the least of several passes. "split" is `csv` of Python, which makes texts and no values;
"parse" converts them to the types as well, with Python's own `int`, `Decimal` and `date`; "engine"
is what the agent does: rows as bytes of the protocol, every value checked. Packed files are read by
Python's `gzip` and python-zstandard on both sides.
"""

from __future__ import annotations

import csv
import datetime as dt
import gzip
import io
import random
import shutil
import subprocess
import sys
import time
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import IO

import click
import zstandard

from benchmarks.tpch import DATA
from source_agent.engines.interface import Limits
from source_agent.engines.registry import connect
from source_agent.engines.relations.shapes import Files, Relation

FORMAT = """
[columns]
o_orderkey = "int8"
o_custkey = "int4"
o_orderstatus = "text"
o_totalprice = "numeric(15,2)"
o_orderdate = "date"
o_orderpriority = "text"
o_clerk = "text"
o_shippriority = "int4"
o_comment = "text"
"""
PASSES = ("split", "parse", "engine")
ENDINGS = ("", ".gz", ".zst")
WORDS = ("carefully", "final", "deposits", "sleep", "quickly", "about", "the", "express", "ideas")


def write(folder: Path, mib: int) -> None:
    """Write the file and its packed forms, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "orders.toml").write_text(FORMAT)
    plain = folder / "orders-1.csv"
    if all((folder / f"{plain.name}{ending}").exists() for ending in ENDINGS):
        return
    chance = random.Random(1)
    first = dt.date(1992, 1, 1)
    with plain.open("w", newline="") as file:
        file.write(",".join(line.partition(" ")[0] for line in FORMAT.split("\n")[2:-1]) + "\n")
        number = 0
        while file.tell() < mib << 20:
            for _ in range(1000):
                number += 1
                day = first + dt.timedelta(days=chance.randrange(2400))
                words = " ".join(chance.choices(WORDS, k=chance.randrange(2, 9)))
                file.write(
                    f"{number * 4},{chance.randrange(150_000)},{'OFP'[number % 3]},"
                    f"{chance.randrange(50_000_000) / 100:.2f},{day},{number % 5}-URGENT,"
                    f"Clerk#{number % 1000:09},0,{words}\n"
                )
    with plain.open("rb") as file, gzip.open(f"{plain}.gz", "wb") as packed:
        shutil.copyfileobj(file, packed)
    with plain.open("rb") as file, Path(f"{plain}.zst").open("wb") as target:
        zstandard.ZstdCompressor().copy_stream(file, target)


def text(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", newline="", encoding="utf-8")
    if path.suffix == ".zst":
        return io.TextIOWrapper(zstandard.open(path, "rb"), "utf-8", newline="")
    return path.open(newline="", encoding="utf-8")


def read(path: Path, how: str) -> int:
    """Read the file; return its rows."""
    if how == "engine":
        files = Files(path.name, path.with_name("orders.toml"), settle_s=1e-9)
        relation = Relation("orders", key=("o_orderkey",), files=files)
        with closing(connect(f"dump:///{path.parent}", None, Limits()).open()) as session:
            return sum(map(len, session.scan(session.describe(relation))))
    count = 0
    with text(path) as file:
        rows = csv.reader(file)
        next(rows)
        if how == "split":
            return sum(1 for _ in rows)
        for a, b, c, d, e, f, g, h, i in rows:
            count += 1
            (int(a), int(b), c, Decimal(d), dt.date.fromisoformat(e), f, g, int(h), i)
    return count


def peak_mib() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def measure(path: Path, how: str) -> None:
    begun = time.process_time()
    count = read(path, how)
    print(time.process_time() - begun, peak_mib(), count)


@click.command()
@click.option("--mib", default=1000, show_default=True, help="Size of the plain file.")
@click.option("--repeat", default=3, show_default=True, help="Passes of each kind.")
@click.option("--once", nargs=2, hidden=True, type=str, help="Measure one pass: a file, a kind.")
def main(mib: int, repeat: int, once: tuple[str, str] | None) -> None:
    if once is not None:
        measure(Path(once[0]), once[1])
        return
    folder = DATA / f"dump-{mib}"
    write(folder, mib)
    print(f"{'file':<8}{'pass':<8}{'CPU s':>8}{'MiB':>7}{'of split':>10}{'of parse':>10}")
    for ending in ENDINGS:
        path = folder / f"orders-1.csv{ending}"
        least: dict[str, tuple[float, float]] = {}
        for _ in range(repeat):
            for how in PASSES:
                command = [sys.executable, "-m", "benchmarks.files.dump", "--once", str(path), how]
                said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                seconds, mebibytes, _ = map(float, said.split())
                least[how] = min(least.get(how, (seconds, mebibytes)), (seconds, mebibytes))
        for how, (seconds, mebibytes) in least.items():
            of = "".join(f"{seconds / least[base][0]:>10.2f}" for base in ("split", "parse"))
            print(f"{ending or 'plain':<8}{how:<8}{seconds:>8.2f}{mebibytes:>7.0f}{of}")


if __name__ == "__main__":
    main()
