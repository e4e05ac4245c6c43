"""The storage actor: the only owner of a topic's files, and its parts."""
