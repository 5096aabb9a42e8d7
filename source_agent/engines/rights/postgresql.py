"""PostgreSQL: every right of the login, from access control lists, ownership and memberships.

The lists name each privilege themselves, so a privilege that a new release adds is seen. Any
membership counts, also one without INHERIT or SET. The login is SESSION_USER: its settings may name
another role (`ALTER ROLE … SET role`). Left out are what PUBLIC has of the catalogue's own objects
since initdb (`pg_init_privs`), and what gives PUBLIC nothing by itself: CONNECT, USAGE, EXECUTE of
functions that run with the caller's rights.

Rejected: `has_table_privilege` and its kin. They ask for privileges by name, and see neither roles
that need SET ROLE nor who holds a privilege.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from psycopg import Error

from source_agent.engines.interface import Ask, Privilege
from source_agent.engines.rights.weights import weigh
from source_agent.printable import counted

_HELD: Final = """
WITH held AS MATERIALIZED (
  SELECT oid, rolname::pg_catalog.text AS role, rolname = SESSION_USER AS is_login
  FROM pg_catalog.pg_roles WHERE pg_catalog.pg_has_role(SESSION_USER, oid, 'MEMBER'))"""
_GRANTEES: Final = """, grantee AS MATERIALIZED (
  SELECT oid, CASE WHEN is_login THEN '' ELSE role END AS role, false AS is_public FROM held
  UNION ALL SELECT 0, '', true)"""
VERSION: Final = "SELECT pg_catalog.current_setting('server_version_num')::pg_catalog.int4"
ROLES: Final = """
SELECT rolname::pg_catalog.text, rolname = SESSION_USER,
       rolsuper, rolcreatedb, rolcreaterole, rolreplication, rolbypassrls
FROM pg_catalog.pg_roles WHERE pg_catalog.pg_has_role(SESSION_USER, oid, 'MEMBER')
ORDER BY rolname <> SESSION_USER, 1"""
ADMIN: Final = f"""{_HELD}
SELECT DISTINCT g.rolname::pg_catalog.text, CASE WHEN held.is_login THEN '' ELSE held.role END
FROM pg_catalog.pg_auth_members m JOIN held ON held.oid = m.member
JOIN pg_catalog.pg_roles g ON g.oid = m.roleid WHERE m.admin_option ORDER BY 1, 2"""
# Of other databases only the number of objects can be seen.
OWNED: Final = f"""{_HELD}
SELECT CASE WHEN held.is_login THEN '' ELSE held.role END,
       CASE WHEN s.dbid IN (0, here.oid)
            THEN pg_catalog.pg_describe_object(s.classid, s.objid, s.objsubid) END,
       d.datname::pg_catalog.text, s.deptype = 'o', pg_catalog.count(*)
FROM pg_catalog.pg_shdepend s JOIN held ON held.oid = s.refobjid
JOIN pg_catalog.pg_database here ON here.datname = pg_catalog.current_database()
LEFT JOIN pg_catalog.pg_database d ON d.oid = s.dbid
WHERE s.refclassid = 'pg_catalog.pg_authid'::pg_catalog.regclass
  AND (s.deptype = 'o' OR s.deptype = 'a' AND s.dbid NOT IN (0, here.oid))
GROUP BY 1, 2, 3, 4 ORDER BY 4 DESC, 1, 3, 2"""
_OBJECTS: Final = """
  SELECT 'pg_catalog.pg_database'::pg_catalog.regclass, oid, 0, 'database',
         pg_catalog.quote_ident(datname), datname = pg_catalog.current_database(), datdba, datacl,
         'd'
  FROM pg_catalog.pg_database
  UNION ALL
  SELECT 'pg_catalog.pg_namespace'::pg_catalog.regclass, oid, 0, 'schema',
         pg_catalog.quote_ident(nspname), false, nspowner, nspacl, 'n'
  FROM pg_catalog.pg_namespace WHERE nspname !~ '^pg_(toast_)?temp_'
  UNION ALL
  SELECT 'pg_catalog.pg_class'::pg_catalog.regclass, c.oid, 0,
         CASE c.relkind WHEN 'S' THEN 'sequence' ELSE 'table' END,
         pg_catalog.format('%I.%I', n.nspname, c.relname), false, c.relowner, c.relacl,
         CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND n.nspname !~ '^pg_(toast_)?temp_'
  UNION ALL
  SELECT 'pg_catalog.pg_class'::pg_catalog.regclass, c.oid, a.attnum, 'table',
         pg_catalog.format('%I.%I', n.nspname, c.relname), false, c.relowner, a.attacl, 'c'
  FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  WHERE a.attacl IS NOT NULL AND NOT a.attisdropped AND n.nspname !~ '^pg_(toast_)?temp_'
  UNION ALL
  SELECT 'pg_catalog.pg_proc'::pg_catalog.regclass, p.oid, 0,
         CASE WHEN p.prosecdef THEN 'SECURITY DEFINER function'
              WHEN l.lanpltrusted THEN 'function' ELSE 'untrusted function' END,
         p.oid::pg_catalog.regprocedure::pg_catalog.text, false, p.proowner, p.proacl, 'f'
  FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_language l ON l.oid = p.prolang
  WHERE p.proacl IS NOT NULL OR p.prosecdef
  UNION ALL
  SELECT 'pg_catalog.pg_type'::pg_catalog.regclass, oid, 0, 'type',
         pg_catalog.format_type(oid, NULL), false, typowner, typacl, 'T'
  FROM pg_catalog.pg_type WHERE typacl IS NOT NULL
  UNION ALL
  SELECT 'pg_catalog.pg_language'::pg_catalog.regclass, oid, 0, 'language',
         lanname::pg_catalog.text, false, lanowner, lanacl, 'l'
  FROM pg_catalog.pg_language WHERE lanacl IS NOT NULL
  UNION ALL
  SELECT 'pg_catalog.pg_foreign_data_wrapper'::pg_catalog.regclass, oid, 0, 'foreign-data wrapper',
         pg_catalog.quote_ident(fdwname), false, fdwowner, fdwacl, 'F'
  FROM pg_catalog.pg_foreign_data_wrapper
  UNION ALL
  SELECT 'pg_catalog.pg_foreign_server'::pg_catalog.regclass, oid, 0, 'foreign server',
         pg_catalog.quote_ident(srvname), false, srvowner, srvacl, 'S'
  FROM pg_catalog.pg_foreign_server
  UNION ALL
  SELECT 'pg_catalog.pg_tablespace'::pg_catalog.regclass, oid, 0, 'tablespace',
         pg_catalog.quote_ident(spcname), false, spcowner, spcacl, 't'
  FROM pg_catalog.pg_tablespace"""
# By kind and name: what, by whom. 16384: the first object that is not the catalogue's own.
GRANTED: Final = f"""{_HELD}{_GRANTEES},
object (class, id, part, kind, name, is_current, owner, acl, code) AS ({_OBJECTS})
SELECT DISTINCT o.kind, o.id, o.name, o.is_current, o.id < 16384, a.privilege_type, a.is_grantable,
       grantee.role, grantee.is_public
FROM object o
CROSS JOIN LATERAL pg_catalog.aclexplode(
  COALESCE(o.acl, CASE WHEN o.code <> 'c' THEN pg_catalog.acldefault(o.code::"char", o.owner) END)
) a JOIN grantee ON grantee.oid = a.grantee
WHERE (a.grantee <> o.owner OR o.owner < 16384)
  AND NOT (grantee.is_public AND o.id < 16384 AND o.kind NOT IN ('database', 'schema')
           AND a.privilege_type IN (
             SELECT x.privilege_type FROM pg_catalog.aclexplode(COALESCE(
               (SELECT i.initprivs FROM pg_catalog.pg_init_privs i
                WHERE i.classoid = o.class AND i.objoid = o.id AND i.objsubid = o.part),
               CASE WHEN o.code <> 'c' THEN pg_catalog.acldefault(o.code::"char", o.owner) END)) x
             WHERE x.grantee = 0))
ORDER BY 1, 3, 6, 8"""
LARGE_OBJECTS: Final = f"""{_HELD}{_GRANTEES}
SELECT a.privilege_type, a.is_grantable, grantee.role, grantee.is_public, pg_catalog.count(*)
FROM pg_catalog.pg_largeobject_metadata o
CROSS JOIN LATERAL pg_catalog.aclexplode(o.lomacl) a JOIN grantee ON grantee.oid = a.grantee
WHERE a.grantee <> o.lomowner GROUP BY 1, 2, 3, 4 ORDER BY 1, 3"""
FUTURE: Final = f"""{_HELD}{_GRANTEES}
SELECT d.defaclobjtype::pg_catalog.text, pg_catalog.pg_get_userbyid(d.defaclrole)::pg_catalog.text,
       pg_catalog.quote_ident(n.nspname), a.privilege_type, a.is_grantable, grantee.role,
       grantee.is_public
FROM pg_catalog.pg_default_acl d LEFT JOIN pg_catalog.pg_namespace n ON n.oid = d.defaclnamespace
CROSS JOIN LATERAL pg_catalog.aclexplode(d.defaclacl) a JOIN grantee ON grantee.oid = a.grantee
WHERE a.grantee <> d.defaclrole ORDER BY 1, 2, 3, 4, 6"""
PARAMETERS_SINCE: Final = 15_00_00
PARAMETERS: Final = f"""{_HELD}{_GRANTEES}
SELECT p.parname, a.privilege_type, a.is_grantable, grantee.role, grantee.is_public
FROM pg_catalog.pg_parameter_acl p
CROSS JOIN LATERAL pg_catalog.aclexplode(p.paracl) a JOIN grantee ON grantee.oid = a.grantee
ORDER BY 1, 2, 4"""
PUBLISHED: Final = """
SELECT oid, relnamespace FROM pg_catalog.pg_class
WHERE oid = pg_catalog.to_regclass(%s)::pg_catalog.oid"""
STATEMENTS: Final = (
    *(VERSION, ROLES, ADMIN, OWNED, GRANTED, LARGE_OBJECTS, FUTURE, PARAMETERS, PUBLISHED),
)

OWNED_LISTED_MAX: Final = 20  # objects of one role; of more only the number is shown
_ATTRIBUTES: Final = ("SUPERUSER", "CREATEDB", "CREATEROLE", "REPLICATION", "BYPASSRLS")
_KINDS: Final = {  # of default privileges
    "r": "table", "S": "sequence", "f": "function", "T": "type", "n": "schema", "L": "large object",
}  # fmt: skip
_STANDARD: Final = "information_schema."  # `pg_init_privs` does not have it
# What PUBLIC has from the beginning and what gives it nothing alone.
_HARMLESS: Final = {
    ("database", "CONNECT"), ("schema", "USAGE"), ("type", "USAGE"), ("language", "USAGE"),
    ("function", "EXECUTE"), ("untrusted function", "EXECUTE"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Needs:
    """What relations need: tables and schemas by oid; with queries any table may be read."""

    tables: frozenset[int]
    schemas: frozenset[int]
    has_queries: bool

    def has(self, kind: str, id_: int, what: str, *, is_current: bool, is_system: bool) -> bool:
        """Return True if a privilege on an object is needed to read the relations."""
        match kind, what:
            case "database", "CONNECT":
                return is_current
            case "schema", "USAGE":
                return self.has_queries or id_ in self.schemas
            case "table", "SELECT":
                return self.has_queries or id_ in self.tables
            case "sequence", "SELECT":
                return self.has_queries
            case "foreign server", "USAGE":
                return self.has_queries
            case "function", "EXECUTE":  # of a view or a query; with the caller's rights
                return not is_system
            case (("type" | "language"), "USAGE"):
                return True
        return False


def privileges(ask: Ask, tables: Iterable[str], *, has_queries: bool) -> list[Privilege]:
    """List what the login may do, for `Engine.privileges`; `tables` are quoted names."""
    roles = ask(ROLES)
    rights = _attributes(roles)
    if any(is_super for _, _, is_super, *_ in roles):
        return rights  # nothing more can be said
    rights += [
        weigh(f"may grant membership of role {name}", role=role) for name, role in ask(ADMIN)
    ]
    rights += _owned(ask(OWNED))
    published: list[tuple[Any, ...]] = []
    granted, large, future = ask(GRANTED), ask(LARGE_OBJECTS), ask(FUTURE)
    parameters = ask(PARAMETERS) if ask(VERSION)[0][0] >= PARAMETERS_SINCE else []
    with contextlib.suppress(Error):
        published = [row for table in tables for row in ask(PUBLISHED, table)]
    ids, schemas = zip(*published, strict=True) if published else ((), ())
    needs = _Needs(frozenset(ids), frozenset(schemas), has_queries)
    rights += _granted(granted, needs)
    for what, grantable, role, public, count in large:
        text = f"{what} on {counted(count, 'large object')}"
        needed = what == "SELECT" and has_queries
        rights.append(weigh(text, needed=needed, role=role, public=public, grantable=grantable))
    for code, maker, schema, what, grantable, role, public in future:
        kind = _KINDS.get(code, code)
        if public and (kind, what) in _HARMLESS:
            continue
        place = f" in schema {schema}" if schema else ""
        text = f"{what} on every {kind} that {maker} will make{place}"
        rights.append(weigh(text, role=role, public=public, grantable=grantable))
    for name, what, grantable, role, public in parameters:
        text = f"{what} of the setting {name}"
        rights.append(weigh(text, role=role, public=public, grantable=grantable))
    return list(dict.fromkeys(rights))


def _attributes(roles: Sequence[tuple[Any, ...]]) -> list[Privilege]:
    """Return what a role may do by itself, for the login and the roles that it is a member of."""
    rights = []
    for name, is_login, *held in roles:
        who = name if is_login else f"role {name}, of which the login is a member,"
        for is_held, attribute in zip(held, _ATTRIBUTES, strict=True):
            if is_held and attribute == "SUPERUSER":
                rights.append(weigh(f"{who} is SUPERUSER: nothing is refused to it"))
                if is_login:  # and it counts as a member of every role
                    return rights
            elif is_held:
                rights.append(weigh(f"{who} has {attribute}"))
        if name.startswith("pg_") and not is_login:
            rights.append(weigh(f"membership of {name}"))
    return rights


def _owned(rows: Sequence[tuple[Any, ...]]) -> list[Privilege]:
    """Return what the login owns, and what it may do to objects of other databases."""
    rights: list[Privilege] = []
    here: dict[str, list[str]] = {}
    for role, what, database, is_owner, count in rows:
        if what is not None and is_owner:
            here.setdefault(role, []).append(what)
        elif is_owner:
            text = f"owns {counted(count, 'object')} of database {database}"
            rights.append(weigh(text, role=role))
        else:
            text = f"has privileges on {counted(count, 'object')} of database {database}"
            rights.append(weigh(text, role=role))
    for role, names in here.items():
        rights += [weigh(f"owns {name}", role=role) for name in names[:OWNED_LISTED_MAX]]
        if rest := len(names) - OWNED_LISTED_MAX:
            rights += [weigh(f"owns {counted(rest, 'object')} more", role=role)] if rest > 0 else []
    return rights


def _granted(rows: Sequence[tuple[Any, ...]], needs: _Needs) -> list[Privilege]:
    """Return what access control lists give, but for what PUBLIC has and gives it nothing."""
    rights = []
    for kind, id_, name, is_current, is_system, what, grantable, role, public in rows:
        is_default = (kind, what) in _HARMLESS and not (is_system and kind.endswith("function"))
        is_default |= is_system and what == "SELECT" and name.startswith(_STANDARD)
        if public and (is_default or (what == "TEMPORARY" and not is_current)):
            continue
        needed = needs.has(kind, id_, what, is_current=is_current, is_system=is_system)
        text = f"{what} on {name}" if kind == "table" else f"{what} on {kind} {name}"
        rights.append(weigh(text, needed=needed, role=role, public=public, grantable=grantable))
    return rights
