"""Load and refresh on a cluster of processes, and what goes wrong on clusters only."""
