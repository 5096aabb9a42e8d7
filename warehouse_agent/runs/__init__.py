"""Many fragments in one command: order, locks, retries, what is tried before Spark starts."""
