"""Checks and backups of a topic's files.

The topic may be closed, or open in a broker during a backup.
"""
