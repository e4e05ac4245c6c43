"""Schedules: the due times of cron expressions, and the process that publishes at them."""
