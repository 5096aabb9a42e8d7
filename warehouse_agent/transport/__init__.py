"""The gRPC channel to a source agent, and what arrives over it."""
