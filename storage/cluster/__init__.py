"""The cluster: the directory in the bucket that says which broker has which part of a topic."""
