"""Changes of the source's columns: name them, refuse them, go on when they are accepted.

The refusal names each change and the command that accepts it. A refresh that accepts them keeps the
published values under the new columns and computes fingerprints anew at the warehouse; then it is
an ordinary refresh, in which unaffected rows are equal. New columns, and columns of another type,
start as NULL.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from driftline import wire_pb2 as pb
from driftline.errors import MalformedMessage, RecipeChanged, VersionMismatch
from driftline.limits import DATABASE_FINGERPRINT_VERSION, FINGERPRINT_VERSION
from driftline.peer_text import one_line
from driftline.values.types import Column, Recipe, parse_type

from warehouse_agent.columns.layout import Layout, lay_out
from warehouse_agent.config import Fragment
from warehouse_agent.report import fingerprint_kind
from warehouse_agent.storage.table import Snapshot
from warehouse_agent.transport.reply_validation import LINE_CHARACTERS_MAX


def recipe_of(description: pb.Description) -> Recipe:
    """Return the recipe in a description. Raises MalformedMessage, VersionMismatch."""
    if description.fingerprint_version not in (FINGERPRINT_VERSION, DATABASE_FINGERPRINT_VERSION):
        raise VersionMismatch(
            f"The source makes fingerprints of version {description.fingerprint_version}, which "
            "are unknown here.",
            remedy="Install the same release on both sides.",
        )
    columns = tuple(
        Column(c.name, parse_type(c.type), c.nullable, c.ordinal) for c in description.columns
    )
    return Recipe(columns, description.key_columns, description.fingerprint_version)


def described(reply: pb.DescribeReply, fragment: Fragment, base: Snapshot | None) -> Layout:
    """Return the layout of the relation as it is now; that of `base` if nothing changed but which
    columns are NOT NULL.

    Raises:
        MalformedMessage: the reply has no description.
        VersionMismatch: another release makes its fingerprints.
    """
    layout = whole(reply, fragment, base)
    if base is not None and not differs(layout, base.layout):
        layout = base.layout.with_not_null(layout.not_null)
    return layout


def whole(reply: pb.DescribeReply, fragment: Fragment, base: Snapshot | None) -> Layout:
    """Return the layout of the whole relation as it is now, with the names that `base` has given.

    Raises:
        MalformedMessage: the reply has no description.
        VersionMismatch: another release makes its fingerprints.
        ConfigurationError: as `lay_out`.
    """
    if not reply.HasField("description"):
        raise MalformedMessage("The source described nothing.", where=fragment.relation)
    return lay_out(
        recipe_of(reply.description),
        dict(fragment.carriers),
        where=fragment.name,
        given=None if base is None else base.layout.published_names,
    )


def differs(new: Layout, old: Layout) -> bool:
    """Return True if rows of one layout cannot be read as rows of the other, or if the source is
    asked for them in another way."""
    identities = [(one.recipe.id, one.carriers, one.names, one.derivation) for one in (new, old)]
    return identities[0] != identities[1]


def check_carriers(layout: Layout, fragment: Fragment) -> None:
    """Raise RecipeChanged if the configured carriers are not those of the published table."""
    asked = lay_out(layout.recipe, dict(fragment.carriers), where=fragment.name)
    changed = [
        c.name
        for c, a, b in zip(layout.recipe.columns, asked.carriers, layout.carriers, strict=True)
        if a is not b
    ]
    if changed:
        raise RecipeChanged(
            f"`carriers` now asks for another Spark type of {', '.join(changed)}.",
            where=fragment.name,
            remedy=f"To go on: driftline refresh {fragment.name} --accept-schema",
        )


def explained(reply: pb.DescribeReply, base: Snapshot, name: str) -> RecipeChanged:
    """Return the refusal, with each change and the command that accepts them.

    Columns that a derived version never had do not count.
    """
    old, new = base.layout.recipe, recipe_of(reply.description)
    chosen = base.layout.derivation
    if chosen is not None and chosen.columns is not None:
        known = {c.name for c in old.columns} | {c.name for c in new.key}
        new = replace(new, columns=tuple(c for c in new.columns if c.name in known))
    changes = phrases(old, new)
    return RecipeChanged(
        f"The relation changed at the source: {'; '.join(changes)}. Version"
        f" {base.version} stays published.",
        where=name,
        remedy=f"To go on: driftline refresh {name} --accept-schema",
        details={f"change {i + 1}": text for i, text in enumerate(changes)},
    )


def phrases(old: Recipe, new: Recipe) -> list[str]:
    """Return the changes as `column_changes` has them, a printable line each."""
    return [one_line(change, LINE_CHARACTERS_MAX) for change in column_changes(old, new)]


def column_changes(old: Recipe, new: Recipe) -> Iterator[str]:
    """Yield the changes from one recipe to the other, a phrase per column."""
    before = {c.name: c for c in old.columns}
    after = {c.name: c for c in new.columns}
    for name, column in after.items():
        if name not in before:
            yield f"column {name} ({column.type}) was added"
        elif before[name].type != column.type:
            yield f"column {name} was {before[name].type} and is {column.type}"
    for name in before:
        if name not in after:
            yield f"column {name} was dropped"
    keys = [", ".join(c.name for c in recipe.key) for recipe in (old, new)]
    if keys[0] != keys[1]:
        yield f"the key was ({keys[0]}) and is ({keys[1]})"
    elif before.keys() == after.keys() and [*before] != [*after]:
        yield "the columns stand in another order"
    kinds = [fingerprint_kind(recipe) for recipe in (old, new)]
    if kinds[0] != kinds[1]:
        yield f"fingerprints were made by the {kinds[0]} and are made by the {kinds[1]}"
