"""Programs on top: command line, benchmarks; nobody imports them."""
