"""What is expected of the next refresh, and when it should come: no database, no line."""
