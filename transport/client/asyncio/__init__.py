"""The asyncio clients. They have the names and arguments of the blocking clients, with await."""
