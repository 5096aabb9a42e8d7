"""Measurements, side by side, as ratios; `python -m benchmarks --help`. Never part of the tests."""
