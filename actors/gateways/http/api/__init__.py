"""HTTP API of nsqd and nsqlookupd, and Prometheus metrics."""
