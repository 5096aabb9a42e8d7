"""What of a DBA's query is told to be an inner join, and what is refused by name."""

from __future__ import annotations

import pytest

from source_agent.config.joins import NotAnInnerJoin, inner_join

LINES = "SELECT l.id, o.changed AS o_changed FROM lines l"


@pytest.mark.parametrize(
    ("tables", "names"),
    [
        ("lines", ("lines",)),
        ("shop.lines AS l, orders o", ("l", "o")),
        ("lines l JOIN orders o ON o.id = l.order_id", ("l", "o")),
        ("lines l CROSS JOIN `my orders` USING (id) -- JOIN x\n", ("l", "my orders")),
        ('"Lines" l STRAIGHT_JOIN "ab" "a ""b""" ON (l.a, l.b) = (1, 2)', ("l", 'a "b"')),
        ("lines l INNER JOIN b ON (l.a, 1) = (b.a, 1), c /* , d */", ("l", "b", "c")),
        ("a.b.c x\nJOIN d ON left(x.e, 2) = 'JOIN'\nWHERE x.limit > 5 ORDER BY 1;", ("x", "d")),
    ],
)
def test_tables_by_their_names(tables: str, names: tuple[str, ...]) -> None:
    assert inner_join(f"SELECT 1 FROM {tables}").tables == names


def test_plain_columns_by_their_names_in_the_result() -> None:
    found = inner_join(
        "SELECT l.id, l.a b, l.c AS \"d e\", l.f + 1 AS g, coalesce(l.h, 0) AS i, j AS k, 'x', l.*"
        " FROM l"
    )
    assert found.selected == {"id": ("l", "id"), "b": ("l", "a"), "d e": ("l", "c")}


@pytest.mark.parametrize(
    ("query", "why"),
    [
        (f"{LINES} LEFT JOIN orders o ON o.id = l.id", "LEFT"),
        (f"{LINES} RIGHT OUTER JOIN orders o ON o.id = l.id", "RIGHT"),
        (f"{LINES} FULL JOIN orders o ON o.id = l.id", "FULL"),
        (f"{LINES} left/**/join orders o ON o.id = l.id", "LEFT"),
        (f"{LINES} NATURAL JOIN orders o", "NATURAL"),
        (f"{LINES}, (SELECT 1) o", "a SELECT within"),
        (f"{LINES}, LATERAL f(l.id) o", "LATERAL"),
        (f"{LINES}, f(l.id) o", "no table"),
        (f"{LINES} INNER JOIN (orders o) ON true", "no table"),
        (f"{LINES} WHERE EXISTS (SELECT 1 FROM orders o)", "a SELECT within"),
        (f"{LINES} GROUP BY 1", "GROUP"),
        (f"{LINES} ORDER BY 1 LIMIT 5", "LIMIT"),
        (f"{LINES} UNION ALL {LINES}", "UNION"),
        (f"WITH x AS (SELECT 1) {LINES}", "WITH"),
        ("SELECT DISTINCT l.id FROM lines l", "DISTINCT"),
        ("SELECT max(l.id) AS id FROM lines l", "MAX"),
        ("SELECT rank() OVER (ORDER BY l.id) AS id FROM lines l", "OVER"),
        (f"{LINES}, lines l", "one name"),
        (f"{LINES} TABLESAMPLE SYSTEM (5)", "TABLESAMPLE"),
        (f"{LINES} USE INDEX (x)", "no table"),
        ("SELECT 1", "one SELECT with one FROM"),
        ("VALUES (1)", "VALUES"),
        ("", "one SELECT"),
        # What databases read in different ways is not read here.
        (f"SELECT 5--2, l.id FROM lines l{LINES}", "--2"),
        (f"{LINES} /*! LEFT */ JOIN orders o", "cannot be read"),
        (f"{LINES} /* /* */ LEFT JOIN orders o -- */", "cannot be read"),
        (f"{LINES} WHERE l.a = '\\' OR l.a = ' LEFT'", "cannot be read"),
        (f"{LINES} WHERE l.a = $$'$$", "cannot be read"),
        (f"{LINES} # a comment, or not", "cannot be read"),
        (f"{LINES} WHERE l.a = 'open", "cannot be read"),
    ],
)
def test_what_is_refused(query: str, why: str) -> None:
    with pytest.raises(NotAnInnerJoin) as refused:
        inner_join(query)
    assert why in str(refused.value)
