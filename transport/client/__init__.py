"""The client library: a core that never waits, and blocking and asyncio clients that use it."""
