"""Common parts of the benchmarks: processes, loads, reports, the machine, parts of documents."""
