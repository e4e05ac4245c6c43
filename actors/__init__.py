"""Who does the work: pure logic and the thin processes around it."""
