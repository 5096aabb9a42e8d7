"""Data files written again: without replaced rows, with other columns, with new rows of a view."""
