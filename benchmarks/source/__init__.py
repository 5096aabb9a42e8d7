"""What a source pays: scans, hashes, memory, questions, and what its own users notice."""
