"""The state store: what channels, producers and transactions have done, in LMDB."""
