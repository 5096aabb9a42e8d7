"""Stochastic models of when a relation changes, and how they are fitted. No I/O and no clock."""
