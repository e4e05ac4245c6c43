"""Statistics: what `stats` and the overview show, put together from the actors' reports."""
