"""The asyncio clients: the same names and arguments as the blocking ones, with await."""
