"""An exchange that may be unfinished, for tests that stage frames."""

from __future__ import annotations

from warehouse_agent.tasks.staging import ExchangeIdentity

ORDERS = ExchangeIdentity(None, "00", "erp", "erp:1", "orders")
