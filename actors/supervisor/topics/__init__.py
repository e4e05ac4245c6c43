"""Topics as the supervisor knows them: their registry, and the processes of each topic as one unit."""
