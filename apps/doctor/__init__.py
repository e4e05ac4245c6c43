"""Checks of `zsq doctor`: this system, its disk and its network, with one function for each check."""
