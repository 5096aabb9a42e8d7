"""The commands about when to refresh."""
