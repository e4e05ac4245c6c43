"""What scripts/demo runs: a year of flights through the broker, checked row by row."""
