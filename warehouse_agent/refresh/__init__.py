"""One fragment from one version to the next: prepare, exchange, prove, commit."""
