"""Chosen and random values, rows and sketches."""
