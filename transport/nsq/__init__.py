"""NSQ's wire protocols without I/O. They convert bytes to commands, and replies to bytes.

The callers own the sockets and clocks.
"""
