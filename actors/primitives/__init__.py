"""Pure building blocks that several actors use: deadlines, ranges of offsets, rates and latencies."""
