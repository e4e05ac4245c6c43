"""The directory of an open topic: lock, identity, log, state and delayed messages."""
