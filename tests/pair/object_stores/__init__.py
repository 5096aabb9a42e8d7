"""Both agents, with the warehouse in a bucket of a real server."""
