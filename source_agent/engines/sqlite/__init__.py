"""SQLite: a file, read through Python's own sqlite3."""
