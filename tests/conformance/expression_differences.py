"""Where an expression of a view and the database's own SQL are known to differ."""

from __future__ import annotations

from collections.abc import Set

from tests.conformance.expression_forms import FB, LITE, MY, PG

# By row of the table in docs/views.md, engine and form.
_BY_BYTES = (
    "text = text", "text <> text", "text < text", "text <= text", "text IN", "text NOT IN",
    "text BETWEEN", "text <=>", "nullif(text)", "least(text)", "greatest(text)",
)  # fmt: skip
_EXTREMES = tuple(
    f"{name}({kind})"
    for name in ("least", "greatest")
    for kind in ("int", "decimal", "double", "text", "date", "ts")
)
_QUOTIENTS = ("int / int", "decimal / int", "decimal / decimal")
_AS_TEXT = (
    "CAST(boolean AS STRING)", "CAST(decimal AS STRING)", "CAST(double AS STRING)",
    "CAST(int AS STRING)", "CAST(timestamp AS STRING)",
)  # fmt: skip
KNOWN: dict[str, dict[str, tuple[str, ...]]] = {
    "`greatest`, `least` of NULL": {MY: _EXTREMES, LITE: _EXTREMES, FB: _EXTREMES},
    "`=`, `<`, IN, BETWEEN, `nullif` of texts": {
        MY: (*_BY_BYTES, "CHAR(n) = text", "position"),
        FB: (*_BY_BYTES, "CHAR(n) = text"),
    },
    "`CHAR(n)`": {PG: ("CHAR(n) = text", "CHAR(n) || text", "length of CHAR(n)")},
    "LIKE, ILIKE, RLIKE": {
        PG: ("ILIKE",), LITE: ("LIKE", "LIKE of a column"),
        MY: ("LIKE", "LIKE of a column", "RLIKE"),
    },
    "`/`": {PG: _QUOTIENTS, MY: _QUOTIENTS, LITE: (*_QUOTIENTS, "int DIV int"), FB: _QUOTIENTS},
    "CAST to INT": {
        **dict.fromkeys((PG, MY, FB), ("CAST(decimal AS INT)", "CAST(double AS INT)"))
    },
    "`round`": {PG: ("round(double)",), MY: ("round(double)",), LITE: ("round(int, -1)",)},
    "CAST to STRING": {PG: tuple(_AS_TEXT[1:4]), MY: _AS_TEXT, LITE: _AS_TEXT, FB: _AS_TEXT},
    "`upper`, `lower`, `initcap`": {
        PG: ("upper", "lower", "initcap"), MY: ("upper", "lower"),
        LITE: ("upper", "lower"), FB: ("upper", "lower"),
    },
    "`length`, `ascii`": {MY: ("length", "length of CHAR(n)", "ascii")},
    "`substring`, `left` at 0 or less": {
        PG: ("substring at 0 or less", "left or right of less than 0"),
        MY: ("substring at 0 or less",), LITE: ("substring at 0 or less",),
        FB: ("substring at 0 or less",),
    },
    "`\\` in a text": {PG: ("backslash",), LITE: ("backslash",), FB: ("backslash",)},
    "NULL in `concat`, `hex`": {PG: ("concat",), LITE: ("hex",)},
    "text with a number": {LITE: ("int = text", "decimal = text"), FB: ("int = text",)},
    "`sqrt`, `%` without a result": {MY: ("sqrt",), LITE: ("sqrt", "decimal % decimal")},
    "`~`, `&`, `^` and a bar": {MY: ("~ int", "int & int", "int | int", "int ^ int")},
    "decimals": {
        LITE: (
            "CAST(decimal AS DECIMAL)", "CAST(double AS DECIMAL)", "decimal * decimal",
            "decimal - decimal", "decimal % decimal", "round(decimal, 1)",
        ),
        MY: ("decimal NOT IN",),
    },
    "dates with texts, timestamps": {LITE: ("date < text", "date < timestamp", "date = timestamp")},
    "months": {LITE: ("date + months", "timestamp + months"), FB: ("timestamp + months",)},
    "`dayofweek`, `weekofyear`, `dayofyear`": {
        PG: ("dayofweek",), LITE: ("dayofweek",), MY: ("week",), FB: ("dayofweek", "dayofyear"),
    },
    "`second`": {PG: ("second",), FB: ("second",)},
    "BETWEEN with NULL": {
        FB: ("date BETWEEN", "decimal BETWEEN", "double BETWEEN", "int BETWEEN"),
    },
}  # fmt: skip

Release = tuple[int, ...]
# Those that a release of an engine has no more, or was the first to have. MySQL is not MariaDB.
_ENDED: dict[str, tuple[Release, frozenset[str]]] = {
    "firebird": (
        (4,),
        frozenset(
            {
                "CAST(decimal AS STRING)", "int = text", "timestamp + months", "date BETWEEN",
                "decimal BETWEEN", "double BETWEEN", "int BETWEEN",
            }
        ),
    ),
    "mysql": ((9,), frozenset({"CAST(decimal AS STRING)", "decimal NOT IN"})),
}  # fmt: skip
_BEGAN: dict[str, tuple[Release, frozenset[str]]] = {
    "firebird": ((4,), frozenset({"substring at 0 or less"})),
    "sqlite": ((3, 54), frozenset({"round(decimal, 1)"})),
}
# Those that are seen of the values of another form alone, which a build may lack.
_SEEN_BY = {LITE: {"ceil": frozenset({"int = text", "int DIV int"})}}


def to_be_seen(name: str, engine: str, release: Release, forms: Set[str]) -> set[str]:
    """Return the known differences that a database shows, each and no other.

    Args:
        name: MySQL, which is spelled as the `engine` MariaDB is, has its own.
        release: its number.
        forms: those that it evaluated.
    """
    none = ((), frozenset[str]())
    ended, gone = _ENDED.get(name, none)
    began, later = _BEGAN.get(name, none)
    wanted = {name for listed in KNOWN.values() for name in listed.get(engine, ())} & forms
    wanted -= gone if release >= ended else set()
    wanted -= later if release < began else set()
    for other, those in _SEEN_BY.get(engine, {}).items():
        wanted -= set() if other in forms else those
    return wanted
