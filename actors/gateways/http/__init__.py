"""HTTP gateway: NSQ's HTTP API, Prometheus metrics and the console."""
