"""The checks of `zsq doctor`: this system, its disk, its network. One function a question."""
