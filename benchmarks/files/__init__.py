"""Dump files: reading one, and the differential of two."""
