"""The folder of a warehouse: files, locks, the published table and its readers."""
