"""Schedules of topics: their due times, their commands, and the process that publishes."""
