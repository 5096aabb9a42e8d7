"""Fragments joined by views, and these views, which move together: turn, states, view phases."""
