"""What each site contributes to a view, what is evaluated there, and what is not, why (`explain`).

A source is asked only if nothing is known of a relation yet, or with `--ask`: what it offered last
is noted at each description. Reads no row and changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from driftline import wire_pb2 as pb
from driftline.errors import DriftlineError
from driftline.limits import JOIN_ROWS_FACTOR
from driftline.relations.derivations import DerivablePart, ReferencePredicate, relations_in

from warehouse_agent.columns.layout import Layout, derived
from warehouse_agent.config import Fragment, View, WarehouseConfig
from warehouse_agent.decomposition.site_queries import (
    Dialect,
    JoinedOccurrence,
    dialect_of,
    free_name,
    predicate_text,
    proposed,
    share_query,
)
from warehouse_agent.decomposition.view_needs import (
    Decomposition,
    DerivationOffer,
    NeedShare,
    OccurrenceNeed,
    rows_read,
    united,
)
from warehouse_agent.history.notes import Notes
from warehouse_agent.planning import prices
from warehouse_agent.planning.network import LOAD_LEVEL
from warehouse_agent.planning.site_joins import SiteJoinPrice
from warehouse_agent.refresh import derivation, schema_change
from warehouse_agent.storage import formats
from warehouse_agent.storage.store import Store
from warehouse_agent.storage.table import Snapshot
from warehouse_agent.transport.channel import SourceChannel
from warehouse_agent.transport.preflight import reach
from warehouse_agent.views.conditions import Site, site_of, wish_of
from warehouse_agent.views.inputs import query_of
from warehouse_agent.views.query import ColumnUse, Query

_HERE = "warehouse"


@dataclass(frozen=True, slots=True)
class TableShare:
    """The share of one occurrence in a view's query.

    Attributes:
        name, alias: of the fragment or view, and in the query.
        version: published; None: nothing yet.
        columns, columns_of: columns that are read, and that the relation has; None: not known.
        rows, rows_of: rows that are published, and that the relation has by its source's estimate.
        query: what is read at the site, in its dialect; None: nothing.
        pushed: conditions that the site evaluates.
        stays: conditions that are evaluated here alone, with the reason.
        notes: what else decides, such as a relation that is whole.
    """

    name: str
    alias: str
    version: int | None
    columns: int | None = None
    columns_of: int | None = None
    rows: int | None = None
    rows_of: int | None = None
    query: str | None = None
    pushed: tuple[str, ...] = ()
    stays: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SiteShare:
    """The share of one site: a source, or the warehouse itself for views.

    `unknown`: why it could not be asked. `proposal`: lines of source.toml for a join there.
    """

    site: str
    database: str | None
    tables: tuple[TableShare, ...]
    proposal: str | None = None
    unknown: str | None = None


@dataclass(frozen=True, slots=True)
class _Known:
    """A fragment with what is known of its relation; `whole`: the layout of all of that."""

    fragment: Fragment
    base: Snapshot | None
    reply: pb.DescribeReply | None
    whole: Layout | None
    offer: DerivationOffer | None
    decomposition: Decomposition | None


def decomposed(config: WarehouseConfig, view: View, *, ask: bool) -> list[SiteShare]:
    """Return the shares of the sites, in the order of the view's tables."""
    store, query = Store.of(config), query_of(view)
    by_site: dict[str, list[int]] = {}
    for number, name in enumerate(view.inputs):
        fragment = config.fragments.get(name)
        by_site.setdefault(fragment.source.name if fragment else _HERE, []).append(number)
    shares = []
    for site, numbers in by_site.items():
        fragments = {n: f for i in numbers if (f := config.fragments.get(n := view.inputs[i]))}
        known, unknown = _known(store, fragments.values(), ask=ask)
        shares.append(_site(config, site, view, query, numbers, known, unknown))
    return shares


def _known(
    store: Store, fragments: Iterable[Fragment], *, ask: bool
) -> tuple[dict[str, _Known], str | None]:
    """Return what is known of fragments of one source, and why it could not be asked."""
    known, unknown = dict[str, _Known](), None
    for fragment in fragments:
        base, reply = formats.head(store, fragment.name), None
        if not ask:
            reply = derivation.noted_offer(store, fragment.name)
        if reply is None and (ask or base is None or fragment.is_kept) and unknown is None:
            try:
                reach(fragment.source)
                with SourceChannel(fragment.source) as link:
                    reply = link.describe(fragment.relation, derivation.beside(fragment, base))
            except DriftlineError as error:
                unknown = error.message
        whole, offer, decomposition = None, None, None
        if reply is not None:
            whole = schema_change.whole(reply, fragment, base)
            offer = derivation.offer_of(reply, whole)
            if fragment.is_kept:
                decomposition = derivation.decomposed(reply, fragment, base)
        known[fragment.name] = _Known(fragment, base, reply, whole, offer, decomposition)
    return known, unknown


def _site(
    config: WarehouseConfig,
    site: str,
    view: View,
    query: Query,
    numbers: Sequence[int],
    known: dict[str, _Known],
    unknown: str | None,
) -> SiteShare:
    databases = [k.reply.database for k in known.values() if k.reply is not None]
    dialect = dialect_of(databases[0] if databases else "")
    tables, joined = [], []
    head = formats.view_head(Store.of(config), view.name)
    view_rows = None if head is None else head.rows
    kept = [(f := config.fragments.get(name)) is not None and f.is_kept for name in view.inputs]
    sites = [site_of(name) if k else None for name, k in zip(view.inputs, kept, strict=True)]
    for number in numbers:
        name, alias = view.inputs[number], query.occurrences[number].alias
        if (one := known.get(name)) is None:
            head = formats.view_head(Store.of(config), name)
            version = None if head is None else head.version
            tables.append(TableShare(name, alias, version, notes=("a view, which is kept here",)))
            continue
        allowed = _allowed(one, view, query, number, sites)
        table = _table(one, alias, allowed, dialect)
        if not view.site_joins and view_rows is not None:
            joins = _joins(one, wish_of(view.name, query, number, sites))
            price = _price(Store.of(config), one, joins, view_rows)
            if price is not None and price.is_advised:
                table = replace(table, notes=(*table.notes, price.describe()))
        tables.append(table)
        if allowed is not None and one.offer is not None:
            joined.append(JoinedOccurrence(one.fragment.relation, one.offer, allowed.shares[0]))
    proposal = None
    if len(joined) > 1:
        name = relation_name(config, view, site)
        pairs = [(_named(a), _named(b)) for a, b in query.equalities]
        proposal = proposed(name, joined, pairs, dialect)
    return SiteShare(site, databases[0] if databases else None, tuple(tables), proposal, unknown)


def relation_name(config: WarehouseConfig, view: View, site: str) -> str:
    """Return the name of a relation to propose: no known relation, and no other view, has it."""
    taken = {fragment.relation.lower() for fragment in config.fragments.values()}
    names = {
        (other, source): free_name((re.sub(r"\W", "_", f"{other}_{source}", flags=re.A),), taken)
        for other in config.views
        for source in config.sources
    }
    return names[view.name, site]


def _named(use: ColumnUse) -> tuple[str, str]:
    return use.qualifier or "", use.name


def _allowed(
    one: _Known, view: View, query: Query, number: int, sites: Sequence[Site | None]
) -> Decomposition | None:
    """Return what this occurrence alone would have pushed, were everything allowed."""
    if one.offer is None:
        return None
    free = replace(one.offer, allowed=frozenset(DerivablePart))
    return united([wish_of(view.name, query, number, sites if view.site_joins else ())], free)


def _joins(one: _Known, wish: OccurrenceNeed) -> tuple[ReferencePredicate, ...]:
    """Return the joins that would choose rows of a kept relation; none if they may not."""
    if one.offer is None or not one.fragment.is_kept:
        return ()
    is_allowed = DerivablePart.JOINS in one.offer.allowed
    return united([wish], one.offer).shares[0].joins if is_allowed else ()


def joins_priced(config: WarehouseConfig, view: View) -> tuple[SiteJoinPrice, ...]:
    """Return what joins at its sites would take of the relations that a view keeps, by what their
    sources offered last; none if the view has these joins. No source is asked."""
    store = Store.of(config)
    head = formats.view_head(store, view.name)
    if view.site_joins or head is None:
        return ()
    query, found = query_of(view), list[SiteJoinPrice]()
    kept = [(f := config.fragments.get(name)) is not None and f.is_kept for name in view.inputs]
    sites = [site_of(name) if k else None for name, k in zip(view.inputs, kept, strict=True)]
    for number, name in enumerate(view.inputs):
        if not kept[number] or derivation.noted_offer(store, name) is None:
            continue
        if formats.head(store, name) is None:
            continue
        known, _ = _known(store, [config.fragments[name]], ask=False)
        joins = _joins(known[name], wish_of(view.name, query, number, sites))
        if (price := _price(store, known[name], joins, head.rows)) is not None:
            found.append(price)
    return tuple(found)


def _price(
    store: Store, one: _Known, joins: Sequence[ReferencePredicate], view_rows: int
) -> SiteJoinPrice | None:
    """Return what joins at the site would take; None: none are possible.

    Each row of the view is made of one row of each table, so at most as many of its rows join.
    """
    if not joins or one.base is None or one.offer is None:
        return None
    base, name = one.base, one.fragment.name
    learnt = prices.from_notes(
        Notes.read(store, name).prices, len(base.layout.names), level=LOAD_LEVEL
    )
    return SiteJoinPrice(
        fragment=name,
        rows=base.rows,
        joined=min(view_rows, base.rows),
        row_bytes=learnt.copied,
        changed=base.record.rows_changed if base.version else None,
        read=rows_read(joins, one.offer.references),
        others=tuple(
            sorted({name for join in joins for name in (join.relation, *relations_in(join.rows))})
        ),
    )


def _saving(one: _Known, dialect: Dialect) -> str | None:
    """Return what would be read of a relation, for all views over it, if the DBA allowed all; None:
    what is read now."""
    fragment, offer = one.fragment, one.offer
    if not fragment.is_kept or offer is None or one.whole is None:
        return None
    derivation = united(
        fragment.wishes, replace(offer, allowed=frozenset(DerivablePart))
    ).derivation
    if derivation is None or derivation.parts <= offer.allowed:
        return None
    layout = derived(one.whole, derivation)
    query = share_query(fragment.relation, layout.recipe, derivation.rows, dialect)
    parts = ", ".join(
        f'"{p.value}"' for p in DerivablePart if p in derivation.parts | offer.allowed
    )
    columns = f"{len(layout.names)} of {len(offer.names)} columns"
    return f"with derive = [{parts}] in source.toml it would read {columns}: {query}"


def _pairs(reference: pb.Reference) -> set[tuple[str, str]]:
    names = zip(reference.columns, reference.referenced, strict=True)
    return {(own.lower(), other.lower()) for own, other in names}


def _unjoined(one: _Known, share: NeedShare) -> list[str]:
    """Return why rows are not chosen by those of other tables of the site, and what to declare."""
    assert one.reply is not None, "what a source offers is said by a description"
    description = one.reply.description
    at_most = JOIN_ROWS_FACTOR * description.rows_expected
    joined = {predicate.relation for predicate in share.joins}
    notes = []
    for need in share.wish.joins:
        if need.relation in joined:
            continue
        pairs = ", ".join(f"{own} = {need.relation}.{other}" for own, other in sorted(need.equal))
        along, below = (
            [one for one in some if one.relation == need.relation and _pairs(one) <= need.equal]
            for some in (description.references, description.referring)
        )
        if below and not (at_most and all(one.joined.rows_expected for one in below)):
            why = "the database has no estimate of the rows of both: ANALYZE makes one"
        elif any(one.joined.rows_expected > at_most for one in below):
            why = f"it has more than {JOIN_ROWS_FACTOR} times as many rows"
        elif below:
            continue  # no condition there means the same there
        elif not along:
            why = "no foreign key that is told: declare FOREIGN KEY … REFERENCES"
        elif not any(reference.HasField("joined") for reference in along):
            why = 'not allowed: derive = ["rows", "joins"] here, "rows" there without `scan`'
        else:
            continue  # no condition behind it means the same there
        notes.append(f"rows are not chosen by those of {need.relation} ({pairs}), {why}")
    return notes


def _table(one: _Known, alias: str, allowed: Decomposition | None, dialect: Dialect) -> TableShare:
    base, fragment, offer = one.base, one.fragment, one.offer
    share = None if allowed is None else allowed.shares[0]
    layout = None if base is None else base.layout
    notes, pushed, stays = [], [], []
    if not fragment.is_kept:
        notes.append(f"whole, because it is configured: [fragments.{fragment.name}]")
    decomposition = one.decomposition
    if decomposition is not None and one.whole is not None:
        wanted = derived(one.whole, decomposition.derivation)
        if layout is not None and schema_change.differs(wanted, layout):
            notes.append("the next refresh follows the views: this is what it reads then")
        layout = wanted
        notes += [f"all {part.value}: {why}" for part, why in decomposition.why.items()]
    is_row_choice = layout is not None and layout.recipe.rows
    if share is not None and offer is not None:
        for conjunct, implied in share.conjuncts:
            if implied.predicate is not None and is_row_choice:
                pushed.append(predicate_text(implied.predicate, offer.recipe.columns, dialect))
            if implied.predicate is None or implied.why or not is_row_choice:
                why = "; ".join(implied.why) or "every row is read"
                stays.append((conjunct.text, why))
    if share is not None and offer is not None:
        chosen = fragment.is_kept and is_row_choice
        for joined in share.joins:
            text = predicate_text(joined, offer.recipe.columns, dialect)
            pushed += [text] if chosen else []
            stays += [] if chosen else [(text, "every row is read")]
        notes += _unjoined(one, share)
    if allowed is not None and (saving := _saving(one, dialect)) is not None:
        notes.append(saving)
    rows = None if layout is None or layout.derivation is None else layout.derivation.rows
    wanted_rows = allowed.derivation.rows if allowed and allowed.derivation else None
    if pushed and rows != wanted_rows:
        notes.append("less is left out than is pushed here: other tables of views need more rows")
    expected = one.reply.description.rows_expected if one.reply is not None else 0
    return TableShare(
        name=fragment.name,
        alias=alias,
        version=None if base is None else base.version,
        columns=None if layout is None else len(layout.names),
        columns_of=None if offer is None else len(offer.names),
        rows=None if base is None else base.rows,
        rows_of=expected or None,
        query=None
        if layout is None
        else share_query(fragment.relation, layout.recipe, rows, dialect),
        pushed=tuple(pushed),
        stays=tuple(stays),
        notes=tuple(notes),
    )
