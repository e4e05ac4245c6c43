"""Benchmarks of scripts/bench: throughput, latency and cost of the broker, and machine limits."""
