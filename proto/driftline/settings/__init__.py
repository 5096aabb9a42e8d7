"""Declared settings of both agents' files, the kinds of their values, and hours of the week."""
