"""What a relation is: as its DBA wrote it (`Relation`), and as an engine described it (`Shape`).

Values, without I/O. Every engine makes a `Shape` of a `Relation`, and reads by it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from driftline.arrays import Positions
from driftline.reconciliation.ranges import POSITION_MIN
from driftline.relations.derivations import Comparable, Predicate
from driftline.values.types import Column, DeclaredType, Recipe

from source_agent.engines.relations.markers import Column as MarkingColumn
from source_agent.engines.relations.markers import MarkedBy, Marker, MarkerKind
from source_agent.engines.relations.row_security import RowSecurity


class Consistency(Enum):
    """EXACT if everything that a session reads is from one snapshot, else FUZZY."""

    EXACT = "exact"
    FUZZY = "fuzzy"


class Fingerprint(Enum):
    """The program that computes a relation's fingerprints (protocol, section 5)."""

    AGENT = "agent"
    DATABASE = "database"


@dataclass(frozen=True, slots=True)
class Files:
    """Files of a folder; the newest complete one is the relation (docs/dba/dump-files.md).

    `pattern`: of their names, with `*`, `?`, `[…]`, at most one `{%Y…}`, the time of the data, and
    at most one `{part}`: then all parts of a delivery are the relation.
    `format`: the file that describes their columns. Exactly one of the others is set: `complete` is
    the name of a marker, with `{file}`, or of a whole delivery; `settle_s` the seconds in which a
    file did not change.
    """

    pattern: str
    format: Path
    complete: str | None = None
    settle_s: float | None = None


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation that the DBA published: a table, a SELECT of hers, or files. Exactly one is set.

    `key` None means the primary key, `columns` None all columns.
    `as_text` names columns read as the engine's own text (SQLite: tagged with the storage class).
    `types` overrides declared types that an engine cannot know (expressions in SQLite).
    `rows_by_key` is the most that an exchange may read by key, None is no limit.
    `marker` is what it keeps about its own changes, None: nothing that the DBA vouches for.
    """

    name: str
    table: str | None = None
    query: str | None = None
    key: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    where: str | None = None
    as_text: tuple[str, ...] = ()
    types: tuple[tuple[str, str], ...] = ()
    fingerprint: Fingerprint = Fingerprint.AGENT
    rows_by_key: int | None = None
    files: Files | None = None
    marker: Marker | None = None


@dataclass(frozen=True, slots=True)
class Condition:
    """SQL of a condition, and the values that are bound to its placeholders, in their order."""

    sql: str
    values: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """An engine's instructions for reading a relation, private to the engine.

    `source` is the SQL after FROM; `where` a condition or empty, and `values` what is bound to it,
    before all other values of a statement. `reads` and `forms` belong to the recipe's columns: the
    expression to select, and the name of its conversion to bytes. `pages` are NOT NULL columns,
    together unique, by which the relation can be read in pages. `consistency` is the best that the
    tables allow. `row_hash` is the expression of a row's hash if the database computes
    fingerprints, `seed` the hash's first value. `key_hash` is that of its key's hash, empty if the
    database has none or the relation no marker. `key_index` is the name of the index of the whole
    key, for an engine that has to be told. `chosen` are the rows of a derivation, None: all; SQL
    has them in `where`, an engine without SQL evaluates them itself. `locators` are expressions
    that say where a row lies, selected behind the columns or, if `located_first`, before them;
    `tables` the numbers of the tables that it may lie in, in each of which a locator is looked for;
    empty: there is one. `misflagged` is the condition of rows whose flag of deleted rows is NULL,
    or neither 0 nor 1; empty: none can be.
    """

    source: str
    where: str = ""
    values: tuple[object, ...] = ()
    reads: tuple[str, ...] = ()
    forms: tuple[str, ...] = ()
    pages: tuple[str, ...] = ()
    consistency: Consistency = Consistency.EXACT
    row_hash: str = ""
    seed: int | None = None
    key_hash: str = ""
    key_index: str = ""
    chosen: Predicate | None = None
    locators: tuple[str, ...] = ()
    tables: tuple[int, ...] = ()
    located_first: bool = False
    misflagged: str = ""


@dataclass(frozen=True, slots=True)
class Shape:
    """A relation as the database describes it now, and how it is best read.

    `vouched`: a NOT NULL unique constraint covers the key, so it has neither NULLs nor duplicates.
    `ordered`: reading in key order costs no more than reading in any order.
    `indexed`: `read_ranges` finds the rows by index (only with an integer key).
    `unordered`: why `read_between` cannot read ranges of keys, as text; empty: it can.
    `keyed`: `read_keys` finds each row by its whole key, even if `unordered`.
    `rows_expected`: the engine's own estimate, for progress only; 0 is unknown.
    `notes`: facts (such as columns read as text, and why), for `check` and the warehouse.
    `notes_local`: facts for the DBA alone, because they name what no warehouse asked for.
    `comparable`: of each column of the recipe.
    `row_security`: None if the engine has none.
    `as_of`: the time of the relation's rows, if each relation of a session has its own; else empty.
    `marker`: by which its changed rows are found; None: the DBA names none.
    `is_joined`: rows of other relations choose its rows.
    `marking`: every column, published or not, by which a marker could be made, with its kind and
    whether it may be NULL; empty if the engine has no markers.
    """

    relation: Relation
    recipe: Recipe
    vouched: bool
    ordered: bool
    rows_expected: int
    indexed: bool
    notes: tuple[str, ...] = ()
    comparable: tuple[Comparable, ...] = ()
    plan: Plan | None = None
    row_security: RowSecurity | None = None
    unordered: str = ""
    as_of: str = ""
    marker: MarkedBy | None = None
    marking: tuple[tuple[str, MarkingColumn], ...] = ()
    notes_local: tuple[str, ...] = ()
    is_joined: bool = False
    keyed: bool = False

    @property
    def not_by_key(self) -> str:
        """Return why no rows can be read by an index of the key; empty: they can."""
        if self.recipe.integer_key:
            return "" if self.indexed else "its key has no index"
        return self.unordered

    @property
    def comparable_by_name(self) -> dict[str, Comparable]:
        """Return what each column can be compared by, by its name."""
        named = zip(self.recipe.columns, self.comparable, strict=True)
        return {column.name: comparable for column, comparable in named}

    def hashed(self, seed: int) -> Shape:
        """Return the relation as its key columns and an int8 `driftline_hash`, each row's hash.

        Only for a relation whose fingerprints the database computes. `seed` has 64 signed bits.
        """
        plan = self.plan
        assert plan is not None, "a relation is read by the engine that described it"
        assert plan.row_hash, "this database makes no fingerprints"
        keys = self.recipe.key_columns
        columns = (*self.recipe.key, Column("driftline_hash", DeclaredType("int8"), nullable=False))
        return replace(
            self,
            recipe=Recipe(columns, keys),
            comparable=(*self.comparable[:keys], Comparable.NOTHING),
            plan=replace(plan, reads=(*plan.reads[:keys], plan.row_hash), seed=seed),
        )

    def located(
        self, locators: tuple[str, ...], tables: tuple[int, ...] = (), *, first: bool = False
    ) -> Shape:
        """Return the relation with what says where a row lies; see `Plan`."""
        assert self.plan is not None, "a relation is read by the engine that described it"
        plan = replace(self.plan, locators=locators, tables=tables, located_first=first)
        return replace(self, plan=plan)

    def keys(self) -> Shape:
        """Return the relation with its key columns alone."""
        plan, keys = self.plan, self.recipe.key_columns
        assert plan is not None, "a relation is read by the engine that described it"
        return replace(
            self,
            recipe=Recipe(self.recipe.key, keys),
            comparable=self.comparable[:keys],
            plan=replace(plan, reads=plan.reads[:keys], forms=plan.forms[:keys], row_hash=""),
        )

    @property
    def unmarked(self) -> list[Shape]:
        """Return what is read of other rows than the relation's, where claims are accepted."""
        if self.marker is None or self.marker.unclaimable:
            return []
        return [shape for shape in (self.gone(), self.misflagged()) if shape is not None]

    def gone(self) -> Shape | None:
        """Return the keys of the rows that the table has and the relation has not, and of those
        whose flag is wrong; None: there can be none."""
        plan = self.plan
        assert plan is not None, "a relation is read by the engine that described it"
        if not plan.where:
            return None
        other = f"({plan.where}) IS NOT TRUE"
        return self._where(f"({other} OR {plan.misflagged})" if plan.misflagged else other)

    def misflagged(self) -> Shape | None:
        """Return the keys of the rows whose flag is NULL, or neither 0 nor 1; None: none can be."""
        plan = self.plan
        assert plan is not None, "a relation is read by the engine that described it"
        if not plan.misflagged:
            return None
        keys = self._where(plan.misflagged)
        assert keys.plan is not None
        return replace(keys, plan=replace(keys.plan, values=()))

    def _where(self, condition: str) -> Shape:
        """Return the keys of the rows for which another condition holds."""
        keys = self.keys()
        assert keys.plan is not None, "keys are read by the engine that described them"
        return replace(keys, plan=replace(keys.plan, where=condition))

    def narrow(self) -> Shape:
        """Return the relation with what a comparison by its marker reads of all rows: the key, and
        a checksum if that is the marker."""
        plan, marker, keys = self.plan, self.marker, self.recipe.key_columns
        if marker is None or marker.kind is not MarkerKind.CHECKSUM:
            return self.keys()
        assert plan is not None, "a relation is read by the engine that described it"
        place = [column.name for column in self.recipe.columns].index(marker.marker.column)
        read = min(place, len(plan.reads) - 1)  # a template has one slot for all other columns
        return replace(
            self,
            recipe=Recipe((*self.recipe.key, self.recipe.columns[place]), keys),
            comparable=(*self.comparable[:keys], self.comparable[place]),
            plan=replace(
                plan,
                reads=(*plan.reads[:keys], plan.reads[read]),
                forms=(*plan.forms[:keys], plan.forms[place]),
                row_hash="",
            ),
        )

    def may_be_null_in(self, first: Positions) -> bool:
        """Return True if ranges that begin at `first`, int64 [n], may include a NULL key.

        NULL counts as smaller than every integer, unless a constraint excludes it.
        """
        return not self.vouched and bool((first == POSITION_MIN).any())
