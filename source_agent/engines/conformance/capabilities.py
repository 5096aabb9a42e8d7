"""Capabilities that an engine may lack; it declares them, and must say so (`lacking`)."""

from __future__ import annotations

from enum import Enum


class Capability(Enum):
    """Something that an engine may be unable to do. The value says it, for error messages."""

    SQL = "a relation may be a view, or have `where`"
    QUERIES = "a relation may be a query, whose columns have known types"
    KEYS = "the catalogue knows keys"
    NOT_NULL = "NOT NULL of a table's column is enforced, and the catalogue knows it"
    ORDER = "rows come in key order, and ranges of keys by index"
    SNAPSHOT = "everything that a session reads is from one snapshot"
    READ_ONLY = "a session refuses to write"
    READ_ONLY_CONNECTION = "its connection refuses to write, outside its transaction too"
    TIME_LIMIT = "`statement_s` ends a statement"
    TEMPLATES = "every statement that is issued is known before"
    PLANS = "the database shows how it looks for a row"
    LOGINS = "the database has logins, with privileges that can be read"
