"""The client library: a core that never waits, and two thin shells around it."""
