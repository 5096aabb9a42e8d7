"""The gRPC server: connections, certificates, and one conversation per stream."""
