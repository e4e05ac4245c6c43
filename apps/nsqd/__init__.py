"""Import from and export to the data directory of a stopped nsqd, complete or not at all."""
