"""Building blocks without I/O for several actors: deadlines, ranges of offsets, rates,
latencies.
"""
