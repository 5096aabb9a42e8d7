"""The tree, the documents and the configuration files of the project."""
