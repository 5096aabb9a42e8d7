"""What the tests of views ask for."""

from tests.pair.views.two_sites import sites
from tests.warehouse_agent.cli.test_main import run

__all__ = ["run", "sites"]
