"""Benchmarks of scripts/bench: throughput, latency and cost of the broker, beside machine limits."""
