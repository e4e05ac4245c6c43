"""The storage: the part of a topic's process that owns all files of the topic."""
