"""What others are told of refreshes: metrics, messages, the table of freshness, the report."""
