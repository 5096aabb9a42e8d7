"""Remedies that the agent beside the database prints: its limits, its waits, its account."""
