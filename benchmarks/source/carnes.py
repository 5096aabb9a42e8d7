"""Pages read to find changes, by what a source allows: Carnes and Hanson's formulas and PostgreSQL.

    python -m benchmarks.source.carnes [--rows 60000] [--columns 30] [--changed 1] [--copied 1]
    python -m benchmarks.source.carnes --view-rows 100000     section 4's case, with Spark

Table 3 and Figures 9 and 10 of the paper. RSBC and P/SWC, which compare files that a report wrote,
are formulas alone. MDS and TLCS keep a copy or a checksum at the source, which Driftline never
does: they are the paper's SQL, and `EXPLAIN (ANALYZE, BUFFERS)` counts their buffers. The others
are refreshes of Driftline, and the server counts what it read for all their statements
(`pg_statio_user_tables`): a comparison of all rows by ranges (ID/RCS), the same in tiles (ID), by a
time column without an index (TS), with one (TDI), with one that covers the published columns
(ATDI), and of four relations with such columns, which a view joins (VBD). Their copies, and the
sums of ranges, are at the warehouse, so what a formula counts for these is not read at the source.
Each change is proven, and so are all keys, which TS, TDI, ATDI and VBD read in an index.

Figure 9 varies the columns that are published, Figure 10 the rows that the copy has, here the last
ones by key, of which one in a hundred changed; the other table varies the rows that changed. The
paper takes changed rows for neighbours; here they are either neighbours or scattered. Formulas get
the sizes that PostgreSQL has: N pages of the relation, M of a copy, I of an index. The options, in
percent, may be given again and again: a line of the table for each. `--statements` prints what
each refresh asked of the server, at the first line.

Section 4's case: four relations of `--view-rows` rows, 1 % changed, half of the columns in a view.
Everything is counted in pages of 8 kB: read at the source, sent, and written at the warehouse.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import click
import psycopg

from tests.harness.legacy import PostgresLegacy
from tests.harness.no_spark import NoSpark
from tests.harness.pair import Pair
from tests.harness.servers import PostgreSQL
from tests.harness.views import Sites
from warehouse_agent.spark.session import DeferredSession

FIELDS: Final = 10  # of 16 characters, beside a key, a time and a checksum: tuples of 200 bytes
RELATIONS: Final = 4  # that the view joins, each with the key and some of the fields
HEIGHT: Final = 3  # of an index, K in the paper
ROWS_PER_RANGE: Final = 320  # of a checksum: ten pages
ENTRY_BYTES: Final = 20  # of the auxiliary table: two keys and a checksum
ROWS_PER_TILE: Final = 10_000
COLUMNS: Final = (10, 40, 100)  # percent
CHANGED: Final = (1, 10)  # percent
COPIED: Final = (1, 10)  # percent
PAGE: Final = 8192  # bytes
BAR: Final = 40  # characters of the longest
FILES = ("RSBC", "P/SWC")
MARKER = 'marker = { column = "ts", late = "1s" }'
WAITED_S: Final = 10.0  # until the sessions of the agent have ended, at most
# Section 4's costs in N. Driftline replaces nothing: a first load stands beside the replacement.
PAPERS_FILES: Final = 30.04
PAPERS_VIEW: Final = (
    ("replace; first load", "full", 22.0),
    ("checksums; ranges", "range", 4.1),
    ("time stamps; marker", "since", 0.152),
)
SPARK: Final = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}


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

    @property
    def is_copied(self) -> str:
        """The condition of a row that the older copy has."""
        return f"id >= {round(self.rows * (1 - self.copied))}" if self.copied < 1 else "true"


@dataclass(frozen=True, slots=True)
class Pages:
    """Pages that the formula says, and that were read; None: nothing reads them."""

    formula: float
    measured: int | None


class Site:
    """A database of its own on a server that may be started anew, with a login for the agent."""

    def __init__(self, server: PostgreSQL) -> None:
        self.server, self.legacy = server, PostgresLegacy(server)

    def owner(self) -> psycopg.Connection[Any]:
        """Return a new connection of the owner's."""
        return self.server.superuser(self.legacy.database)

    def pages(self, *names: str) -> int:
        """Return the pages that relations or indexes have."""
        sizes = " + ".join(f"pg_relation_size('{name}')" for name in names)
        return _number(self.owner(), f"SELECT ({sizes}) / {PAGE}")

    def empty_cache(self) -> None:
        """Start the server anew, so that each page that is read is counted once."""
        with self.owner() as connection:
            connection.execute("CHECKPOINT")
        self.server.crash()
        self.server.start()

    def pages_read(self) -> int:
        """Return the pages that were read since the start, once the agent's sessions ended."""
        deadline = time.monotonic() + WAITED_S
        agents = f"SELECT count(*) FROM pg_stat_activity WHERE usename = '{self.legacy.login}'"
        while _number(self.owner(), agents):
            assert time.monotonic() < deadline, "the agent still has a session"
            time.sleep(0.02)
        blocks = "heap_blks_read + coalesce(idx_blks_read, 0)"
        return _number(self.owner(), f"SELECT sum({blocks}) FROM pg_statio_user_tables")


def _number(connection: psycopg.Connection[Any], sql: str) -> int:
    with connection:
        row = connection.execute(sql).fetchone()
    assert row is not None
    return int(row[0])


def _parts() -> list[str]:
    return [f"part{i}" for i in range(RELATIONS)]


def prepare(connection: psycopg.Connection[Any], setting: Setting) -> None:
    """Make the relation, its copy, and the relations of the view, before anything changed."""
    fields = [f"f{i}" for i in range(FIELDS)]
    row = ", ".join(
        f"substr(md5((id * {i + 1})::text), 1, 16) AS {f}" for i, f in enumerate(fields)
    )
    some, source = (
        ", ".join(setting.fields),
        f"FROM generate_series(0, {setting.rows - 1}) AS g(id)",
    )
    sums, ts = f"hashtext(concat_ws('|', {some})) AS cs", "timestamptz '2025-01-01' AS ts"
    statements = [
        f"CREATE TABLE base AS SELECT *, {sums} FROM (SELECT id, {row}, {ts} {source}) made",
        f"CREATE TABLE older AS SELECT id, {some} FROM base WHERE {setting.is_copied}",
    ]
    for i, name in enumerate(_parts()):
        held = ", ".join(fields[i::RELATIONS])
        statements.append(f"CREATE TABLE {name} AS SELECT id, {held}, ts FROM base")
    for name in ("base", "older", *_parts()):
        statements += [f"ALTER TABLE {name} ADD PRIMARY KEY (id)", f"VACUUM (ANALYZE) {name}"]
    for statement in statements:
        connection.execute(statement)


def change(connection: psycopg.Connection[Any], setting: Setting) -> None:
    """Change rows; vacuum, as a server does."""
    for name in ("base", _parts()[0]):
        connection.execute(
            f"UPDATE {name} SET f0 = 'changed', ts = clock_timestamp() WHERE {setting.is_changed}"
        )
        connection.execute(f"VACUUM (ANALYZE) {name}")


def index(connection: psycopg.Connection[Any], way: str, setting: Setting) -> None:
    """Give each relation the index of a way and no other beside that of its key."""
    rest = {"base": setting.fields} | {
        name: [f"f{n}" for n in range(i, FIELDS, RELATIONS)] for i, name in enumerate(_parts())
    }
    for name, columns in rest.items():
        connection.execute(f"DROP INDEX IF EXISTS {name}_ts")
        if way in ("TDI", "ATDI", "VBD"):
            covers = "" if way == "TDI" else f" INCLUDE ({', '.join(['id', *columns])})"
            connection.execute(f"CREATE INDEX {name}_ts ON {name} (ts){covers}")
        connection.execute(f"VACUUM (ANALYZE) {name}")


def relations(setting: Setting) -> dict[str, tuple[str, str]]:
    """Return the lines of source.toml and of the fragment, by the name of a relation."""
    columns = ", ".join(f'"{name}"' for name in ["id", *setting.fields])
    table = f'table = "base"\ncolumns = [{columns}]\n'
    if setting.copied < 1:
        table += f'where = "{setting.is_copied}"\n'
    tiles = f'require = "fuzzy"\nincremental = {{ rows = {ROWS_PER_TILE}, pause_s = 0.001 }}'
    since = 'method = "since"\nproof = "keys"'
    return {
        "id_rcs": (table, 'method = "range"'),
        "id": (table, tiles),
        **dict.fromkeys(("ts", "tdi", "atdi"), (table + MARKER, since)),
        **{name: (f'table = "{name}"\n{MARKER}', since) for name in _parts()},
    }


# Of each way, in turn, the relations that it refreshes.
REFRESHED: Final = {
    "ID/RCS": ("id_rcs",),
    "ID": ("id",),
    "TS": ("ts",),
    "TDI": ("tdi",),
    "ATDI": ("atdi",),
    "VBD": tuple(_parts()),
}


def queries(setting: Setting) -> dict[str, tuple[str, str]]:
    """Return the query of each baseline, and settings of the planner that have it go this way."""
    new = ", ".join(f"b.{f}" for f in setting.fields)
    old = ", ".join(f"o.{f}" for f in setting.fields)
    base = f"(SELECT * FROM base WHERE {setting.is_copied}) b"
    different = f"({new}) IS DISTINCT FROM ({old})"
    if setting.columns == 1:
        different = f"{new} IS DISTINCT FROM {old}"
    # All pages are read in their order, and a part of the rows by their keys.
    by_scan = "enable_indexscan = off, enable_bitmapscan = off" if setting.copied == 1 else ""
    is_stale = f"cs <> hashtext(concat_ws('|', {new}))"
    mds = f"SELECT id, {new}, {old} FROM {base} FULL JOIN older o USING (id) WHERE {different}"
    # OFFSET 0: the rows of the copy are looked up.
    old_row = "CROSS JOIN LATERAL (SELECT * FROM older WHERE id = b.id OFFSET 0) o"
    stale = f"WITH c AS MATERIALIZED (SELECT * FROM {base} WHERE {is_stale})"
    tlcs = f"{stale} SELECT b.id, {new}, {old} FROM c b {old_row}"
    return {"MDS": (mds, by_scan), "TLCS": (tlcs, "")}


def buffers(site: Site, sql: str, settings: str) -> int:
    """Return the pages that a query reads, each once."""
    site.empty_cache()
    with site.owner() as connection, connection.transaction(force_rollback=True):
        for setting in filter(None, settings.split(", ")):
            connection.execute(f"SET LOCAL {setting}")
        connection.execute("SET LOCAL max_parallel_workers_per_gather = 0")
        connection.execute("SET LOCAL jit = off")
        row = connection.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}").fetchone()
    assert row is not None
    return int(row[0][0]["Plan"]["Shared Read Blocks"])


def refreshed(site: Site, pair: Pair, way: str, *, is_shown: bool = False) -> int:
    """Return the pages that refreshes read of all relations and their indexes, each once."""
    site.empty_cache()
    log = site.server.folder / "log"
    begins = log.stat().st_size
    changed = [pair.refresh(name).rows_changed for name in REFRESHED[way]]
    assert changed[0]
    read = site.pages_read()
    if is_shown:
        click.echo(f"-- {way}: {read:,} pages\n{asked(log, begins)}")
    return read


def asked(log: Path, begins: int) -> str:
    """Return the statements that read rows, each once, that the log has from a place on."""
    with log.open("rb") as file:
        file.seek(begins)
        entries = file.read().decode(errors="replace").split("LOG:  ")
    read = [" ".join(entry.split()) for entry in entries if entry.startswith("execute ")]
    return "\n".join(f"--   {one[:300]}" for one in dict.fromkeys(read) if ": COPY (" in one)


def formulas(setting: Setting, pages: Callable[..., int]) -> dict[str, float]:
    """Return the pages of each way; `pages` are those of a relation or an index."""
    n, m, share = setting.copied * pages("base"), pages("older"), setting.share
    copied = share * m  # the changed rows of the copy
    sums = -(-setting.copied * setting.rows // ROWS_PER_RANGE) * ENTRY_BYTES / PAGE
    return {
        "RSBC": 6 * pages("base"),
        "P/SWC": 2 * pages("base"),
        "MDS": n + m,
        "TLCS": n + copied,
        "ID/RCS": n + sums + copied,
        "ID": n + m + sums,
        "TS": n + copied,
    }


def formulas_by_index(way: str, setting: Setting, pages: Callable[..., int]) -> float:
    """Return the same of the ways that need an index, while it is there."""
    changed, copied = setting.share * setting.copied, setting.share * pages("older")
    if way == "VBD":
        return changed * pages(*_parts(), *(f"{name}_ts" for name in _parts())) + RELATIONS * HEIGHT
    base = setting.share * setting.copied * pages("base") if way == "TDI" else 0
    return base + changed * pages("base_ts") + copied + HEIGHT


def measure(server: PostgreSQL, setting: Setting, *, is_shown: bool = False) -> Mapping[str, Pages]:
    """Return the pages of each way."""
    site, served = Site(server), relations(setting)
    with TemporaryDirectory() as folder:
        with site.owner() as connection:
            prepare(connection, setting)
        lines = {name: of_source for name, (of_source, _) in served.items()}
        with Pair(NoSpark(), site.legacy, Path(folder), lines) as pair:
            pair.fragment_lines = {name: of_fragment for name, (_, of_fragment) in served.items()}
            for name in served:
                pair.refresh(name)
            with site.owner() as connection:
                change(connection, setting)
            said = formulas(setting, site.pages)
            found: dict[str, int | None] = dict.fromkeys(FILES)
            found |= {way: buffers(site, *query) for way, query in queries(setting).items()}
            for way in REFRESHED:
                with site.owner() as connection:
                    index(connection, way, setting)
                if way not in said:
                    said[way] = formulas_by_index(way, setting, site.pages)
                found[way] = refreshed(site, pair, way, is_shown=is_shown)
    return {way: Pages(said[way], found[way]) for way in said}


def table(title: str, measured: list[tuple[str, Mapping[str, Pages]]]) -> Iterator[str]:
    """Yield the lines of a table, then of its chart: a bar for each way at the first and the last
    setting, relative to the longest."""
    ways = list(measured[0][1])
    yield f"| {title} | {' | '.join(ways)} |"
    yield "|" + "---|" * (1 + len(ways))
    for name, pages in measured:
        cells = [
            f"{one.formula:,.0f}" + ("" if one.measured is None else f" / **{one.measured:,}**")
            for one in pages.values()
        ]
        yield f"| {name} | {' | '.join(cells)} |"
    yield ""
    yield "```text"
    for name, pages in dict((measured[0], measured[-1])).items():
        bars = {
            way: round(one.formula) if one.measured is None else one.measured
            for way, one in pages.items()
        }
        whole = max(bars.values())
        for way, count in bars.items():
            yield f"{name:>18} {way:<9} {'█' * max(round(BAR * count / whole), 1)} {count:,}"
    yield "```"


class View:
    """Four relations of `rows` rows, and a view that joins them and has half of their columns."""

    def __init__(self, server: PostgreSQL, folder: Path, rows: int) -> None:
        self._site, self._rows = Site(server), rows
        half = [f"f{i}" for i in range(FIELDS // 2)]
        columns = ", ".join(f"f{i} char(16)" for i in range(FIELDS))
        shown = ", ".join(f"{t}.{f} AS {t}_{f}" for t in _parts() for f in half)
        first, *others = _parts()
        joined = " ".join(f"JOIN {name} ON {name}.id = {first}.id" for name in others)
        self._sites = Sites(
            DeferredSession(SPARK),
            folder,
            {"m": dict.fromkeys(_parts(), f"id int PRIMARY KEY, {columns}, ts timestamptz")},
            {"v": f"SELECT {first}.id, {shown} FROM {first} {joined}"},
            {"m": self._site.legacy},
        )
        published = ", ".join(f'"{name}"' for name in ["id", *half])
        for name in _parts():
            lines = f'table = "{name}"\ncolumns = [{published}]\n{MARKER}'
            self._sites.pairs["m"].publish(name, lines)
        values = ", ".join(f"substr(md5((id * {i + 1})::text), 1, 16)" for i in range(FIELDS))
        self._execute(
            f"INSERT INTO {{}} SELECT id, {values}, timestamptz '2025-01-01'"
            f" FROM generate_series(0, {rows - 1}) AS g(id)",
            f"CREATE INDEX {{0}}_ts ON {{0}} (ts) INCLUDE (id, {', '.join(half)})",
            "VACUUM (ANALYZE) {}",
        )

    def __enter__(self) -> View:
        return self

    def __exit__(self, *_: object) -> None:
        self._sites.__exit__()

    def _execute(self, *statements: str) -> None:
        with self._site.owner() as connection:
            for name in _parts():
                for statement in statements:
                    connection.execute(statement.format(name))

    @property
    def pages(self) -> float:
        """Return the pages of a relation, the paper's N: a quarter of those of all."""
        return self._site.pages(*_parts()) / RELATIONS

    def change(self) -> None:
        """Change one row in a hundred of each relation: the last ones."""
        self._execute(
            "UPDATE {} SET f0 = left(reverse(f0) || 'x', 16), ts = clock_timestamp()"
            f" WHERE id >= {round(self._rows * 0.99)}",
            "VACUUM (ANALYZE) {}",
        )

    def refresh(self, method: str) -> tuple[float, float, float]:
        """Refresh all; return pages that were read at the source, sent, and written here."""
        lines = f'source = "m"\nproof = "keys"\nmethod = "{method}"'
        self._sites.fragment_lines = dict.fromkeys(_parts(), lines)
        self._site.empty_cache()
        before = _files(self._sites.warehouse)
        reports = self._sites.well().values()
        sent = sum(report.bytes_sent + report.bytes_received for report in reports)
        new = sum(
            size for file, size in _files(self._sites.warehouse).items() if file not in before
        )
        return self._site.pages_read(), sent / PAGE, new / PAGE


def _files(folder: Path) -> dict[tuple[Path, int], int]:
    """Return the sizes of the files below a folder, by name and time."""
    stats = {path: path.stat() for path in folder.rglob("*") if path.is_file()}
    return {(path, stat.st_mtime_ns): stat.st_size for path, stat in stats.items()}


def section_4(server: PostgreSQL, rows: int) -> Iterator[str]:
    """Yield the lines of the paper's example of a view, its formulas beside refreshes."""
    with TemporaryDirectory() as folder, View(server, Path(folder), rows) as view:
        yield f"four relations of {rows:,} rows, N = {view.pages:,.0f} pages of 8 kB"
        yield "| way | formula, N | formula | read at the source | sent | written | all, N |"
        yield "|---|---|---|---|---|---|---|"
        yield _row_of_view("files, apply changes", PAPERS_FILES, view.pages, None)
        for way, method, formula in PAPERS_VIEW:
            n = view.pages
            yield _row_of_view(way, formula, n, view.refresh(method))
            view.change()


def _row_of_view(
    way: str, formula: float, n: float, counts: tuple[float, float, float] | None
) -> str:
    cells = ["" if counts is None else f"**{count:,.0f}**" for count in counts or [0] * 3]
    whole = "" if counts is None else f"**{sum(counts) / n:.3f}**"
    return f"| {way} | {formula:g} | {formula * n:,.0f} | {' | '.join(cells)} | {whole} |"


@click.command()
@click.option("--rows", default=60_000, show_default=True)
@click.option("--columns", default=COLUMNS, multiple=True, show_default=True, help="Per cent.")
@click.option("--changed", default=CHANGED, multiple=True, show_default=True, help="Per cent.")
@click.option("--copied", default=COPIED, multiple=True, show_default=True, help="Per cent.")
@click.option("--view-rows", default=0, help="Section 4's case, with Spark: rows of a relation.")
@click.option("--statements", "is_shown", is_flag=True, help="Print what refreshes ask.")
def main(
    rows: int,
    columns: tuple[int, ...],
    changed: tuple[int, ...],
    copied: tuple[int, ...],
    view_rows: int,
    is_shown: bool,
) -> None:
    """Print the tables, formula / measured, and section 4's case."""
    with PostgreSQL(log_statement="all" if is_shown else "none") as server:
        near = [(c, Setting(rows, c // 10, 0.01, False)) for c in columns]
        few = [(c, Setting(rows, 3, 0.01, False, c / 100)) for c in copied]
        some = [(c, Setting(rows, 3, c / 100, far)) for far in (False, True) for c in changed]
        for title, settings in (
            ("Figure 9: columns published", near),
            ("Figure 10: rows in the older copy", few),
            ("rows changed", some),
        ):
            measured = []
            for percent, setting in settings:
                what = "scattered" if setting.is_scattered else "neighbours"
                pages = measure(server, setting, is_shown=is_shown)
                measured.append((f"{percent} %, {what}", pages))
                is_shown = False
            if measured:
                print(*table(title, measured), "", sep="\n", flush=True)
        if view_rows:
            for line in section_4(server, view_rows):
                click.echo(line)


if __name__ == "__main__":
    main()
