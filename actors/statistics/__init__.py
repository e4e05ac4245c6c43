"""Statistics: `stats` and the overview, computed from the actors' reports."""
