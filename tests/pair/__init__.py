"""Both agents together: exchanges, refreshes, passes."""
