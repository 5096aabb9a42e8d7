"""Decide when to refresh: models of change, policies and the decision. No I/O and no clock."""
