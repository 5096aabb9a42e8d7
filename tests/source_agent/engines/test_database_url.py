"""A database URL means what SQLAlchemy's parser takes it for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from source_agent.engines.database_url import DatabaseUrl

URLS = [
    "postgresql://",
    "postgresql://reader@db.example/erp",
    "postgresql+psycopg://reader:s%40crt%3A%2F@db.example:5432/erp",
    "postgresql://a@b@host/db",
    "postgresql://@host/db",
    "postgresql://reader:@host/db",
    "postgresql://reader:a:b@host/db",
    "postgresql:///erp?host=/var/run/postgresql&sslmode=verify-full",
    "postgresql://host/erp?host=one&host=two&x=&y=1%262&z=a+b",
    "postgresql://reader@[::1]:5432/erp",
    "postgresql://reader@[fe80::1%25eth0]/erp",
    "mysql+pymysql://re%20ader@host:3306/d%C3%BCr%3F?ssl_ca=/a%20b.pem",
    "mariadb://h/db?",
    "sqlite:///erp.db",
    "sqlite:////var/lib/erp.db",
    "sqlite:///C%3A/erp 1.db",
    "sqlite:///:memory:",
    "sqlite:///file:erp.db?mode=ro&uri=true",
    "sqlite://",
]
NOT = ["", "nonsense", "http:/host", "://host", "post gresql://h", "postgresql://h:port/db"]
# Taken by SQLAlchemy, in part or until it fails itself.
REFUSED = [
    "postgresql://h:/db",
    "postgresql://h:1_0/db",
    "postgresql://h: 1/db",
    "postgresql://h:65536/db",
    "postgresql://[::1]junk/db",
    "postgresql://h/db?a=1\n&b=2",
]
words = st.text(st.sampled_from("aZ09@:/?&=+%[]#. äß-_~\\\"'"), max_size=8)


@pytest.mark.parametrize("text", URLS)
def test_urls_are_read_as_by_sqlalchemy(text: str) -> None:
    found, theirs = DatabaseUrl.parse(text), make_url(text)
    parts = ("username", "host", "port", "database")
    assert [getattr(found, name) for name in parts] == [getattr(theirs, name) for name in parts]
    assert found.password == (None if theirs.password is None else str(theirs.password))
    assert f"{found.scheme}+{found.driver}".rstrip("+") == theirs.drivername
    assert dict(found.query) == dict(theirs.normalized_query)
    assert found.text() == theirs.render_as_string(hide_password=False)
    assert DatabaseUrl.parse(found.text()) == found


@pytest.mark.parametrize("text", [*NOT, *REFUSED])
def test_what_is_no_url_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a") as caught:
        DatabaseUrl.parse(text)
    assert "db" not in str(caught.value)
    if text in NOT:
        with pytest.raises((ArgumentError, ValueError)):
            make_url(text)


@given(words)
@example("@h:1/d?a=b")
def test_any_text_is_refused_or_read_as_by_sqlalchemy(rest: str) -> None:
    text = f"postgresql://{rest}"
    try:
        found = DatabaseUrl.parse(text)
    except ValueError:
        return
    assert found.text() == make_url(text).render_as_string(hide_password=False)


@given(words, words, words)
def test_parts_come_back(username: str, password: str, database: str) -> None:
    """Whatever their characters."""
    url = DatabaseUrl("postgresql", "psycopg", username, password, "h", 1, database)
    assert DatabaseUrl.parse(url.text()) == url
    assert password not in repr(url) or password in repr(replace(url, password="\0"))
