"""Arrow: record batches over the buffers of blocks. Needs pyarrow, so it is imported late."""
