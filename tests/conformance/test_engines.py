"""Our own engines pass the conformance suite, against real servers.

What one engine alone promises is tested in `tests/source_agent/engines`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from driftline import errors

from source_agent.engines.conformance.legacy import Legacy
from source_agent.engines.conformance.suite import *  # noqa: F403 - collected here
from source_agent.engines.interface import Limits
from source_agent.engines.registry import connect
from tests.harness.family import FAMILY
from tests.harness.legacies import KINDS


@pytest.fixture(params=KINDS)
def legacy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Legacy]:
    made = KINDS[request.param](request, tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("kind", ["postgresql", *FAMILY])
def test_a_refused_password_is_not_shown(request: pytest.FixtureRequest, kind: str) -> None:
    server = request.getfixturevalue(kind)
    with pytest.raises(errors.DatabaseRefused) as caught:
        connect(server.tcp_url("nobody", "test"), "wrong", Limits()).open()
    assert "wrong" not in str(caught.value)
