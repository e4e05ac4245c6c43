"""Coming from NSQ and going back: a stopped nsqd's data directory as the source or the result, offline and whole or not at all."""
