"""MariaDB and MySQL: every right of the login, from what SHOW GRANTS says of it.

SHOW GRANTS names all that a login holds: its own, by its default role and the roles of that role,
by PUBLIC (MariaDB 10.11), by mandatory roles (MySQL). A role that is no default one is shown only
while it is active, so each is made active once, in the read-only session of `check`; MySQL shows
its rights as the login's own. information_schema shows none of these.

Grants to an anonymous account at the level of a database count for every login, and no login is
shown them: a database that it sees although no grant names it is a note.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from source_agent.engines.interface import Ask, Privilege
from source_agent.engines.relations import quote
from source_agent.engines.rights.weights import weigh

SHOWN: Final = "SHOW GRANTS"
ACTIVATED: Final = "SET ROLE {role}"
NO_ROLE: Final = "SET ROLE NONE"
DATABASES: Final = """
SELECT schema_name FROM information_schema.schemata
WHERE schema_name NOT IN ('information_schema', 'performance_schema') ORDER BY 1"""
STATEMENTS: Final = (SHOWN, ACTIVATED.format(role="`…`"), NO_ROLE, DATABASES)

_MARK: Final = "`"
_WORD: Final = re.compile(r"""(?:`(?:[^`]|``)*`|"(?:[^"]|"")*"|'(?:[^'\\]|''|\\.)*'|[\w*$]+|\S)""")
_ROUTINES: Final = {"FUNCTION", "PROCEDURE", "PACKAGE", "BODY", "TABLE"}
_NOTHING: Final = "USAGE"
_HOST: Final = " @ "  # between name and host of a role, which MariaDB's have not


@dataclass(frozen=True, slots=True)
class _Grant:
    """A line of SHOW GRANTS. `place`: database and table, `*` is any; empty: roles are granted."""

    rights: tuple[str, ...]
    kind: str
    place: tuple[str, ...]
    role: str  # to which it is given; empty: the login itself, or PUBLIC
    is_public: bool
    is_grantable: bool


def _name(word: str) -> str:
    mark = word[0]
    return word[1:-1].replace(mark * 2, mark) if mark in "`\"'" else word


def _named(words: list[str]) -> list[list[str]]:
    """Split words at the commas that are in no parentheses, without what is in parentheses."""
    depth = 0
    found: list[list[str]] = [[]]
    for word in words:
        if word in {"(", ")"}:
            depth += 1 if word == "(" else -1
        elif word == "," and not depth:
            found.append([])
        elif not depth:
            found[-1].append(word)
    return found


def parse(line: str) -> _Grant | None:
    """Return what a line of SHOW GRANTS gives; None: it gives nothing, as SET DEFAULT ROLE."""
    verb, *words = _WORD.findall(line) or [""]
    if verb != "GRANT" or "TO" not in words:
        return None
    to = words.index("TO")
    before, after = words[:to], words[to + 1 :]
    grantee, rest = after[0], after[1:]
    is_account = rest[:1] == ["@"]
    at = before.index("ON") if "ON" in before else len(before)
    rights = [" ".join(map(_name, part)) for part in _named(before[:at])]
    place = before[at + 1 :]
    kind = " ".join(word for word in place if word in _ROUTINES)
    is_public = grantee == "PUBLIC"
    return _Grant(
        rights=tuple(rights),
        kind=kind,
        place=tuple(_name(word) for word in place if word not in _ROUTINES | {"."}),
        role="" if is_account or is_public else _name(grantee),
        is_public=is_public,
        is_grantable="OPTION" in rest,
    )


def privileges(ask: Ask, published: Set[tuple[str, str]], *, has_queries: bool) -> list[Privilege]:
    """List what the login may do, for `Engine.privileges`; `published` are database and table."""
    lines = [str(row[0]) for row in ask(SHOWN)]
    own = [grant for grant in map(parse, lines) if grant is not None]
    roles = [r for grant in own if not grant.place and not grant.role for r in grant.rights]
    of_roles = []
    for role in roles:
        ask(ACTIVATED.format(role="@".join(quote(part, _MARK) for part in role.split(_HOST))))
        shown = [str(row[0]) for row in ask(SHOWN)]
        more = [grant for line in shown if line not in lines and (grant := parse(line))]
        of_roles += [replace(grant, role=grant.role or role.split(_HOST)[0]) for grant in more]
    if roles:
        ask(NO_ROLE)
    grants = list(dict.fromkeys((*own, *of_roles)))
    found = [p for grant in grants for p in _weighed(grant, published, has_queries=has_queries)]
    if not any(grant.place[:1] == ("*",) and grant.rights != (_NOTHING,) for grant in grants):
        found += _unexplained([str(row[0]) for row in ask(DATABASES)], grants)
    return list(dict.fromkeys(found))


def _weighed(
    grant: _Grant, published: Set[tuple[str, str]], *, has_queries: bool
) -> Iterator[Privilege]:
    """Yield each right of a grant."""
    weighed = partial(weigh, role=grant.role, public=grant.is_public)
    if not grant.place:
        if grant.is_grantable:
            for role in grant.rights:
                yield weighed(f"may grant membership of role {role.split(_HOST)[0]}")
        return
    place = f"{grant.kind.lower()} " if grant.kind else ""
    place += ".".join(grant.place)
    if grant.rights == ("PROXY",):
        place = f"account {'@'.join(part for part in grant.place if part != '@')}"
    elif grant.place == ("*", "*"):
        place = "everything"
    elif grant.place[1:] == ("*",):
        place = f"every table of {grant.place[0]}"
    is_published = tuple(grant.place) in published or (has_queries and not grant.kind)
    is_wide = "*" in grant.place
    for right in grant.rights:
        if right == _NOTHING:
            if grant.is_grantable:
                yield weighed(f"GRANT OPTION on {place}")
            continue
        needed = right == "SELECT" and is_published and not is_wide
        yield weighed(f"{right} on {place}", needed=needed, grantable=grant.is_grantable)


def _unexplained(databases: list[str], grants: list[_Grant]) -> Iterator[Privilege]:
    """Yield a note for each database that the login sees and no grant of its names."""
    patterns = [_pattern(grant.place[0]) for grant in grants if grant.place]
    for name in databases:
        if not any(pattern.fullmatch(name) for pattern in patterns):
            yield Privilege(
                f"sees database {name}, which no grant shown to it names: look for an anonymous"
                " account (mysql.db), whose grants count for every login",
                excess=False,
                is_note=True,
            )


def _pattern(name: str) -> re.Pattern[str]:
    """Return what a name in a grant stands for: `_` is any character, `%` any characters."""
    parts = re.findall(r"\\.|.", name, re.DOTALL)
    known = {"_": ".", "%": ".*"}
    return re.compile("".join(known.get(p, re.escape(p[-1])) for p in parts), re.I | re.DOTALL)
