"""Bytes on disk; knows no actor and no socket."""
