"""Extension "bucket": an object store beyond the disk. Its address, objects and check."""
