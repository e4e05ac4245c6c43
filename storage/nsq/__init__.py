"""NSQ's disk queue: the files of nsqd, byte for byte."""
