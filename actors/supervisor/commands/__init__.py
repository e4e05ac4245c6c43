"""The supervisor's commands: one module for each group of client requests."""
