"""Decisions without I/O: forecasts, prices, sizes, tiles and the choice of a method."""
