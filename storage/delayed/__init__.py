"""The delayed store: messages that are not due yet, in an LMDB environment of its own."""
