"""The table of conditions in docs/errors.md, row by row."""
