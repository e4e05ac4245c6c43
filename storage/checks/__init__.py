"""Checks and backups of a topic's files.

A check needs a closed topic. A backup also works while a broker has the topic open.
"""
