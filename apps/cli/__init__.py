"""Command line: `zsq serve`, `pub`, `sub` and the other commands."""

from .app import main

__all__ = ["main"]
