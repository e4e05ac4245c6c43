"""What scripts/bench runs: throughput, latency and cost of the broker, beside what the machine can do."""
