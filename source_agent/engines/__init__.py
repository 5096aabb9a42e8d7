"""Databases behind one interface, a folder per engine."""
