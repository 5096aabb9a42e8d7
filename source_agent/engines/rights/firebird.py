"""Firebird: every right of the login, from RDB$USER_PRIVILEGES, ownership and roles.

Roles count whether they are default, active or neither: SET ROLE makes them active. The active one
may have been given by a mapping, which is no membership. Left out is what PUBLIC has of the
catalogue's own: SELECT and EXECUTE of system tables and packages, and USAGE of character sets and
collations, which a new database of Firebird 4.0 and later grants one by one.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any, Final

from source_agent.engines.interface import Ask, Privilege
from source_agent.engines.rights.weights import weigh

_HELD: Final = """WITH RECURSIVE HELD (NAME, KIND) AS (
    SELECT CAST(CURRENT_USER AS VARCHAR(63)), CAST(8 AS SMALLINT) FROM RDB$DATABASE
    UNION ALL SELECT CAST('PUBLIC' AS VARCHAR(63)), CAST(8 AS SMALLINT) FROM RDB$DATABASE
    UNION ALL SELECT CAST(CURRENT_ROLE AS VARCHAR(63)), CAST(13 AS SMALLINT) FROM RDB$DATABASE
    UNION ALL SELECT CAST(TRIM(m.RDB$RELATION_NAME) AS VARCHAR(63)), CAST(13 AS SMALLINT)
    FROM HELD h JOIN RDB$USER_PRIVILEGES m
        ON m.RDB$USER = h.NAME AND m.RDB$USER_TYPE = h.KIND AND m.RDB$PRIVILEGE = 'M')
"""
LOGIN: Final = """SELECT CURRENT_USER,
    (SELECT FIRST 1 RDB$OWNER_NAME FROM RDB$RELATIONS WHERE RDB$RELATION_NAME = 'RDB$DATABASE')
FROM RDB$DATABASE"""
PRIVILEGES: Final = f"""{_HELD}SELECT DISTINCT h.NAME, h.KIND, p.RDB$PRIVILEGE, p.RDB$RELATION_NAME,
    p.RDB$OBJECT_TYPE, COALESCE(p.RDB$GRANT_OPTION, 0)
FROM HELD h JOIN RDB$USER_PRIVILEGES p ON p.RDB$USER = h.NAME AND p.RDB$USER_TYPE = h.KIND
ORDER BY 4, 3, 2, 1"""
ROLES: Final = f"{_HELD}SELECT DISTINCT NAME FROM HELD WHERE KIND = 13 ORDER BY 1"
# Since Firebird 4.0: 64 bits, each a right.
SYSTEM_SINCE: Final = (
    "SELECT COUNT(*) FROM RDB$TYPES WHERE RDB$FIELD_NAME = 'RDB$SYSTEM_PRIVILEGES'"
)
SYSTEM: Final = f"""{_HELD}SELECT DISTINCT h.NAME, r.RDB$SYSTEM_PRIVILEGES
FROM HELD h JOIN RDB$ROLES r ON r.RDB$ROLE_NAME = h.NAME WHERE h.KIND = 13 ORDER BY 1"""
SYSTEM_NAMES: Final = """SELECT RDB$TYPE, RDB$TYPE_NAME FROM RDB$TYPES
WHERE RDB$FIELD_NAME = 'RDB$SYSTEM_PRIVILEGES' ORDER BY 1"""
_OWNERS: Final = (
    ("table or view", "RDB$RELATIONS", "RDB$RELATION_NAME"),
    ("procedure", "RDB$PROCEDURES", "RDB$PROCEDURE_NAME"),
    ("function", "RDB$FUNCTIONS", "RDB$FUNCTION_NAME"),
    ("package", "RDB$PACKAGES", "RDB$PACKAGE_NAME"),
    ("sequence", "RDB$GENERATORS", "RDB$GENERATOR_NAME"),
    ("exception", "RDB$EXCEPTIONS", "RDB$EXCEPTION_NAME"),
    ("domain", "RDB$FIELDS", "RDB$FIELD_NAME"),
    ("role", "RDB$ROLES", "RDB$ROLE_NAME"),
    ("collation", "RDB$COLLATIONS", "RDB$COLLATION_NAME"),
)
OWNED: Final = "\nUNION ALL ".join(
    f"SELECT '{kind}', {name} FROM {table} WHERE RDB$OWNER_NAME = CURRENT_USER"
    + (" AND RDB$FIELD_NAME NOT STARTING WITH 'RDB$'" if kind == "domain" else "")
    for kind, table, name in _OWNERS
)
STATEMENTS: Final = (*(LOGIN, PRIVILEGES, ROLES, SYSTEM_SINCE, SYSTEM, SYSTEM_NAMES, OWNED),)

_SYSDBA: Final = "SYSDBA"
_ADMIN: Final = "RDB$ADMIN"
_ROLE: Final = 13  # of RDB$USER_TYPE and RDB$OBJECT_TYPE
_TABLES: Final = frozenset({0, 1})  # and views
_FUNCTION: Final = 15
_CHARACTERS: Final = frozenset({11, 17})  # character sets and collations
_CATALOGUE: Final = ("RDB$", "MON$", "SEC$", "SQL$")
_LETTERS: Final = {
    "S": "SELECT", "I": "INSERT", "U": "UPDATE", "D": "DELETE", "R": "REFERENCES", "X": "EXECUTE",
    "C": "CREATE", "L": "ALTER ANY", "O": "DROP ANY", "G": "USAGE",
}  # fmt: skip
_OBJECTS: Final = {
    5: "procedure", 7: "exception", 9: "domain", 11: "character set", 14: "sequence",
    15: "function", 17: "collation", 18: "package",
}  # fmt: skip


def privileges(ask: Ask, published: Set[str], *, has_queries: bool) -> list[Privilege]:
    """List what the login may do, for `Engine.privileges`; `published` are names of tables."""
    login, owner = (str(name).rstrip() for name in ask(LOGIN)[0])
    if everything := [f"everything, as {who}" for who in {login} & {_SYSDBA, owner}]:
        return [weigh(what) for what in everything]
    roles = [str(row[0]).rstrip() for row in ask(ROLES)]
    rights = [weigh(f"everything, by role {_ADMIN}")] if _ADMIN in roles else []
    rights += _system(ask) if ask(SYSTEM_SINCE)[0][0] else []
    rights += [weigh(f"owns {kind.rstrip()} {str(name).rstrip()}") for kind, name in ask(OWNED)]
    for row in ask(PRIVILEGES):
        rights += _weighed(row, published, has_queries=has_queries)
    return list(dict.fromkeys(rights))


def _system(ask: Ask) -> list[Privilege]:
    """Return the system privileges of roles, each a bit, but for the role that has all."""
    names = {int(bit): str(name).rstrip() for bit, name in ask(SYSTEM_NAMES)}
    rights = []
    for role, held in ask(SYSTEM):
        bits = int.from_bytes(held or b"", "little")
        if str(role).rstrip() != _ADMIN:
            rights += [
                weigh(f"system privilege {names.get(bit, bit)}", role=str(role).rstrip())
                for bit in range(bits.bit_length())
                if bits >> bit & 1
            ]
    return rights


def _weighed(row: Sequence[Any], published: Set[str], *, has_queries: bool) -> list[Privilege]:
    """Return what a row of PRIVILEGES gives; nothing: it is the catalogue's own."""
    holder, letter, name = (str(row[i]).rstrip() for i in (0, 2, 3))
    kind, is_grantable = int(row[4]), bool(row[5])
    role = holder if row[1] == _ROLE else ""
    is_public = not role and holder == "PUBLIC"
    if letter == "M":  # of a role, whose rights are listed as its own
        text = f"may grant membership of role {name}"
        return [weigh(text, role=role, public=is_public)] if is_grantable else []
    is_own = name.startswith(_CATALOGUE) or kind in _CHARACTERS
    if is_public and is_own and letter in {"S", "G", "X"} and not is_grantable:
        return []
    needed = letter == "S" and (name in published or has_queries)
    needed |= letter == "X" and kind == _FUNCTION and has_queries
    object_ = name if kind in _TABLES else f"{_OBJECTS.get(kind, f'object {kind}')} {name}"
    if name.startswith("SQL$") and letter in {"C", "L", "O"}:  # of all objects of a kind
        what = f"{_LETTERS[letter]} {name.removeprefix('SQL$')}"
    else:
        what = f"{_LETTERS.get(letter, letter)} on {object_}"
    return [weigh(what, needed=needed, role=role, public=is_public, grantable=is_grantable)]
