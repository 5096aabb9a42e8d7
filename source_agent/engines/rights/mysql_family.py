"""MariaDB and MySQL: every right of the login, from what SHOW GRANTS says of it.

SHOW GRANTS names what a login holds itself and by PUBLIC (MariaDB 10.11), its roles, and what an
active role holds, with the roles of that role. So it is asked without a role, then with each role,
in the read-only session of `check`. MySQL shows a role's rights merged with the login's own, under
the login's name: what is not there without the role is by the role. A mandatory role (MySQL) is
every login's. information_schema shows none of these.

Grants to an anonymous account at the level of a database count for every login, and no login is
shown them: a database that it sees although no grant names it is a note.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias

from source_agent.engines.interface import Ask, Privilege
from source_agent.engines.relations.select import quote
from source_agent.engines.rights.weights import weigh

SHOWN: Final = "SHOW GRANTS"
ACTIVATED: Final = "SET ROLE {role}"
NO_ROLE: Final = "SET ROLE NONE"
MANDATORY: Final = "SHOW GLOBAL VARIABLES LIKE 'mandatory_roles'"
DATABASES: Final = """
SELECT schema_name FROM information_schema.schemata
WHERE schema_name NOT IN ('information_schema', 'performance_schema') ORDER BY 1"""
STATEMENTS: Final = (SHOWN, ACTIVATED.format(role="`…`"), NO_ROLE, MANDATORY, DATABASES)

_MARK: Final = "`"
_WORD: Final = re.compile(r"""(?:`(?:[^`]|``)*`|"(?:[^"]|"")*"|'(?:[^'\\]|''|\\.)*'|[\w*$]+|\S)""")
_ROUTINES: Final = {"FUNCTION", "PROCEDURE", "PACKAGE", "BODY", "TABLE"}
_NOTHING: Final = "USAGE"
_ANY_HOST: Final = "%"
# Where one of these is granted on everything, the login sees every database (SHOW DATABASES).
SHOWING: Final = {
    *("ALL PRIVILEGES", "ALTER", "ALTER ROUTINE", "CREATE", "CREATE ROUTINE"),
    *("CREATE TEMPORARY TABLES", "CREATE VIEW", "DELETE", "DELETE HISTORY", "DROP", "EVENT"),
    *("EXECUTE", "INDEX", "INSERT", "LOCK TABLES", "REFERENCES", "SELECT", "SHOW CREATE ROUTINE"),
    *("SHOW DATABASES", "SHOW VIEW", "TRIGGER", "UPDATE"),
}

_Role: TypeAlias = tuple[str, ...]  # its name; in MySQL also its host


@dataclass(frozen=True, slots=True)
class _Right:
    """A right that a line of SHOW GRANTS gives.

    Attributes:
        name: as SELECT; of a role: the role's, for people.
        kind: PROCEDURE and the like; empty: of tables.
        place: database and table, `*` is any; empty: the right is membership of a role.
        without: databases that are taken from a right on everything (MySQL's partial revokes).
        role: by which the login has it; empty: it has it itself, or PUBLIC does.
        is_public: PUBLIC has it.
        is_grantable: it can be passed on.
    """

    name: str
    kind: str
    place: tuple[str, ...]
    without: tuple[str, ...]
    role: str
    is_public: bool
    is_grantable: bool


def _name(word: str) -> str:
    mark = word[0]
    return word[1:-1].replace(mark * 2, mark) if mark in "`\"'" else word


def _named(words: list[str]) -> list[list[str]]:
    """Split words at the commas that are in no parentheses, without what is in parentheses."""
    depth = 0
    parts: list[list[str]] = [[]]
    for word in words:
        if word in {"(", ")"}:
            depth += 1 if word == "(" else -1
        elif word == "," and not depth:
            parts.append([])
        elif not depth:
            parts[-1].append(word)
    return parts


def parse(line: str) -> tuple[list[_Right], list[_Role]]:
    """Return the rights that a line of SHOW GRANTS gives, and the roles that it gives the login."""
    verb, *words = _WORD.findall(line) or [""]
    if verb != "GRANT" or "TO" not in words:  # SET DEFAULT ROLE
        return [], []
    to = words.index("TO")
    before, (grantee, *rest) = words[:to], words[to + 1 :]
    is_public = grantee == "PUBLIC"
    is_role = rest[:1] != ["@"] and not is_public
    at = before.index("ON") if "ON" in before else len(before)
    given = _named(before[:at])
    place = before[at + 1 :]
    roles = [] if place else [_role(part) for part in given]
    right = _Right(
        name="",
        kind=" ".join(word for word in place if word in _ROUTINES),
        place=tuple(_name(word) for word in place if word not in _ROUTINES | {"."}),
        without=(),
        role=_name(grantee) if is_role else "",
        is_public=is_public,
        is_grantable="OPTION" in rest,
    )
    names = map(_shown, roles) if roles else (" ".join(map(_name, part)) for part in given)
    return [replace(right, name=name) for name in names], [] if is_role else roles


def _role(words: Sequence[str]) -> _Role:
    """Return a role from the words of its name: `r`, `r`@`%`, or without quotes."""
    at = words.index("@") if "@" in words else len(words)
    parts = words[:at], words[at + 1 :]
    return tuple("".join(map(_name, part)) for part in parts if part)


def _shown(role: _Role) -> str:
    """Return a role's name for people."""
    return "@".join(part for part in role[: 1 if role[1:] == (_ANY_HOST,) else None])


def _taken(lines: list[str]) -> dict[str, list[str]]:
    """Return the databases that REVOKE lines take from a right on everything, by right."""
    by_right: dict[str, list[str]] = {}
    for line in lines:
        verb, *words = _WORD.findall(line) or [""]
        if verb == "REVOKE" and "ON" in words:
            at = words.index("ON")
            for part in _named(words[:at]):
                by_right.setdefault(" ".join(part), []).append(_name(words[at + 1]))
    return by_right


def _is_everything(right: _Right) -> bool:
    return right.place == ("*", "*")


def _held(ask: Ask) -> tuple[list[_Right], list[_Role]]:
    """Return the rights that the session has with its active role, and the login's roles."""
    lines = [str(row[0]) for row in ask(SHOWN)]
    taken = _taken(lines)
    parsed = [parse(line) for line in lines]
    rights = [
        replace(right, without=tuple(taken.get(right.name, ())) if _is_everything(right) else ())
        for given, _ in parsed
        for right in given
    ]
    return rights, [role for _, roles in parsed for role in roles]


def privileges(ask: Ask, published: Set[tuple[str, str]], *, has_queries: bool) -> list[Privilege]:
    """List what the login may do, for `Engine.privileges`; `published` are database and table."""
    ask(NO_ROLE)
    own, roles = _held(ask)
    mandatory = {
        (*role, _ANY_HOST)[:2]
        for _, names in ask(MANDATORY)
        for role in map(_role, filter(None, _named(_WORD.findall(names or ""))))
    }
    rights = [_weighed(right, published, has_queries=has_queries) for right in own]
    for role in roles:
        ask(ACTIVATED.format(role="@".join(quote(part, _MARK) for part in role)))
        more, _ = _held(ask)
        rights += [
            _weighed(
                replace(right, role=right.role or _shown(role)),
                published,
                has_queries=has_queries,
                mandatory=role in mandatory,
            )
            for right in more
            if right not in own
        ]
    ask(NO_ROLE)
    if not any(_is_everything(right) and right.name in SHOWING for right in own):
        rights += _unexplained([str(row[0]) for row in ask(DATABASES)], own)
    return list(dict.fromkeys(p for p in rights if p is not None))


def _weighed(
    right: _Right, published: Set[tuple[str, str]], *, has_queries: bool, mandatory: bool = False
) -> Privilege | None:
    """Return what `check` says of a right; None: nothing."""
    weighed = partial(weigh, role=right.role, public=right.is_public, mandatory=mandatory)
    if not right.place:
        is_said = right.is_grantable
        return weighed(f"may grant membership of role {right.name}") if is_said else None
    place = f"{right.kind.lower()} " if right.kind else ""
    place += ".".join(right.place)
    if right.name == "PROXY":
        place = f"account {'@'.join(part for part in right.place if part != '@')}"
    elif _is_everything(right):
        place = " but ".join(filter(None, ("everything", ", ".join(right.without))))
    elif right.place[1:] == ("*",):
        place = f"every table of {right.place[0]}"
    if right.name == _NOTHING:
        return weighed(f"GRANT OPTION on {place}") if right.is_grantable else None
    is_published = tuple(right.place) in published or (has_queries and not right.kind)
    needed = right.name == "SELECT" and is_published and "*" not in right.place
    return weighed(f"{right.name} on {place}", needed=needed, grantable=right.is_grantable)


def _unexplained(databases: list[str], rights: list[_Right]) -> Iterator[Privilege]:
    """Yield a note for each database that the login sees and no grant of its names."""
    patterns = [_pattern(right.place[0]) for right in rights if right.place]
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
