"""Pages read to find changes, by what a source allows: Carnes and Hanson's formulas and PostgreSQL.

    python -m benchmarks.source.carnes [--rows 60000] [--columns 30] [--changed 1] [--copied 1]

Table 3 and Figures 4 to 6 of the paper, beside the buffers that `EXPLAIN (ANALYZE, BUFFERS)` counts
for plain SQL at the source: a full read, a join with a copy (MDS), range checksums (ID/RCS), a time
column without an index (TS), with one (TDI), with one that covers the published columns (ATDI), and
a view over four relations with such columns (VBD). Each ends with the pairs of old and new rows, so
the older copy is at the source, too.

Figure 9 varies the columns that are published, Figure 10 the rows that the older copy has, here the
last ones by key, of which one in a hundred changed; the other table varies the rows that changed.
The paper takes changed rows for neighbours; here they are either neighbours or scattered. Formulas
get the sizes that PostgreSQL has: N pages of the relation, M of the copy, I of the index. The
options, in percent, may be given again and again: a line of the table for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import click
import psycopg

from tests.harness.servers import PostgreSQL

FIELDS: Final = 10  # of 16 characters, beside a key, a time and a flag: tuples of 200 bytes
RELATIONS: Final = 4  # that the view joins, each with the key and some of the fields
HEIGHT: Final = 3  # of an index, K in the paper
ROWS_PER_RANGE: Final = 320  # of a checksum: ten pages
COLUMNS: Final = (10, 40, 100)  # percent
CHANGED: Final = (1, 3, 10)  # percent
COPIED: Final = (1, 3, 10)  # percent
BAR: Final = 40  # characters of the longest
MARK: Final = "2026-01-01"


@dataclass(frozen=True, slots=True)
class Setting:
    """`columns` of FIELDS are published, the older copy has the rows `copied`, a share of all, and
    a `share` of these changed."""

    rows: int
    columns: int
    share: float
    is_scattered: bool
    copied: float = 1.0

    @property
    def fields(self) -> list[str]:
        return [f"f{i}" for i in range(self.columns)]

    @property
    def is_changed(self) -> str:
        """The condition of a changed row: every nth, or the last ones."""
        if self.is_scattered:
            return f"id % {round(1 / self.share)} = 0"
        return f"id >= {round(self.rows * (1 - self.share * self.copied))}"

    def is_copied(self, table: str = "") -> str:
        """The condition of a row that the older copy has."""
        key = f"{table}.id" if table else "id"
        return f"{key} >= {round(self.rows * (1 - self.copied))}" if self.copied < 1 else "true"


@dataclass(frozen=True, slots=True)
class Pages:
    """Pages that the formula says, and that were read."""

    formula: float
    measured: int


def prepare(connection: psycopg.Connection[Any], setting: Setting) -> None:
    """Make relation, copy, indexes and checksums; change rows; vacuum, as a server does."""
    fields = [f"f{i}" for i in range(FIELDS)]
    row = ", ".join(
        f"substr(md5((id * {i + 1})::text), 1, 16) AS {f}" for i, f in enumerate(fields)
    )
    some, copied = ", ".join(setting.fields), setting.is_copied()
    parts = [fields[i::RELATIONS] for i in range(RELATIONS)]
    source = f"FROM generate_series(0, {setting.rows - 1}) AS g(id)"
    unchanged = "timestamptz '2025-01-01' AS ts, false AS df"
    ranges = f"id / {ROWS_PER_RANGE} AS r"
    digest = f"sum(hashtext(concat_ws('|', id, {some}))) AS s"
    statements = [
        "DROP TABLE IF EXISTS base, older, sums, " + ", ".join(_parts()),
        f"CREATE TABLE base AS SELECT id, {row}, {unchanged} {source}",
        "ALTER TABLE base ADD PRIMARY KEY (id)",
        f"CREATE TABLE older AS SELECT id, {some} FROM base WHERE {copied}",
        "ALTER TABLE older ADD PRIMARY KEY (id)",
        f"CREATE TABLE sums AS SELECT {ranges}, {digest} FROM base WHERE {copied} GROUP BY 1",
    ]
    for name, held in zip(_parts(), parts, strict=True):
        statements += [
            f"CREATE TABLE {name} AS SELECT id, {', '.join(held)}, ts FROM base",
            f"ALTER TABLE {name} ADD PRIMARY KEY (id)",
        ]
    statements += [
        f"UPDATE base b SET f0 = 'changed', ts = '{MARK}' WHERE {setting.is_changed}",
        f"UPDATE {_parts()[0]} SET f0 = 'changed', ts = '{MARK}' WHERE {setting.is_changed}",
        *(f"CREATE INDEX {name}_ts ON {name} (ts, id)" for name in _parts()),
        "CREATE INDEX tdi ON base (ts, df)",
        f"CREATE INDEX atdi ON base (ts) INCLUDE (df, id, {some})",
        *(f"VACUUM (ANALYZE) {name}" for name in ("base", "older", "sums", *_parts())),
    ]
    for statement in statements:
        connection.execute(statement)


def _parts() -> list[str]:
    return [f"part{i}" for i in range(RELATIONS)]


def queries(setting: Setting) -> dict[str, tuple[str, str]]:
    """Return the query of each way, and settings of the planner that have it go this way."""
    new = ", ".join(f"b.{f}" for f in setting.fields)
    old = ", ".join(f"o.{f}" for f in setting.fields)
    pairs = f"SELECT b.id, {new}, {old}"
    behind, copied = f"b.ts >= '{MARK}'", setting.is_copied("b")
    sums = f"sum(hashtext(concat_ws('|', b.id, {new})))"
    ranges = (
        f"SELECT s.r FROM (SELECT b.id / {ROWS_PER_RANGE} AS r, {sums} AS s FROM base b"
        f" WHERE {copied} GROUP BY 1)"
        " n JOIN sums s USING (r) WHERE s.s <> n.s"
    )
    within = f"id >= d.r * {ROWS_PER_RANGE} AND id < (d.r + 1) * {ROWS_PER_RANGE}"
    wanted = f"{behind} AND {copied}"
    keys = " UNION ".join(f"SELECT b.id FROM {name} b WHERE {wanted}" for name in _parts())
    joined = " ".join(f"JOIN {name} USING (id)" for name in _parts())
    by_ranges = (  # OFFSET 0: the ranges and their rows are looked up
        f"WITH d AS MATERIALIZED ({ranges}) {pairs} "
        f"FROM d CROSS JOIN LATERAL (SELECT * FROM base WHERE {within} OFFSET 0) b "
        "CROSS JOIN LATERAL (SELECT * FROM older WHERE id = b.id OFFSET 0) o WHERE b.f0 <> o.f0"
    )
    some = ", ".join(setting.fields)
    view = f"WITH k AS MATERIALIZED ({keys}) SELECT id, {some} FROM k {joined}"
    no_scan, no_index = "enable_seqscan = off", "enable_indexscan = off, enable_bitmapscan = off"
    no_index = no_index if setting.copied == 1 else ""  # the rows of the copy by their keys
    by_index = f"{no_scan}, enable_hashjoin = off, enable_mergejoin = off"
    return {
        "full read": (f"SELECT b.id, {new} FROM base b WHERE {copied}", no_index),
        "MDS": (
            f"{pairs} FROM base b JOIN older o USING (id) WHERE {copied} AND "
            + (
                f"({new}) IS DISTINCT FROM ({old})"
                if setting.columns > 1
                else f"{new} IS DISTINCT FROM {old}"
            ),
            no_index,
        ),
        "ID/RCS": (by_ranges, ""),
        "TS": (f"{pairs} FROM base b JOIN older o USING (id) WHERE {wanted}", by_index),
        "TDI": (f"{pairs} FROM base b JOIN older o USING (id) WHERE {wanted}", by_index),
        "ATDI": (f"{pairs} FROM base b JOIN older o USING (id) WHERE {wanted}", by_index),
        "VBD": (view, by_index),
    }


def buffers(server: PostgreSQL, way: str, sql: str, settings: str) -> int:
    """Return the pages that a query reads, each once: the server has just started, so that its
    cache is empty. The index of another way is hidden."""
    hidden = {"TS": ("tdi", "atdi"), "TDI": ("atdi",), "ATDI": ("tdi",)}.get(way, ("tdi", "atdi"))
    with server.superuser() as connection:
        connection.execute("CHECKPOINT")
    server.crash()
    server.start()
    with server.superuser() as connection, connection.transaction(force_rollback=True):
        for index in hidden:
            connection.execute(f"DROP INDEX {index}")
        for setting in filter(None, settings.split(", ")):
            connection.execute(f"SET LOCAL {setting}")
        connection.execute("SET LOCAL max_parallel_workers_per_gather = 0")
        connection.execute("SET LOCAL jit = off")
        row = connection.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}").fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    return int(plan["Shared Read Blocks"])


def formulas(setting: Setting, pages: Callable[[str], int]) -> dict[str, float]:
    """Return the pages of each way; `pages` are those of a relation or an index."""
    n, m, share = setting.copied * pages("base"), pages("older"), setting.share
    copied = share * m  # the changed rows of the copy
    changed = share * setting.copied  # of the relation
    parts = sum(pages(name) for name in _parts())
    keys = sum(pages(f"{name}_ts") for name in _parts())
    return {
        "full read": n,
        "MDS": n + m,
        "ID/RCS": n + pages("sums") + copied,
        "TS": n + copied,
        "TDI": share * n + changed * pages("tdi") + copied + HEIGHT,
        "ATDI": changed * pages("atdi") + copied + HEIGHT,
        "VBD": changed * (keys + parts) + RELATIONS * HEIGHT,
    }


def measure(server: PostgreSQL, setting: Setting) -> Mapping[str, Pages]:
    """Return the pages of each way."""
    with server.superuser() as connection:
        prepare(connection, setting)

        def pages(name: str) -> int:
            row = connection.execute("SELECT pg_relation_size(%s::regclass)", (name,)).fetchone()
            assert row is not None
            return int(row[0]) // 8192

        said = formulas(setting, pages)
    return {
        way: Pages(said[way], buffers(server, way, *query))
        for way, query in queries(setting).items()
    }


def table(title: str, measured: list[tuple[str, Mapping[str, Pages]]]) -> Iterator[str]:
    """Yield the lines of a table, then of its chart: a bar for each way at the first and the last
    setting, relative to the full read."""
    ways = list(measured[0][1])
    yield f"| {title} | {' | '.join(ways)} |"
    yield "|" + "---|" * (1 + len(ways))
    for name, pages in measured:
        cells = [f"{one.formula:,.0f} / **{one.measured:,}**" for one in pages.values()]
        yield f"| {name} | {' | '.join(cells)} |"
    yield ""
    yield "```text"
    for name, pages in (measured[0], measured[-1]):
        whole = max(one.measured for one in pages.values())
        for way, one in pages.items():
            bar = "█" * max(round(BAR * one.measured / whole), 1)
            yield f"{name:>18} {way:<9} {bar} {one.measured:,}"
    yield "```"


@click.command()
@click.option("--rows", default=60_000, show_default=True)
@click.option("--columns", default=COLUMNS, multiple=True, show_default=True, help="Per cent.")
@click.option("--changed", default=CHANGED, multiple=True, show_default=True, help="Per cent.")
@click.option("--copied", default=COPIED, multiple=True, show_default=True, help="Per cent.")
def main(
    rows: int, columns: tuple[int, ...], changed: tuple[int, ...], copied: tuple[int, ...]
) -> None:
    """Print the three tables, formula / measured, for neighbouring and for scattered changes."""
    with PostgreSQL() as server:
        for is_scattered in (False, True):
            what = "scattered" if is_scattered else "neighbours"
            by_columns = [
                (f"{c} %, {what}", measure(server, Setting(rows, c // 10, 0.01, is_scattered)))
                for c in columns
            ]
            print(*table("columns published", by_columns), "", sep="\n", flush=True)
            by_rows = [
                (f"{c} %, {what}", measure(server, Setting(rows, 3, c / 100, is_scattered)))
                for c in changed
            ]
            print(*table("rows changed", by_rows), "", sep="\n", flush=True)
            by_copy = [
                (f"{c} %, {what}", measure(server, Setting(rows, 3, 0.01, is_scattered, c / 100)))
                for c in copied
            ]
            print(*table("rows in the older copy", by_copy), "", sep="\n", flush=True)


if __name__ == "__main__":
    main()
