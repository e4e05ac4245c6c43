"""A topic's directory, opened: lock, identity, log, state and delayed messages."""
