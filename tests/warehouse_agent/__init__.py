"""The warehouse agent, by room."""
