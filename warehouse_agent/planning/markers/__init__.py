"""Refreshes by what a relation keeps about its own changes; no I/O."""
