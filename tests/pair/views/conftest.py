"""What the tests of views ask for."""

from tests.warehouse_agent.cli.test_main import run

__all__ = ["run"]
