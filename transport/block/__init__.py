"""Block: messages of one topic that are packed together."""
