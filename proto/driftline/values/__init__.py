"""One value and its declared type: bytes to text and back (protocol, section 2)."""
