"""State store: the states of channels, producers and transactions, in LMDB."""
