"""Derivations as JSON values, for receipts and versions: protobuf's JSON form of the message.

Written without protobuf, which takes longer to import than a short command needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from driftline.errors import MalformedMessage
from driftline.limits import DERIVATION_DEPTH_MAX
from driftline.relations.derivations import (
    AndPredicate,
    ColumnPredicate,
    Derivation,
    NotPredicate,
    Operator,
    OrPredicate,
    Predicate,
    ReferencePredicate,
    too_deep,
)

Facts: TypeAlias = dict[str, Any]

_SURROGATES: Final = re.compile("[\ud800-\udfff]")


def to_json(derivation: Derivation) -> Facts:
    """Return a derivation as JSON values."""
    return {
        **({} if derivation.columns is None else {"columns": list(derivation.columns)}),
        **({} if derivation.rows is None else {"rows": _facts(derivation.rows)}),
    }


def from_json(facts: object) -> Derivation:
    """Return the derivation of what `to_json` returned.

    Raises:
        LimitExceeded: it is too deep.
        MalformedMessage: it is none.
    """
    names, rows = _members(facts, "columns", "rows")
    return Derivation(
        None if names is None else _texts(names),
        None if rows is None else _predicate(rows, 1),
    )


def _facts(predicate: Predicate) -> Facts:
    match predicate:
        case ColumnPredicate(column, operator, values):
            said: Facts = {"column": column, "operator": operator.value}
            return {"comparison": said | ({"values": list(values)} if values else {})}
        case AndPredicate(parts):
            return {"every": {"parts": [_facts(part) for part in parts]}}
        case OrPredicate(parts):
            return {"some": {"parts": [_facts(part) for part in parts]}}
        case NotPredicate(part):
            return {"negated": _facts(part)}
        case ReferencePredicate(columns, relation, referenced, rows, types):
            said = {
                "columns": list(columns),
                "relation": relation,
                "referenced": list(referenced),
                "rows": _facts(rows),
            }
            names, kinds = ([pair[i] for pair in types] for i in range(2))
            return {"referenced": said | ({"names": names, "types": kinds} if types else {})}


def _predicate(facts: object, level: int) -> Predicate:
    if level > DERIVATION_DEPTH_MAX:
        raise too_deep()
    members = [
        (node, said)
        for node, said in zip(_NODES, _members(facts, *_NODES), strict=True)
        if said is not None
    ]
    if len(members) != 1:
        raise _unknown()
    node, said = members[0]
    return _NODES[node](said, level)


def _comparison(facts: object, _level: int) -> Predicate:
    column, operator, values = _members(facts, "column", "operator", "values")
    (name,) = _texts([column])
    try:
        parsed = Operator(operator)
    except ValueError:
        raise _unknown() from None
    return ColumnPredicate(name, parsed, () if values is None else _texts(values))


def _parts(facts: object, level: int) -> tuple[Predicate, ...]:
    (parts,) = _members(facts, "parts")
    if not isinstance(parts, list) or not parts:
        raise _unknown()
    return tuple(_predicate(part, level + 1) for part in parts)


def _referenced(facts: object, level: int) -> Predicate:
    members = _members(facts, "columns", "relation", "referenced", "rows", "names", "types")
    columns, relation, referenced, rows, names, types = members
    own, other = _texts(columns), _texts(referenced)
    typed = [_texts([] if some is None else some) for some in (names, types)]
    if not 0 < len(own) == len(other) or len(typed[0]) != len(typed[1]):
        raise _unknown()
    (name,) = _texts([relation])
    pairs = tuple(zip(*typed, strict=True))
    return ReferencePredicate(own, name, other, _predicate(rows, level + 1), pairs)


_NODES: Final[dict[str, Callable[[object, int], Predicate]]] = {
    "comparison": _comparison,
    "every": lambda facts, level: AndPredicate(_parts(facts, level)),
    "some": lambda facts, level: OrPredicate(_parts(facts, level)),
    "referenced": _referenced,
    "negated": lambda facts, level: NotPredicate(_predicate(facts, level + 1)),
}


def _members(facts: object, *names: str) -> list[object]:
    """Return the members of an object by name; None: absent. It has no others."""
    if not isinstance(facts, dict) or not facts.keys() <= set(names):
        raise _unknown()
    return [facts.get(name) for name in names]


def _texts(facts: object) -> tuple[str, ...]:
    if not isinstance(facts, list) or not all(map(_is_text, facts)):
        raise _unknown()
    return tuple(facts)


def _is_text(fact: object) -> bool:
    """Return True for text that UTF-8 can say: JSON has escapes of half characters, too."""
    return isinstance(fact, str) and not _SURROGATES.search(fact)


def _unknown() -> MalformedMessage:
    return MalformedMessage("A derivation is not one that this release knows.")
