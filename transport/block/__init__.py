"""Block: a run of messages of one topic, packed."""
