"""Decomposition of views per site: what each needs of a relation, and what a source evaluates."""
