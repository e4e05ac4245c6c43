"""Forwarding: a channel's messages to another broker, to files, or to an HTTP server."""
