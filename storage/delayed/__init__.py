"""Delayed store: messages that are not due yet, in a separate LMDB environment."""
