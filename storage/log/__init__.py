"""The log: chunk files of blocks with their indexes, recovery and retention."""
