"""Views and versions: maintained or recomputed, how stale, what a flip costs."""
