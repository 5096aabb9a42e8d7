"""Recompute a receipt of the warehouse from the DBA's own database.

A receipt states what the warehouse published: relation, columns in tuple order, as-of, version,
count, and a total under a key and salt made for this receipt alone. The same rows under the same
key give the same total, so two people compare one line. Nothing is sent anywhere. A receipt of
another recipe is refused, because its total would differ although the rows may be equal. That of a
derived fragment says which columns and rows it has; they are read whether or not the relation has
`derive`, because the DBA asks here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path

from driftline.errors import LimitExceeded, MalformedMessage, NotFound, RecipeChanged, UsageError
from driftline.limits import FINGERPRINT_VERSION
from driftline.relations.derivation_json import from_json
from driftline.relations.derivations import Derivation, canonical, text_of
from driftline.rows.digests import Digest, Salt, mix
from driftline.rows.fingerprints import FRAGMENT_KEY_BYTES, receipt_hasher
from driftline.settings.declarations import nearest
from driftline.values.types import Column, Recipe, parse_type

from source_agent.config.file import SourceConfig
from source_agent.config.site_joins import chosen
from source_agent.engines.interface import Engine
from source_agent.printable import counted

_BYTES = {"sum": 16, "fragment_key": FRAGMENT_KEY_BYTES, "salt": 16}
_RECEIPT_BYTES_MAX = 4 << 20


@dataclass(frozen=True, slots=True)
class Receipt:
    """The statement of the warehouse. `fragment_key` is made for this receipt alone.

    `derivation`: what the fragment has of the relation; None: all.
    """

    relation: str
    recipe: Recipe
    as_of: str
    version: str
    digest: Digest
    fragment_key: bytes = field(repr=False)
    salt: Salt
    derivation: Derivation | None = None


@dataclass(frozen=True, slots=True)
class SourceTotal:
    """The total of the source's rows, next to the receipt."""

    receipt: Receipt
    digest: Digest
    as_of: str

    @property
    def equal(self) -> bool:
        """True if the source has the rows of the receipt."""
        return self.digest == self.receipt.digest


def read_receipt(path: Path) -> Receipt:
    """Read a file of `driftline receipt`. Raise UsageError if it cannot be read or is malformed."""
    try:
        with path.open("rb") as file:
            facts = json.loads(file.read(_RECEIPT_BYTES_MAX))
    except OSError as error:
        raise UsageError(f"The receipt {path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise UsageError(f"{path} is no receipt: {error}.") from None
    if not isinstance(facts, dict):
        raise UsageError(f"{path} is no receipt: it is not an object.")
    try:
        values = {name: _hex(facts, name, size) for name, size in _BYTES.items()}
        said = facts.get("derivation")  # absent: the whole relation
        derivation = None if said is None else from_json(said)
        predicate = None if derivation is None else derivation.rows
        rows = "" if predicate is None else text_of(canonical(predicate))
        return Receipt(
            relation=_text(facts, "relation"),
            recipe=Recipe(_columns(facts), _integer(facts, "key_columns"), rows=rows),
            as_of=_text(facts, "as_of"),
            version=str(facts.get("version", "")),
            digest=Digest(_integer(facts, "count"), int.from_bytes(values["sum"], "little")),
            fragment_key=values["fragment_key"],
            salt=Salt.from_bytes(values["salt"]),
            derivation=derivation,
        )
    except (MalformedMessage, LimitExceeded) as error:
        raise UsageError(f"{path} is no receipt: {error.message}") from None


def total(config: SourceConfig, engine: Engine, receipt: Receipt) -> SourceTotal:
    """Scan the relation once under the receipt's key.

    Raises NotFound without such a relation, RecipeChanged if it has other columns or another key,
    DerivationRefused if the rows of the receipt cannot be chosen any more.
    """
    published = config.relations.get(receipt.relation)
    if published is None:
        raise NotFound(
            f"The receipt is of {receipt.relation!r}, which {config.path.name} does not publish.",
            remedy=nearest(receipt.relation, tuple(config.relations)),
        )
    session = engine.open((), (published.relation,))
    try:
        shape = session.describe(published.relation)
        if receipt.derivation is not None:
            shape = chosen(session, published, shape, receipt.derivation, config.relations)
        _same_recipe(receipt, replace(shape.recipe, fingerprint_version=FINGERPRINT_VERSION))
        fingerprints = receipt_hasher(receipt.fragment_key, shape.recipe)
        digest = Digest()
        for rows in session.scan(shape):
            hi, lo = fingerprints(rows)
            digest += mix(receipt.salt, hi, lo).digest()
        return SourceTotal(receipt, digest, shape.as_of or session.snapshot.as_of)
    finally:
        session.close()


def _same_recipe(receipt: Receipt, ours: Recipe) -> None:
    theirs = receipt.recipe
    if theirs.id == ours.id:
        return
    differing = [
        f"{_shown(their)} at the warehouse, {_shown(our)} here"
        for their, our in zip_longest(theirs.columns, ours.columns)
        if their is None or our is None or (their.name, their.type) != (our.name, our.type)
    ]
    keys = f"{counted(theirs.key_columns, 'key column')}, {ours.key_columns} here"
    what = "; ".join(differing[:3]) or keys
    raise RecipeChanged(
        f"The receipt has other columns: {what}.",
        where=receipt.relation,
        remedy="Have the warehouse refresh with --accept-schema and make a new receipt.",
    )


def _shown(column: Column | None) -> str:
    return "nothing" if column is None else f"{column.name} {column.type}"


def _columns(facts: Mapping[str, object]) -> tuple[Column, ...]:
    listed = facts.get("columns")
    columns = []
    for number, item in enumerate(listed if isinstance(listed, list) else ()):
        name, kind = item if isinstance(item, list) and len(item) == 2 else (None, None)
        if not isinstance(name, str) or not isinstance(kind, str):
            raise MalformedMessage(f"column {number + 1} is not [name, type].")
        columns.append(Column(name, parse_type(kind), ordinal=number))
    return tuple(columns)


def _text(facts: Mapping[str, object], name: str) -> str:
    value = facts.get(name)
    if not isinstance(value, str):
        raise MalformedMessage(f"{name!r} is not text.")
    return value


def _integer(facts: Mapping[str, object], name: str) -> int:
    value = facts.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise MalformedMessage(f"{name!r} is not a count.")
    return value


def _hex(facts: Mapping[str, object], name: str, size: int) -> bytes:
    try:
        value = bytes.fromhex(_text(facts, name))
    except ValueError:
        value = b""
    if len(value) != size:
        raise MalformedMessage(f"{name!r} is not {size} bytes in hexadecimal.")
    return value
