"""The asyncio clients: the names and arguments of the blocking ones, with await."""
