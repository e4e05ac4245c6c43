"""The command line: `zsq serve`, `pub`, `sub` and their friends."""

from .app import main

__all__ = ["main"]
