"""A second implementation of the protocol: slow, obvious, and sharing no code with the product."""
