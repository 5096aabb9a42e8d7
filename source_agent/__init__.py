"""The source agent: a thin, read-only process beside a legacy database.

The rooms, from the top: `cli` (the DBA's commands), `server` (gRPC), `budgets` (the DBA's limits
and the audit), `methods` (how a difference is found), `scan` (rows, sums and frames), `engines` (a
read-only snapshot, row bytes). Nothing received from the network ever becomes SQL text.
"""
