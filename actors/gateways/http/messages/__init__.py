"""Messages of a topic for people: search, live tail and downloads."""
