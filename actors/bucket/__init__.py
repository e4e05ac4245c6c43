"""Extension "bucket": topics in an object store, and brokers that take over from it."""
