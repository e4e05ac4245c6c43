"""The bucket: an object store beyond the disk. Address, objects and a check of a store."""
