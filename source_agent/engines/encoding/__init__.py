"""From the values of a driver to the bytes of rows (protocol, section 3)."""
