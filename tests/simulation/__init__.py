"""Both agents under a deterministic simulator.

The product's own code runs: `Runner` and all below it, `Servicer`, `Conversation` and all below
them. Simulated are the clock and chance (`clock`), the disk (`disk`), the line (`network`) and the
database (`database`). `world` runs refreshes while faults happen, and `checker` compares whatever
is published with the history of the source.

Everything follows from a seed. A failure prints it with its options; this repeats it:

    python -m tests.simulation --seed SEED
"""
