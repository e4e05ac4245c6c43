"""Checks of `zsq doctor`: this system, its disk and its network. Each check is one function."""
