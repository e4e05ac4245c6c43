"""The block: a run of messages of one topic, packed."""
