"""Times of events that rows claim: a model of them, and what decisions keep of them. No I/O."""
