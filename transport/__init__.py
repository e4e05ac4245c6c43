"""Protocol messages between processes, and the client library.

Imports no file code and no actor.
"""
