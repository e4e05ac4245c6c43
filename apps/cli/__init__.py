"""The command line: `zsq serve`, `pub`, `sub` and their friends."""
