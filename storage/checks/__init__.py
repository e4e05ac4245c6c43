"""Checks and backups of a topic's files while no broker, or another one, has them open."""
