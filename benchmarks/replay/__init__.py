"""Whole histories of real tables, refreshed commit by commit, and counted in bytes."""
