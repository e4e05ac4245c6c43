"""Staging: blocks that stage writers send before a commit makes them part of the topic."""
