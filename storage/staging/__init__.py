"""Staging: blocks that PUSH writers send before a commit makes them part of the topic."""
