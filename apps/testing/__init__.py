"""Testing: brokers for the tests of users, their fixtures for pytest, and assertions."""
