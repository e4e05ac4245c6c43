"""What every benchmark uses: processes that start together, loads, reports, the machine, and documents to write into."""
