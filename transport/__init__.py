"""Protocol messages between processes, and the client library.

This package imports no code that handles files, and no actor.
"""
