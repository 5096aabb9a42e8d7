"""Measurements, side by side, as ratios: `python -m benchmarks.ROOM.NAME --help`. Never tests.

    peers      Driftline and its peers side by side, between two network namespaces
    replay     whole histories of real tables, refreshed commit by commit, and counted in bytes
    decisions  what is expected of the next refresh, and when it should come: no database, no line
    source     what a source pays: scans, hashes, memory, questions, and what its own users notice
    reloads    refreshes beside tools that load the whole table again, in seconds
    refreshes  refreshes and commands of both agents: time, bytes, memory; and the steps of one
    views      views and versions: maintained or recomputed, how stale, what a flip costs
    files      dump files: reading one, and the differential of two

Here is what the rooms share: the yardstick of bytes (`floor`), of what a run costs (`meter`), the
tables (`tpch`), a session that stays (`warm`) and environments of other tools (`environments`).
Results are in `docs/results.md`, a page for each room.
"""
