"""Refreshes of a fragment: every engine, any schema, real histories, row security."""
