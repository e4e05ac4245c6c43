"""Databases: the inbox and the outbox, which join a topic and a database in one transaction."""
