"""Which URLs name an engine, and what is said about those that do not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from driftline import errors

from source_agent.engines.interface import Limits
from source_agent.engines.registry import connect


def test_databases_that_are_not_there(tmp_path: Path) -> None:
    for url in (
        "postgresql://u@127.0.0.1:1/d",
        "mariadb://u@127.0.0.1:1/d",
        f"sqlite:///{tmp_path}/none.sqlite",
    ):
        with pytest.raises(errors.DatabaseUnavailable) as caught:
            connect(url, "secret", Limits(connect_s=2)).open()
        assert "secret" not in str(caught.value)


def test_urls() -> None:
    for url in ("oracle://u@h/d", "nonsense", "sqlite://", "mariadb://h", "mysql+mysqldb://u@h/d"):
        with pytest.raises(errors.ConfigurationError):
            connect(url, None, Limits())
    names = {"postgresql": "postgresql", "mysql+pymysql": "mysql", "mysql": "mysql"}
    for scheme, name in names.items():
        assert connect(f"{scheme}://u@h/d", None, Limits()).name == name


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(errors.ConfigurationError, match=r"pip install 'driftline\[postgresql\]'"):
        connect("postgresql://u@h/d", None, Limits())
