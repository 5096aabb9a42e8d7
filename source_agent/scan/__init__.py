"""One scan of one snapshot: rows in, accumulators filled, frames out; in one process or several."""
