"""The source's half of a comparison, by method."""
