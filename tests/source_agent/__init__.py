"""The source agent, by room."""
