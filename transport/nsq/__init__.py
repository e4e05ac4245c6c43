"""NSQ's wire protocols without I/O: bytes and commands in, bytes and commands out.

Sockets and clocks belong to the callers.
"""
