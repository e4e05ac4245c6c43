"""Backlog alarms: their state machine, and the process that sends them."""
