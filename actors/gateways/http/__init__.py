"""The HTTP gateway: the HTTP API of NSQ, and metrics."""
