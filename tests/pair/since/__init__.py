"""Refreshes by a marker of the source: times, versions, checksums, transaction numbers."""
