"""Many fragments in one command: order, locks, retries, checks before Spark starts."""
