"""Driftline and its peers side by side, between two network namespaces."""
