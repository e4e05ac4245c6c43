"""Topics in the supervisor: their registry, and the processes of each topic as one unit."""
