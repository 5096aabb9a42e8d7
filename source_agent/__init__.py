"""The source agent: a thin, read-only process beside a legacy database.

The tree is the data flow: `configure` (the DBA's file) → `engine` and one module per database
(a read-only snapshot, vetted read expressions, row bytes) → `compare` (one scan, digests, what
differs) → `serve` (gRPC). Beside the flow stand the DBA's commands: `check`, `grant`, `explain`,
`enroll`, `total`. Nothing received from the network ever becomes SQL text.
"""
