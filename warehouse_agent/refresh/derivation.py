"""The columns and rows of a kept relation: decided from its views, kept with each version.

Nobody configured a kept fragment, so it has what its views need (`decomposition.view_needs`). The
choice is made from a description of the relation: at the first load, when the views need something
else than at the last refresh, and with `--accept-schema`. It lies in the layout of each version and
is sent with every exchange; without another wish no description is asked for.

 1. A fragment follows its views without being asked: it is another recipe, so published rows are
    written again under it, and the comparison brings what is missing and removes what is not
    wanted.
 2. It follows nobody else. What the DBA withdrew, and a column that changed, is refused until
    somebody accepts it: it is never widened to the whole relation, nor narrowed, by itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from driftline import wire_pb2 as pb
from driftline.errors import DerivationRefused, DriftlineError, MalformedMessage, RecipeChanged
from driftline.limits import JOIN_ROWS_FACTOR
from driftline.relations import derivations
from driftline.relations.derivations import Comparable, DerivablePart, relations_in, text_of
from driftline.relations.reference_messages import joinable
from driftline.values.types import Recipe
from google.protobuf import json_format

from warehouse_agent.columns.layout import Layout, derived
from warehouse_agent.config import Fragment
from warehouse_agent.decomposition.view_needs import Decomposition, DerivationOffer, united, wish_id
from warehouse_agent.history.notes import NeedNote
from warehouse_agent.refresh import schema_change
from warehouse_agent.refresh.job import Job
from warehouse_agent.report import counted
from warehouse_agent.storage.store import PRIVATE, Store
from warehouse_agent.storage.table import Snapshot

Describe = Callable[[str, Sequence[str]], pb.DescribeReply]  # of a relation, beside others

_PARTS = {part.value: part for part in DerivablePart}


def offer_of(reply: pb.DescribeReply, layout: Layout) -> DerivationOffer:
    """Return what a source lets us choose of a relation; `layout` is that of the whole."""
    description = reply.description
    allowed = (_PARTS.get(word) for word in description.derive)
    return DerivationOffer(
        layout.recipe,
        layout.names,
        {column.name: Comparable(column.comparable) for column in description.columns},
        frozenset(part for part in allowed if part is not None),
        joinable(description),
        JOIN_ROWS_FACTOR * description.rows_expected,
    )


def beside(fragment: Fragment, base: Snapshot | None) -> tuple[str, ...]:
    """Return the relations that a description names: those of the views, and of a version."""
    chosen = None if base is None else base.layout.derivation
    rows = None if chosen is None else chosen.rows
    return tuple(sorted({*fragment.beside, *(() if rows is None else relations_in(rows))}))


def described(reply: pb.DescribeReply, fragment: Fragment, base: Snapshot | None) -> Layout:
    """Return the layout of a fragment by a new description; that of `base` if nothing changed but
    which columns are NOT NULL.

    Raises:
        MalformedMessage, VersionMismatch, ConfigurationError: as `schema_change.described`.
    """
    if not fragment.is_kept:
        return schema_change.described(reply, fragment, base)
    whole = schema_change.whole(reply, fragment, base)
    layout = derived(whole, united(fragment.wishes, offer_of(reply, whole)).derivation)
    if base is not None and not schema_change.differs(layout, base.layout):
        return base.layout.with_not_null(layout.not_null)
    return layout


def has_other_wishes(job: Job, base: Snapshot) -> bool:
    """Return True if views need something else than at the last refresh, or if that is not known.

    A published version with another recipe than noted, as after a restore, is decided again.
    """
    return job.fragment.is_kept and job.notes.wish != wish(job, base.layout)


def recipe_now(reply: pb.DescribeReply, fragment: Fragment, base: Snapshot | None) -> Recipe:
    """Return the recipe that the columns and rows of a version have by a new description.

    Without a version it is that of a first load. Raises as `described`.
    """
    if not fragment.is_kept:
        return schema_change.recipe_of(reply.description)
    if base is None:
        return described(reply, fragment, None).recipe
    whole = schema_change.whole(reply, fragment, base)
    return derived(whole, base.layout.derivation).recipe


def followed(reply: pb.DescribeReply, fragment: Fragment, base: Snapshot) -> Layout:
    """Return the layout that serves the wishes of the views now. Raises as `check`."""
    check(reply, fragment, base)
    return described(reply, fragment, base)


def check(reply: pb.DescribeReply, fragment: Fragment, base: Snapshot) -> None:
    """Check that the source still offers what a published version has.

    Raises:
        DerivationRefused: the DBA no longer allows its columns or rows.
        MalformedMessage, VersionMismatch, ConfigurationError: as `schema_change.described`.
        RecipeChanged: its columns changed at the source.
    """
    whole = schema_change.whole(reply, fragment, base)
    offer, chosen = offer_of(reply, whole), base.layout.derivation
    # Columns first: a literal of the type that a column had is none of its new type.
    if schema_change.differs(derived(whole, chosen), base.layout):
        raise schema_change.explained(reply, base, fragment.name)
    if chosen is None:
        return
    if withdrawn := sorted(part.value for part in chosen.parts - offer.allowed):
        what = f"The DBA no longer allows a choice of {' and '.join(withdrawn)}."
        raise refused(DerivationRefused(what), fragment.name)
    try:
        derivations.check(chosen, whole.recipe.columns, offer.comparable, offer.references)
    except DerivationRefused as error:
        raise refused(error, fragment.name) from None


def explained(
    error: DerivationRefused | MalformedMessage,
    describe: Describe,
    fragment: Fragment,
    base: Snapshot | None,
) -> DriftlineError:
    """Return why a source refused to compare chosen columns and rows, by a new description.

    A source checks a derivation before it compares recipes, so it does not see that a column
    changed: it finds that there is no such column, or that a literal is malformed.
    """
    if base is not None and base.layout.derivation is not None:
        try:
            check(describe(fragment.relation, beside(fragment, base)), fragment, base)
        except (DerivationRefused, RecipeChanged) as reason:
            return reason
        except DriftlineError:  # the refusal says more
            pass
    return refused(error, fragment.name) if isinstance(error, DerivationRefused) else error


def refused(error: DriftlineError, name: str) -> DerivationRefused:
    """Return the refusal of a source to choose columns or rows, with what to do."""
    return DerivationRefused(
        error.message,
        where=name,
        remedy="Nothing that is published changes. Ask the DBA to allow it again (`derive`), or"
        f" take what is allowed now: driftline refresh {name} --accept-schema",
        details=error.details,
    )


def wish(job: Job, layout: Layout) -> NeedNote | None:
    """Return the wishes that a version with this layout serves; None: nobody's but the user's."""
    if not job.fragment.is_kept:
        return None
    return NeedNote(wish_id(job.fragment.wishes), layout.recipe.id.hex())


def summary(layout: Layout) -> str | None:
    """Return the columns and rows that a table has, for a person; None: the whole relation."""
    if layout.derivation is None:
        return None
    found = counted(len(layout.names), "column")
    if layout.derivation.columns is not None:
        found += f" ({', '.join(c.name for c in layout.recipe.published_order)})"
    rows = layout.derivation.rows
    return found + ("" if rows is None else f", the rows where {text_of(rows)}")


def note_offer(store: Store, fragment: Fragment, reply: pb.DescribeReply) -> None:
    """Note what the source offers of a kept relation, for `explain`. The note may be lost.

    Raises:
        WarehouseUnavailable: it cannot be written.
    """
    if fragment.is_kept:
        body = json.dumps(json_format.MessageToDict(reply))
        store.write(body.encode(), *_offer(fragment.name))


def noted_offer(store: Store, name: str) -> pb.DescribeReply | None:
    """Return the last description of a kept relation; None: there is none, or it is damaged."""
    try:
        reply = json_format.ParseDict(store.read_json(*_offer(name)), pb.DescribeReply())
    except json_format.ParseError:
        return None
    return reply if reply.HasField("description") else None


def decomposed(reply: pb.DescribeReply, fragment: Fragment, base: Snapshot | None) -> Decomposition:
    """Return what would be pushed to the source for all wishes of a kept fragment."""
    whole = schema_change.whole(reply, fragment, base)
    return united(fragment.wishes, offer_of(reply, whole))


def _offer(name: str) -> tuple[str, ...]:
    return (PRIVATE, "offers", f"{name}.json")
