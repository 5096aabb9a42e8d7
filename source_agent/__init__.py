"""The source agent: a thin, read-only process beside a legacy database.

The rooms are layers (docs/architecture.md). Nothing received from the network ever becomes SQL
text.
"""
