"""Peers of ZSQ in comparisons: bare sockets and files, and other brokers on PATH."""
