"""The supervisor: starts, watches and stops the broker's processes, and owns the registry of
topics.
"""
