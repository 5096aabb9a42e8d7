"""The values that a driver itself returns, to compare reads with (`check --reads`)."""
