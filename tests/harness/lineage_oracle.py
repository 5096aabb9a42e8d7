"""What the views of `Sites` should hold, lineage included, and where their feeds should lead.

DuckDB evaluates each view over the rows that the owners' connections read. The key of a row is made
here from the protocol's own encoders, not from the warehouse's files.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import duckdb
import pyarrow.parquet as pq
from driftline.values.send_format import string_encoder

from tests.harness.pair import plain
from tests.harness.views import Sites, insert
from warehouse_agent.columns.view_layout import LINEAGE
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import PRIVATE, Store, located
from warehouse_agent.storage.table import ViewSnapshot
from warehouse_agent.views.inputs import query_of

Rows = dict[tuple[Any, ...], tuple[Any, ...]]  # values by lineage
_OWN = "own_key"


class LineageOracle:
    """Remembers the version of each view that it saw, so that it can follow the feeds."""

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        self._seen: dict[str, tuple[int, Rows]] = {}

    def check(self) -> None:
        """Compare every view with the oracle; follow its feed from the version seen before."""
        expected, store = self._expected(), self._sites.store
        for name in self._sites.views:
            head = formats.view_head(store, name)
            assert head is not None
            found = self._rows(head)
            assert found == expected[name], name
            if name in self._seen:
                version, rows = self._seen[name]
                assert self._followed(store, name, rows, version, head.version) == found, name
            self._seen[name] = head.version, found

    def _rows(self, head: ViewSnapshot) -> Rows:
        found: Rows = {}
        count = 0
        for file in head.files:
            system, path = located(file.uri)
            for row in pq.read_table(path, filesystem=system).to_pylist():
                found.update([_split(tuple(row.values()), len(head.layout.lineage))])
                count += 1
        assert count == len(found) == head.rows, "a lineage occurs once"
        return found

    @staticmethod
    def _followed(store: Store, name: str, rows: Rows, since: int, upto: int) -> Rows:
        rows = dict(rows)
        for version in range(since + 1, upto + 1):
            head = formats.view_head(store, name, version=version)
            assert head is not None
            record = head.record
            assert record.changes is not None
            counts = dict.fromkeys(("insert", "update_before", "update_after", "delete"), 0)
            images = []
            for file in record.changes_files:
                uri = store.uri(PRIVATE, "changes", name, *record.changes.split("/"), file)
                system, path = located(uri)
                images += pq.read_table(path, filesystem=system).to_pylist()
            for image in sorted(images, key=lambda i: i["_op"] not in ("delete", "update_before")):
                operation = image.pop("_op")
                counts[operation] += 1
                lineage, values = _split(tuple(image.values()), len(head.layout.lineage))
                if operation in ("delete", "update_before"):
                    assert rows.pop(lineage) == values
                else:
                    assert lineage not in rows
                    rows[lineage] = values
            assert counts["insert"] == record.rows_inserted
            assert counts["delete"] == record.rows_deleted
            assert counts["update_before"] == counts["update_after"] == record.rows_updated
            pairs: dict[Any, list[Any]] = {}
            for image in images:
                pairs.setdefault(tuple(map(repr, image.values())), []).append(image)
            assert all(len(same) == 1 for same in pairs.values()), "a no-op image"
        return rows

    def _expected(self) -> dict[str, Rows]:
        sites = self._sites
        config, store = sites.config(), sites.store
        found = {}
        with duckdb.connect() as db:
            for name, fragment in config.fragments.items():
                head = formats.head(store, name)
                assert head is not None
                ddl = sites.tables[fragment.source.name][fragment.relation]
                recipe = head.layout.recipe
                kind = "BIGINT" if recipe.integer_key else "BLOB"
                columns, _, key = ddl.partition(", PRIMARY KEY (")
                text = f"{columns}, {_OWN} {kind}" + (f", PRIMARY KEY ({key}" if key else "")
                db.execute(f'CREATE TABLE "{name}" ({text})')
                rows = sites.pairs[fragment.source.name].legacy.rows(fragment.relation)
                names = [c.name for c in sorted(recipe.columns, key=lambda c: c.ordinal)]
                keys = [(names.index(c.name), c.type) for c in recipe.key]
                keyed = [(*row, self._key(row, keys, recipe.integer_key)) for row in rows]
                insert(db, f'"{name}"', keyed)
            lineages = {name: [_OWN] for name in config.fragments}
            for name in self._ordered(config.views):
                view = config.views[name]
                query = query_of(view)
                text = query.spliced(view.inputs, [lineages[i] for i in view.inputs])
                db.execute(f'CREATE TABLE "{name}" AS {text}'.replace("`", '"'))
                width = sum(len(lineages[i]) for i in view.inputs)
                lineages[name] = [f"{LINEAGE}{i + 1}" for i in range(width)]
                rows = db.execute(f'SELECT * FROM "{name}"').fetchall()
                found[name] = dict(_split(row, width) for row in rows)
                assert len(found[name]) == len(rows)
        return found

    @staticmethod
    def _key(row: Sequence[Any], keys: list[tuple[int, Any]], is_integer: bool) -> Any:
        if is_integer:
            return row[keys[0][0]]
        parts = [string_encoder(kind)(str(row[i])) for i, kind in keys]
        return b"".join(struct.pack(">i", len(part)) + part for part in parts)

    @staticmethod
    def _ordered(views: Any) -> list[str]:
        done: list[str] = []
        while len(done) < len(views):
            for name, view in views.items():
                if name not in done and all(i in done or i not in views for i in view.inputs):
                    done.append(name)
        return done


def _split(row: tuple[Any, ...], width: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """A row as lineage and values, in forms that can be compared."""
    made = tuple(map(plain, row))
    return made[len(made) - width :], made[: len(made) - width]
