"""Actors: the broker's processes, and the pure logic that they run."""
