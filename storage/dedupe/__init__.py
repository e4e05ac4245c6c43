"""Ids: which ids of messages a topic has stored within its window, in little memory."""
