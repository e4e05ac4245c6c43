"""The HTTP API of nsqd and nsqlookupd, and metrics."""
