"""Commands with many fragments or sources: order, deadlines, and where Spark is needed."""
